"""What waits for the teacher: one job a request. It ends with a result or a refusal.

Until then a caller may know of a job whether it waits, whether it is at work, and how many of its own queries are answered.
Nothing else: how far the teacher is with private rows tells how many there are, and whether one came since the last time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labelwall.wall.errors import Refused
from labelwall.wall.messages import Answers, ExtractorSpec, Queries, Receipt, canonical_json, joined

Result = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Extractor:
    """A received extractor and its identity, which is hashed once."""

    spec: ExtractorSpec
    sha256: str


@dataclass(eq=False)
class Job:
    """A request in the queue.

    ``id``: a function of who asks for what in which call, so that a call that is tried again finds its
    job. ``content``: a function of who asks for what, empty for work that has no receipt. ``slot``: which
    entry of the plan pays for it. ``done`` of ``total``: the request's own distinct queries; 0 of 1 for
    other work until it is done. ``extractor``: the features that the work needs, None for work that needs
    none. ``size``: bytes. ``of_custodian``: a change of the records, which no analyst may notice.
    """

    id: str
    caller: str
    kind: str
    total: int
    extractor: Extractor | None = None
    size: int = 0
    content: str = ""
    slot: int = 0
    of_custodian: bool = False
    done: int = 0
    started: bool = False
    future: Future[Result] = field(default_factory=Future, repr=False)

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # a client that goes away cancels nothing

    @property
    def status(self) -> str:
        if self.future.done():
            return "failed" if self.future.exception() else "done"
        return "running" if self.started else "queued"

    def finish(self, outcome: Result | Refused) -> None:
        """The end of a job. What it was made of is dropped: a finished job may be kept for a while."""
        if isinstance(outcome, Refused):
            self.future.set_exception(outcome)
        else:
            self.done = self.total
            self.future.set_result(outcome)
        self.extractor = None


@dataclass(eq=False)
class Repeat(Job):
    """A call for what the same caller asks in another one. It gets that one's result, and is charged nothing."""


@dataclass(eq=False)
class Task(Job):
    """Work that is done in one step. ``work`` gets the job and returns what is released."""

    work: Callable[[], Result] = field(default=dict, repr=False)

    def finish(self, outcome: Result | Refused) -> None:
        super().finish(outcome)
        self.work = dict


@dataclass(eq=False)
class Ask(Job):
    """Queries that are answered batch by batch, between which other jobs have their turn.

    ``rows``: the distinct inputs in order; ``place``: int64 [n_asked], where each asked row stands among them. ``quota``: at most
    so many new queries in all may be charged to the caller. ``pledged``: of these, what the rest of this job may still take.
    ``whole``: answered as one batch, alone.
    """

    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 1), dtype=np.float32), repr=False)
    place: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    whole: bool = False
    quota: int | None = None
    pledged: int = 0
    answers: list[Answers] = field(default_factory=list, repr=False)

    def finish(self, outcome: Result | Refused) -> None:
        super().finish(outcome)
        self.rows, self.answers = self.rows[:0].copy(), []

    def alike(self, other: Job) -> bool:
        """Whether one batch can answer both."""
        same = (
            isinstance(other, Ask)
            and not self.whole
            and other.slot == self.slot
            and other.extractor is not None
            and self.extractor is not None
        )
        return same and other.extractor.sha256 == self.extractor.sha256  # type: ignore[union-attr]

    def next_batch(self, size: int) -> Queries:
        """The next at most ``size`` distinct queries."""
        return Queries(self.rows[self.done : self.done + size], self.slot)

    def take(self, answers: Answers) -> None:
        """Answers to what ``next_batch`` gave."""
        self.answers.append(answers)
        self.done += len(answers.labels)

    def answered(self) -> Answers:
        """All answers, in the order of the request."""
        whole = joined(self.answers)
        receipt = Receipt(**{**vars(whole.receipt), "asked": len(self.place)})
        return Answers(whole.labels[self.place], whole.outcomes[self.place], receipt)


def distinct(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct rows in order of their first appearance, int64 [n] places of all rows among them), equal by their bytes."""
    known: dict[bytes, int] = {}
    place = np.array(
        [known.setdefault(row.tobytes(), len(known)) for row in inputs], dtype=np.int64
    )
    first = np.full(len(known), -1)
    first[place[::-1]] = np.arange(len(inputs))[::-1]
    return inputs[first], place


def repeated(result: Result, queries: int, left: dict[str, int], place: tuple[int, str]) -> Result:
    """The result of a call that repeats one of ``queries`` distinct queries, all of which are known by now.

    ``left``: by release, and ``place``: the ledger's last entry and its hash; both as of now.
    """
    receipt = {**result["receipt"], "served": queries, "reused": 0, "left": left}
    receipt["charged"] = dict.fromkeys(receipt["charged"], 0)
    receipt["ledger_position"], receipt["ledger_head"] = place
    return {**result, "receipt": receipt}


def job_id(caller: str, kind: str, parameters: dict[str, object], body: bytes) -> str:
    """SHA-256 (hex) of who asks for what."""
    return hashlib.sha256(canonical_json([caller, kind, parameters]) + b"\0" + body).hexdigest()


def failed(code: str) -> Refused:
    """The constants that a caller sees when work fails; what happened stays with the custodian."""
    return Refused(code, TEXTS[code])


TEXTS = {
    "teacher_failed": "the teacher could not complete the request; what was charged stays charged. Ask again.",
    "ledger_refused": "the ledger can not be read or written, so nothing more is released. Tell the custodian.",
    "shutting_down": "the service is shutting down. Ask again soon.",
    "busy": "too many requests wait for the teacher. Ask again soon.",
    "too_fast": "this key sends more requests than it may. Ask again soon.",
    "quota_reached": "the request asks more new queries than this key may still be charged for. Nothing was charged.",
    "unauthorized": "a valid API key must be sent as `Authorization: Bearer KEY`.",
    "sign_in": "this page is for a custodian: give a custodian's API key as the password; the user name does not matter.",
    "another_site": "this is done by the buttons of the custodian's page, in a browser that says so (Sec-Fetch-Site).",
    "forbidden": "this key's role does not allow the request.",
    "unknown_job": "there is no such job of this key. Send the request again.",
    "unknown_extractor": "this extractor has to be sent first.",
    "too_large": "the body is larger than this service takes.",
    "not_found": "there is nothing at this address.",
    "invalid_request": "the request is not of a form that the service understands.",
}
