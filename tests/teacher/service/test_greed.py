"""Callers who send much, or what is heavy: what is not charged is limited, and turns are fair."""

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from labelwall.experiment.run.scoring import decided
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.sums import Score
from labelwall.teacher.records import embedding_cache
from labelwall.teacher.service import callers, extractors
from labelwall.teacher.service import queue as queues
from labelwall.teacher.service.queue import Job
from labelwall.wall.errors import Refused
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.matrices import Cells
from labelwall.wall.messages import Queries
from labelwall.wall.progress import no_progress
from labelwall.wall.wire import encode_extractor
from tests import ledgers
from tests.make import until
from tests.teacher.service import tiny
from tests.teacher.service.tiny import RECORDS, SPEC, client, clients, network, rows


def other(number):
    return replace(SPEC, scale=1 + number / 100)


def test_an_extractor_without_queries_writes_nothing_and_displaces_no_others(made, tmp_path):
    """Many leave the ledger as it was, and another caller's in memory and on the disk."""
    before = Ledger(tmp_path / "ledger.sqlite").state.head
    with clients(made, "bob", "ann") as (bob, ann):
        bob.use_extractor(other(99))
        for number in (*range(20), 1):
            ann.use_extractor(other(number))
        assert Ledger(tmp_path / "ledger.sqlite").state.head == before
        assert other(99).sha256() in made.service.extractors
        assert len(made.service.extractors._kept) == 8
        assert (tmp_path / embedding_cache.cache_name(other(99), "cpu")).exists()
        ann.answer(Queries(rows(3, 1)))
        ann.use_extractor(SPEC)
        ann.use_extractor(other(1))
        ann.answer(Queries(rows(3, 1)))  # known: nothing is written
        ann.answer(Queries(rows(3, 2)))
    entries = ledgers.contents(tmp_path / "ledger.sqlite", "extractor")
    assert [entry["sha256"] for entry in entries] == [other(1).sha256()]
    assert audit(tmp_path / "ledger.sqlite").problems == []
    assert len(list(tmp_path.glob("embeddings-*.npz"))) == embedding_cache.MAX_CACHES


SIZE = len(encode_extractor(other(1)))


@pytest.mark.parametrize("limit", [("EXTRACTORS_PER_DAY", 12), ("UPLOADS_PER_DAY", 12.5 * SIZE)])
def test_extractors_of_a_day_are_limited_by_caller(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(callers, *limit)
    made = tiny.make(tmp_path)
    with clients(made, "ann", "bob", patience=0) as (ann, bob):
        for number in range(1, 12):
            ann.use_extractor(other(number))
        with pytest.raises(Refused, match="in a day") as refusal:
            ann.use_extractor(other(12))
        assert refusal.value.code == "too_much"
        ann.use_extractor(other(10))  # known: sent again for nothing
        bob.use_extractor(other(12))
        assert len(bob.answer(Queries(rows(3, 1))).labels) == 3


def test_refusals_at_a_reached_cap_do_not_fill_the_ledger(tmp_path, monkeypatch):
    """They are stored, and nobody is charged for them: so they are limited by the day."""
    monkeypatch.setattr(callers, "GROWTH_PER_DAY", 100_000)
    made = tiny.make(tmp_path, asked=16, answered=16)
    with clients(made, "ann", "bob", patience=0) as (ann, bob):
        for seed in range(3):
            ann.answer(Queries(rows(600, seed)))
        with pytest.raises(Refused, match="in a day"):
            ann.answer(Queries(rows(600, 3)))
        assert ann.budget()["charged"] == 16  # what was refused is not held against the key
        assert len(bob.answer(Queries(rows(3, 1))).labels) == 3
    assert (tmp_path / "ledger.sqlite").stat().st_size < 1 << 20


def test_a_copy_of_the_ledger_is_made_once_for_each_head(made, monkeypatch):
    """And one at a time for each caller. Its bytes count in the caller's day."""
    export, shared = Mock(wraps=made.service.ledger.export), made.service.shared
    monkeypatch.setattr(made.service.ledger, "export", export)
    with clients(made, "ann") as remote:
        remote.answer(Queries(rows(3, 1)))
        with shared.copying.by("ann"):
            assert made.call("ann", "ledger").json()["code"] == "busy"
            copies = [made.call("bob", "ledger").content]
        copies += [made.call(name, "ledger").content for name in ("ann", "bob")]
        assert len(set(copies)) == export.call_count == 1
        remote.answer(Queries(rows(3, 2)))
        assert made.call("bob", "ledger").content != copies[0]
        assert export.call_count == 2
        shared.copies.spend("ann", 2.0 * callers.COPIES_PER_DAY)
        assert made.call("ann", "ledger").json()["code"] == "too_much"
        assert made.call("bob", "ledger").status_code == 200


def test_the_writer_does_not_wait_for_a_copy_of_the_ledger(made, monkeypatch):
    reading, charged = made.service.ledger._database.reading, list[int]()
    with clients(made, "bob") as bob:
        bob.answer(Queries(rows(3, 1)))

        @contextmanager
        def answering():
            with reading() as connection:
                charged.append(bob.answer(Queries(rows(2, 2))).receipt.charged["screen"])
                yield connection

        monkeypatch.setattr(made.service.ledger._database, "reading", answering)
        assert made.call("ann", "ledger").status_code == 200
    assert charged[0] == 2


def test_a_full_queue_has_a_place_for_others(tmp_path, monkeypatch):
    monkeypatch.setattr(callers, "WAITING", 4)
    made = tiny.make(tmp_path)
    for caller, places in (("ann", 4), ("bob", 2)):
        for number in range(places):
            made.service.queue.submit(Job(f"{number}", caller, "of a test"))
        with pytest.raises(Refused, match="too many requests wait"):
            made.service.queue.submit(Job(f"{places}", caller, "of a test"))
    made.custodian.close()


class Slow(Embedder):
    """Takes 0.2 seconds for a block of an extractor with weights."""

    blocks = 0

    def features(self, inputs, progress=no_progress):
        if self.spec.weights and len(inputs) > 1:
            Slow.blocks += 1
            time.sleep(0.2)
        return super().features(inputs, progress)


@pytest.fixture
def heavy(monkeypatch):
    """Embedding two records with a network takes 0.2 seconds."""
    monkeypatch.setattr("labelwall.teacher.private_rows.Embedder", Slow)
    monkeypatch.setattr(embedding_cache, "block_rows", lambda _: 2)
    monkeypatch.setattr(queues, "TURN", 0.3)
    Slow.blocks = 0


def test_a_heavy_extractor_does_not_keep_others_from_answers(tmp_path, heavy):
    """Nor from sending one that is light."""
    made = tiny.make(tmp_path, records=lambda: tiny.records_of(800))  # 80 seconds
    with clients(made, "bob") as bob:
        sending = sent_until(made, network(), blocks=1)
        for seed in range(3):
            assert len(bob.answer(Queries(rows(3, seed))).labels) == 3
        bob.use_extractor(other(1))
        assert len(bob.answer(Queries(rows(3, 4))).labels) == 3
        assert Slow.blocks < 800 // 2  # it is not done by then
        made.service.queue.close()
        sending.join()


def sent_until(made, spec, blocks):
    """Ann sends an extractor until the service stops; some blocks are embedded by now."""

    def send():
        stopped = pytest.raises(Refused, match="shutting down")
        with client(made.url, made.tokens["ann"], patience=0, spec=None) as ann, stopped:
            ann.use_extractor(spec)

    sending = threading.Thread(target=send)
    sending.start()
    until(lambda: Slow.blocks >= blocks)
    return sending


def test_a_service_stops_in_the_middle_of_an_embedding_and_goes_on(tmp_path, heavy):
    made, spec = tiny.make(tmp_path), network()
    with clients(made, "bob"):
        sending = sent_until(made, spec, blocks=5)
    sending.join()
    done, Slow.blocks = Slow.blocks, 0
    assert done < RECORDS // 2  # eight seconds' worth
    with clients(tiny.make(tmp_path), "ann", spec=spec, patience=60) as ann:
        assert Slow.blocks <= RECORDS // 2 - done
        assert len(ann.answer(Queries(rows(3, 1))).labels) == 3


def test_features_do_not_depend_on_where_an_embedding_stopped(tmp_path, monkeypatch):
    records = tiny.records_of(20)
    records.inputs[7] = np.nan

    def embedding(place):
        plain = embedding_cache.PlainFeatures()
        return embedding_cache.Embedding(place, records, Embedder(SPEC), plain, no_progress)

    whole = embedding(tmp_path)
    assert whole.advance()
    features, kept = whole.result()
    monkeypatch.setattr(embedding_cache, "block_rows", lambda _: 3)
    (apart := tmp_path / "apart").mkdir()
    for number in range(7):  # each is as if the process had ended
        parts = embedding(apart)
        assert parts.advance(lambda: True) == (number == 6)
        parts.save()
    np.testing.assert_array_equal(parts.result()[0], features)
    assert [*parts.result()[1].ids] == [*kept.ids] == [n for n in range(20) if n != 7]


def test_a_network_that_is_too_slow_is_refused_by_a_row_of_zeros(made, monkeypatch):
    monkeypatch.setattr(extractors, "MAX_ROW_SECONDS", 0.0)
    with clients(made, "ann") as ann:
        for _ in range(2):
            with pytest.raises(Refused, match="seconds for a row"):
                ann.use_extractor(network())


def test_own_models_that_are_scored_are_charged_each_and_stop_at_the_cap(tmp_path):
    """The same model costs nothing and gets the same noise; past the cap there is no score, for no
    other caller either."""
    made = tiny.make(tmp_path, mechanism=Score(sigma=2.0), asked=3, answered=3)
    classes = Cells(63 * np.eye(tiny.CLASSES, dtype=np.int8))
    own = [decided(network(**{"head.bias": torch.eye(3)[k % 3] * k}), "class") for k in range(5)]
    with clients(made, "ann", "bob") as (ann, bob):
        scores = []
        for model in [own[0], *own]:
            ann.use_extractor(model)
            scores.append(ann.count(classes))
        assert [score.receipt.charged["score"] for score in scores] == [1, 0, 1, 1, 0, 0]
        assert np.array_equal(scores[0].counts, scores[1].counts)
        assert [score.counts is None for score in scores] == [False] * 4 + [True] * 2
        bob.use_extractor(own[4])
        assert bob.count(classes).counts is None
    finding = audit(tmp_path / "ledger.sqlite")
    assert (finding.problems, finding.charged) == ([], {"0/score": 3})
