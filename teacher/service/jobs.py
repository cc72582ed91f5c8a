"""Jobs that wait for the teacher, one per request. A job ends with a result or a refusal.

Until then a caller may learn whether its job waits or runs, and how many of its own queries are
answered. Nothing else: the teacher's progress over private rows would reveal how many there are,
and whether one was added since the last time.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...wall.errors import Refused
from ...wall.messages import Answers, ExtractorSpec, Queries, canonical_json, join_answers

Result = dict[str, Any]
HALF = 32  # hex digits of a job's identity that name its caller and content


@dataclass(frozen=True, eq=False)
class Extractor:
    """A received extractor and its identity, which is hashed once."""

    spec: ExtractorSpec
    sha256: str


@dataclass(eq=False)
class Job:
    """A request in the queue, whose ``work`` is one step and returns what is released.

    ``id``: from ``job_id``, so that a retried call finds its job.
    ``slot``: the entry of the plan that pays.
    ``done`` of ``total``: the request's own distinct queries; for other work 0 of 1 until done.
    ``extractor``: the features that the work needs, None if it needs none.
    ``size``: bytes.
    ``from_custodian``: a change of the records, which no analyst may notice.
    ``repeatable``: the same call gets this result again; otherwise the work is done again.
    """

    id: str
    caller: str
    kind: str
    total: int = 1
    extractor: Extractor | None = None
    size: int = 0
    slot: int = 0
    from_custodian: bool = False
    repeatable: bool = True
    done: int = 0
    started: bool = False
    future: Future[Result] = field(default_factory=Future, repr=False)
    work: Callable[[], Result] = field(default=dict, repr=False)

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # a client that disconnects cancels nothing

    @property
    def status(self) -> str:
        if self.future.done():
            return "failed" if self.future.exception() else "done"
        return "running" if self.started else "queued"

    @property
    def content(self) -> str:
        """The part of the identity that names caller and content."""
        return self.id[:HALF]

    @property
    def needs(self) -> str:
        """Identity of the extractor that the work needs, empty if it needs none."""
        return "" if self.extractor is None else self.extractor.sha256

    def finish(self, outcome: Result | Refused) -> None:
        """End the job and drop its inputs: finished jobs are kept for a while."""
        if isinstance(outcome, Refused):
            self.future.set_exception(outcome)
        else:
            self.done = self.total
            self.future.set_result(outcome)
        self.extractor, self.work = None, dict


@dataclass(eq=False)
class EmbeddingJob(Job):
    """``work`` that waits until all records have features. ``turns``: of embedding, so far.

    It writes nothing in the ledger, so its turns, which the private rows decide, are no turns of
    answers.
    """

    repeatable: bool = False
    turns: int = 0


@dataclass(eq=False)
class QueryJob(Job):
    """Queries answered batch by batch, with other jobs in between.

    ``rows``: the distinct inputs in order.
    ``inverse``: int64 [n_asked], each asked row's index in ``rows``.
    ``single_batch``: answered as one batch of its own.
    ``quota``: cap on all new queries charged to the caller.
    ``reserved``: the part of the quota that the rest of this job may still use.
    """

    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), dtype=np.float32), repr=False)
    inverse: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    single_batch: bool = False
    quota: int | None = None
    reserved: int = 0
    answers: list[Answers] = field(default_factory=list, repr=False)

    def finish(self, outcome: Result | Refused) -> None:
        super().finish(outcome)
        self.rows, self.answers = self.rows[:0].copy(), []

    def can_batch_with(self, other: QueryJob) -> bool:
        """Whether one batch can answer both jobs."""
        return not self.single_batch and (other.slot, other.needs) == (self.slot, self.needs)

    def next_batch(self, size: int) -> Queries:
        """The next at most ``size`` distinct queries."""
        return Queries(self.rows[self.done : self.done + size], self.slot)

    def add_answers(self, answers: Answers) -> None:
        """Store the answers to the queries of ``next_batch``."""
        self.answers.append(answers)
        self.done += len(answers.labels)

    def all_answers(self) -> Answers:
        """All answers, in the order of the request."""
        joined = join_answers(self.answers)
        receipt = replace(joined.receipt, asked=len(self.inverse))
        return Answers(joined.labels[self.inverse], joined.outcomes[self.inverse], receipt)


def distinct_rows(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct rows by their bytes, in order of appearance; int64 [n] index of each row there)."""
    known: dict[bytes, int] = {}
    places, inverse = list[int](), list[int]()
    for place, row in enumerate(inputs):
        number = known.setdefault(row.tobytes(), len(known))
        inverse.append(number)
        if number == len(places):
            places.append(place)
    return inputs[places], np.array(inverse, dtype=np.int64)


def job_id(
    caller: str, kind: str, parameters: dict[str, object], body: bytes, call: str | None = ""
) -> str:
    """The identity of a request (64 hex digits): a half for caller and content, one for the call.

    ``call``: the name that the caller gave to it, None for a new call.
    """
    content = hashlib.sha256(canonical_json([caller, kind, parameters]) + b"\0" + body).hexdigest()
    named = secrets.token_hex(HALF) if call is None else call
    return content[:HALF] + hashlib.sha256(named.encode()).hexdigest()[:HALF]
