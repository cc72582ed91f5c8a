"""Callers who send much, or what is heavy: what is not charged is limited, and turns are fair."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.features import cache
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.records.sources import Records
from labelwall.teacher.service import network_tests
from labelwall.teacher.service import queue as queues
from labelwall.teacher.service.config import ServiceConfig
from labelwall.wall.errors import InvalidInput, Refused
from labelwall.wall.messages import ExtractorSpec, Queries
from labelwall.wall.networks.architectures import build, to_safetensors
from labelwall.wall.wire import encode_extractor
from tests import ledgers
from tests.teacher.service import tiny
from tests.teacher.service.tiny import CLASSES, DIMENSIONS, RECORDS, SPEC, client, rows, served


def other(number: int) -> ExtractorSpec:
    return ExtractorSpec("raw", (DIMENSIONS,), CLASSES, scale=1 + number / 100)


def network() -> ExtractorSpec:
    made = build("mlp", input_shape=(DIMENSIONS,), num_classes=CLASSES)
    return ExtractorSpec("mlp", (DIMENSIONS,), CLASSES, to_safetensors(made), scale=50.0)


def extractors_in(path: Path) -> list[str]:
    return [content["sha256"] for content in ledgers.contents(path, "extractor")]


def test_an_extractor_without_queries_writes_nothing(tmp_path: Path) -> None:
    """Sixty extractors, and two by turns, leave the ledger as it was; the caches stay few."""
    made = tiny.make(tmp_path)
    before = Ledger(tmp_path / "ledger.sqlite").state.head
    with served(made) as url, client(url, made.tokens["ann"]) as ann:
        for number in range(60):
            ann.use_extractor(other(number))
        for number in range(10):
            ann.use_extractor(other(number % 2))
        assert Ledger(tmp_path / "ledger.sqlite").state.head == before
        ann.answer(Queries(rows(3, 1)))
        ann.use_extractor(SPEC)
        ann.use_extractor(other(1))
        ann.answer(Queries(rows(3, 1)))  # known: nothing is written
        ann.answer(Queries(rows(3, 2)))
        assert extractors_in(tmp_path / "ledger.sqlite") == [other(1).sha256()]
    assert audit(tmp_path / "ledger.sqlite").problems == []
    assert len(list(tmp_path.glob("embeddings-*.npz"))) == cache.MAX_CACHES


def test_extractors_of_a_day_are_counted_by_caller(tmp_path: Path) -> None:
    config = ServiceConfig(port=0, requests_per_second=1e6, extractors_per_day=12)
    made = tiny.make(tmp_path, config=config)
    with (
        served(made) as url,
        client(url, made.tokens["ann"], patience=0) as ann,
        client(url, made.tokens["bob"], patience=0) as bob,
    ):
        for number in range(1, 12):
            ann.use_extractor(other(number))
        with pytest.raises(Refused, match="in a day") as refusal:
            ann.use_extractor(other(12))
        assert refusal.value.code == "too_much"
        ann.use_extractor(other(11))  # known: sent again for nothing
        bob.use_extractor(other(12))
        assert len(bob.answer(Queries(rows(3, 1))).labels) == 3


def test_bytes_of_extractors_of_a_day_are_counted_by_caller(tmp_path: Path) -> None:
    made = tiny.make(tmp_path)
    sent = len(encode_extractor(other(1)))
    uploads = made.service.allowances.uploads
    uploads._burst, uploads._rate = 3.5 * sent, 0.0
    with (
        served(made) as url,
        client(url, made.tokens["ann"], patience=0, spec=other(1)) as ann,
        client(url, made.tokens["bob"], patience=0, spec=other(1)) as bob,
    ):
        for number in (2, 3):
            ann.use_extractor(other(number))
        with pytest.raises(Refused, match="in a day"):
            ann.use_extractor(other(4))
        bob.use_extractor(other(4))


def test_one_callers_extractors_do_not_displace_anothers(tmp_path: Path) -> None:
    made = tiny.make(tmp_path)
    with (
        served(made) as url,
        client(url, made.tokens["bob"], spec=other(99)),
        client(url, made.tokens["ann"]) as ann,
    ):
        for number in range(20):
            ann.use_extractor(other(number))
        assert other(99).sha256() in made.service.extractors
        assert len(made.service.extractors) == 8 == len(made.service.senders)


def test_refusals_at_a_reached_cap_do_not_fill_the_ledger(tmp_path: Path) -> None:
    """They are stored, and nobody is charged for them: so they are limited by the day."""
    made = tiny.make(tmp_path, asked=16, answered=16)
    made.service.allowances.growth._burst = 100_000  # bytes
    with (
        served(made) as url,
        client(url, made.tokens["ann"], patience=0) as ann,
        client(url, made.tokens["bob"], patience=0) as bob,
    ):
        for seed in range(3):
            ann.answer(Queries(rows(600, seed)))
        with pytest.raises(Refused, match="in a day"):
            ann.answer(Queries(rows(600, 3)))
        assert len(bob.answer(Queries(rows(3, 1))).labels) == 3
    assert (tmp_path / "ledger.sqlite").stat().st_size < 1 << 20


def test_a_full_queue_has_a_place_for_others(tmp_path: Path) -> None:
    config = ServiceConfig(port=0, requests_per_second=1e6, waiting=4)
    made = tiny.make(tmp_path, config=config)
    queue = made.service.queue

    def job(caller: str, number: int) -> queues.TaskJob:
        return queues.TaskJob(f"{number}", caller, "of a test", 1)

    for number in range(4):
        queue.submit(job("ann", number))
    with pytest.raises(Refused, match="too many requests wait"):
        queue.submit(job("ann", 5))
    queue.submit(job("bob", 6))
    queue.submit(job("bob", 7))
    with pytest.raises(Refused, match="too many requests wait"):
        queue.submit(job("bob", 8))
    made.custodian.close()


class Slow(Embedder):
    """Takes ``seconds`` for a block of an extractor with weights."""

    seconds = 0.2
    blocks = 0

    def embed(self, inputs: np.ndarray, progress: object = None) -> tuple[np.ndarray, np.ndarray]:
        if self.spec.weights and len(inputs) > 1:
            Slow.blocks += 1
            time.sleep(self.seconds)
        return super().embed(inputs, progress)


@pytest.fixture
def heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding two records with a network takes 0.2 seconds."""
    monkeypatch.setattr("labelwall.teacher.teacher.Embedder", Slow)
    monkeypatch.setattr(cache, "block_rows", lambda _: 2)
    monkeypatch.setattr(queues, "TURN", 0.3)
    Slow.blocks = 0


def test_a_heavy_extractor_does_not_keep_others_from_answers(tmp_path: Path, heavy: None) -> None:
    many = Records(rows(800, 0), np.arange(800) % CLASSES, np.arange(800))  # 80 seconds
    made = tiny.make(tmp_path, records=lambda: many)
    with served(made) as url, client(url, made.tokens["bob"]) as bob:
        sending = threading.Thread(target=_send, args=(url, made.tokens["ann"], network()))
        sending.start()
        while not Slow.blocks:
            time.sleep(0.01)
        for seed in range(3):
            assert len(bob.answer(Queries(rows(3, seed))).labels) == 3
        assert Slow.blocks < len(many.ids) // 2  # it is not done by then
        made.service.queue.close()
        sending.join()


def _send(url: str, token: str, spec: ExtractorSpec) -> None:
    with (
        client(url, token, patience=0, spec=None) as ann,
        pytest.raises(Refused, match="shutting down"),
    ):
        ann.use_extractor(spec)


def test_a_service_stops_in_the_middle_of_an_embedding_and_goes_on(
    tmp_path: Path, heavy: None
) -> None:
    made, spec = tiny.make(tmp_path), network()
    with served(made) as url:
        sending = threading.Thread(target=_send, args=(url, made.tokens["ann"], spec))
        sending.start()
        while Slow.blocks < 5:
            time.sleep(0.01)
    sending.join()
    done, Slow.blocks = Slow.blocks, 0
    assert done < RECORDS // 2  # eight seconds' worth
    again = tiny.make(tmp_path)
    with served(again) as url, client(url, again.tokens["ann"], spec=spec, patience=60) as ann:
        assert Slow.blocks <= RECORDS // 2 - done
        assert len(ann.answer(Queries(rows(3, 1))).labels) == 3


def test_features_do_not_depend_on_where_an_embedding_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Records(rows(20, 1), np.zeros(20, np.int64), np.arange(20))
    held.inputs[7] = np.nan
    embedder = Embedder(SPEC, probe=None)
    whole = cache.embed_records(tmp_path, held, SPEC, embedder, lambda *_: None)
    monkeypatch.setattr(cache, "block_rows", lambda _: 3)
    apart = tmp_path / "apart"
    apart.mkdir()
    heard: list[int] = []
    for _ in range(6):  # each is as if the process had ended
        parts = cache.Embedding(apart, held, SPEC, embedder, lambda done, _: heard.append(done))
        assert not parts.advance(lambda: True)
        parts.save()
    parts = cache.Embedding(apart, held, SPEC, embedder, lambda done, _: heard.append(done))
    assert parts.advance(lambda: True)
    found = parts.result()
    for name in ("features", "labels", "ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    assert 7 not in found.ids


def test_a_network_that_is_too_slow_is_refused_by_a_row_of_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_tests, "MAX_ROW_SECONDS", 0.0)
    made = tiny.make(tmp_path)
    with (
        served(made) as url,
        client(url, made.tokens["ann"]) as ann,
        pytest.raises(Refused, match="seconds for a row"),
    ):
        ann.use_extractor(network())
    with pytest.raises(InvalidInput):
        made.service.queue.networks.test(network(), "ann")
