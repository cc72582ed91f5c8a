"""Devices: absent ones are refused, inexact products are not used, settings are restored."""

import contextlib
import threading
from functools import partial

import numpy as np
import pytest
import torch

from labelwall.teacher.mechanisms.counts_in_balls import ball_counts, ball_votes
from labelwall.teacher.mechanisms.votes_in_cells import cell_votes
from labelwall.teacher.search import accelerators, cpu
from labelwall.teacher.search.accelerators import DeviceIndex, product_on
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import cosine, rbf
from labelwall.teacher.shards import worker as worker_module
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.wall.devices import reproducible
from labelwall.wall.errors import InvalidInput
from tests.teacher.search.indexes import DEVICES
from tests.teacher.shards import tiny


def _settings():
    cudnn = torch.backends.cudnn
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
    )


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_settings_hold_inside_and_are_put_back(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        outside = _settings()
        with contextlib.suppress(KeyError), reproducible():
            inside = _settings()
            raise KeyError
        assert inside == (True, False, "highest", (True, False, True, False))
        assert _settings() == outside
    finally:
        torch.set_float32_matmul_precision(before)


def test_settings_hold_until_the_last_thread_leaves():
    """A test of an analyst's extractor ends while private rows are embedded in another thread."""
    outside, ended, begun = _settings(), threading.Event(), threading.Event()

    def other():
        with reproducible():
            begun.set()
            ended.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait(10)
    with reproducible():
        ended.set()
        thread.join()
        assert _settings() == (True, False, "highest", (True, False, True, False))
    assert _settings() == outside


def test_a_product_that_is_missing_or_off_by_one_is_not_used(monkeypatch):
    """See test_int8_matmul for what is exact."""

    def wrong(left, right):
        return accelerators.int8_product(left, right) + 1

    choose, processor = product_on.__wrapped__, torch.device("cpu")
    monkeypatch.setattr(
        accelerators, "PRODUCTS", {"int8": wrong, "float32": accelerators.float32_product}
    )
    assert choose(processor) is accelerators.float32_product
    monkeypatch.setattr(accelerators, "PRODUCTS", {"int8": wrong})
    with pytest.raises(InvalidInput, match="exact products"):
        choose(processor)


@pytest.fixture(params=[16, 3000], ids=["small blocks", "larger blocks"])
def blocks(request, monkeypatch):
    """Copies of 16 or 3,000 records, and scores for little more."""
    monkeypatch.setattr(accelerators, "UPLOAD", request.param)
    monkeypatch.setattr(accelerators, "MAX_SCORES", 64 * request.param + 5)
    monkeypatch.setattr(cpu, "SELECTED_PAIRS", 10_000)


@pytest.fixture(params=[None, 0], ids=["resident", "streamed"])
def resident_bytes(request):
    return request.param


def _records(n=2000, d=13, seed=0):
    """Few values, so that distances tie; ids that are neither dense nor positive."""
    features = np.random.default_rng(seed).integers(-2, 3, (n, d)).astype(np.int8)
    return features, 3 * np.arange(n) - n


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(
    "select", [cosine(0.3), cosine(1.0), rbf(0.5, 0.7, 8.0), rbf(0.9, 0.5, 8.0, near=0.4)]
)
@pytest.mark.parametrize("hashing", [None, (3, 2, 7)])
@pytest.mark.parametrize("n", [0, 2000])
def test_similar_records_are_the_processors(blocks, resident_bytes, name, select, hashing, n):
    features, ids = _records(n)
    queries = np.concatenate([features[:35], _records(35, seed=1)[0]])
    index = DeviceIndex(features, ids, device=torch.device(name), resident_bytes=resident_bytes)
    expected = ExactIndex(features, ids, threads=1).similar(queries, select, hashing)
    assert not n or sum(len(near.rows) for near in expected) >= 35
    assert index.similar(queries[:0], select, hashing) == []
    for found, wanted in zip(index.similar(queries, select, hashing), expected, strict=True):
        np.testing.assert_array_equal(found.rows, wanted.rows)
        np.testing.assert_array_equal(found.weights, wanted.weights)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("n", [0, 900])
def test_sums_and_features_are_the_processors(blocks, resident_bytes, name, n):
    (features, ids), queries = _records(n), _records(30, seed=1)[0]
    labels = np.random.default_rng(2).integers(0, 4, len(ids))
    index = DeviceIndex(features, ids, device=torch.device(name), resident_bytes=resident_bytes)
    exact = ExactIndex(features, ids)
    np.testing.assert_array_equal(index.features, features)
    for own, wanted in zip(index.distances(queries), exact.distances(queries), strict=True):
        np.testing.assert_array_equal(own, wanted)
    assert index.dimensions == 13
    for count in (
        partial(ball_votes, queries, np.full(30, 25), 4),
        partial(ball_counts, queries, np.array([9, 25, 36])),
        partial(cell_votes, queries[None], 2, 4, 1),
    ):
        np.testing.assert_array_equal(index.total(count, labels), exact.total(count, labels))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no cuda device")
def test_device_memory_is_bounded_in_the_worst_case():
    """Records by falling distance, short and complete lists: all scores of a block enter them."""
    column = np.repeat(np.arange(-60, 60, dtype=np.int8)[:, None], 2000, axis=0)
    features = column.repeat(64, axis=1)
    ids = np.arange(len(features))
    index = DeviceIndex(features, ids, device=torch.device("cuda"), resident_bytes=0)
    for m in (10, len(features)):
        torch.cuda.reset_peak_memory_stats()
        index.nearest(np.full((256, 64), 60, dtype=np.int8), m)
        # 2 GiB for a block, 256 MiB of features and what was there before
        assert torch.cuda.max_memory_allocated() < 5 << 29


# Teachers, in one piece and over shards.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mechanism", tiny.MECHANISMS)
def test_a_teachers_answers_are_the_processors(tmp_path, monkeypatch, mechanism, device):
    """Raw vectors, whose features no device computes: only the search differs."""
    records = tiny.records_of(mechanism)
    used = []

    def on_device(where, features, ids, persons):
        used.append(where.type)
        return DeviceIndex(features, ids, persons, device=where)

    results = []
    for place, shards in (("plain", 0), ("whole", 0), ("sharded", 2)):
        if place == "whole":  # from here on the device index, also on the processor
            monkeypatch.setattr(accelerators, "index_on", on_device)
            monkeypatch.setattr(worker_module, "index_on", on_device)
        on = "cpu" if place == "plain" else device
        teacher = tiny.ready(tmp_path / place, mechanism, records, shards, device=on)
        results.append(tiny.asked(teacher, mechanism))
    assert results[1:] == results[:1] * 2
    assert used == [device] * 3


def test_an_absent_device_is_refused_before_anything_is_charged(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    for shards in (0, 2):
        scale = ScaleConfig(shards=shards)
        with pytest.raises(InvalidInput, match="`device` must be cpu on this machine"):
            tiny.teacher(tmp_path, "private_knn", tiny.records(), scale, device="cuda")
    ledger = tiny.ledger_in(tmp_path, tiny.MECHANISMS["private_knn"], 1000)
    assert (ledger.state.seq, ledger.state.spent) == (0, {})
