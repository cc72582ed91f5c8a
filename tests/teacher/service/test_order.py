"""The order of the ledger's entries is a function of arrivals, and counts no private row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.features import cache
from labelwall.teacher.records.sources import Records
from labelwall.teacher.service import queue as queue_module
from labelwall.teacher.service.queue import EmbeddingJob, Job, RequestQueue
from tests import ledgers
from tests.teacher.service.test_transcript import CLASSES, DIMENSIONS, vectors
from tests.teacher.service.transcript import BATCH, Conversation, conversation


def order_of_answers(
    folder: Path, n: int, monkeypatch: pytest.MonkeyPatch, gone: bool = False
) -> list[list[str]]:
    """The queries of each release in the ledger, where embedding has a turn for 16 of n rows.

    While an extractor is embedded, bob asks ten batches under another one, and ann a few under
    two: the features of these are kept, or ``gone``, as after a damage of the custodian's disk.
    """
    monkeypatch.setattr(cache, "block_rows", lambda _: BATCH)
    monkeypatch.setattr(queue_module, "TURN", 0.0)
    for polls in ("look", "glance"):
        monkeypatch.setattr(Conversation, polls, lambda _: None)
    case, rng = vectors("naive_knn"), np.random.default_rng(4)
    queries = rng.normal(size=(14 * BATCH, DIMENSIONS)).astype(np.float32)
    x = rng.normal(size=(n, DIMENSIONS)).astype(np.float32)
    records = Records(x, np.arange(n) % CLASSES, np.arange(n))
    other = replace(case.spec, scale=2.0)
    with conversation(folder, case, records, monkeypatch) as talk:
        talk.made.service.shared.max_jobs = 99
        talk.prepare(case.spec, other)
        if gone:
            for path in folder.glob("embeddings-*"):
                path.unlink()
        talk.put("ann", case.embedder)
        talk.ask("bob", queries[: 10 * BATCH])
        talk.ask("ann", queries[10 * BATCH : 12 * BATCH], spec=other)
        talk.ask("ann", queries[12 * BATCH :])
        talk.drain()
        releases = ledgers.contents(folder / "ledger.sqlite", "release")
    return [list(release["results"]) for release in releases]


@pytest.mark.parametrize("gone", [False, True], ids=["features kept", "features gone"])
def test_the_order_of_entries_counts_no_turns_of_embedding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    orders = [order_of_answers(tmp_path / str(n), n, monkeypatch, gone) for n in (64, 65, 81)]
    assert len(orders[0]) == 14
    assert orders[1:] == [orders[0]] * 2


def test_a_service_that_counts_turns_of_embedding_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose extractor is embedded waits, so others' answers count its turns."""
    answerable = RequestQueue._answerable

    def waiting(self: RequestQueue) -> list[Job]:
        embedding = {job.caller for job in self._pending if isinstance(job, EmbeddingJob)}
        return [job for job in answerable(self) if job.caller not in embedding]

    monkeypatch.setattr(RequestQueue, "_answerable", waiting)
    first, second = (order_of_answers(tmp_path / str(n), n, monkeypatch) for n in (64, 81))
    assert first != second
