"""Requests that wait for the teacher, and the one thread that takes them there, batch by batch.

Of a job a caller may learn whether it waits or runs, and how many of its own queries are answered;
progress over private rows would tell how many there are. The order of answers, and so of the
ledger's entries, is a function of arrivals and of public numbers. Embedding takes turns that the
private rows decide. So it is apart: a turn of it comes between two steps of answers, and decides
nothing about which answer is next.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...wall.errors import InvalidInput, LedgerMismatch, Refused, TeacherFailed
from ...wall.matrices import Matrix
from ...wall.messages import Answers, ExtractorSpec, Queries, join_answers
from ...wall.wire import result_to_json
from ..ledger.ledger import Ledger
from ..teacher import Teacher
from .callers import Shared
from .replies import refused
from .usage import ChargedCall, OverCap, Snapshot, Usage

HALF = 32  # hex digits of half a job's identity
MAX_FINISHED = 64  # finished jobs that can still be asked for
TURN = 1.0  # seconds of embedding between two steps of answers
SLICE = 10  # turns of one embedding before another one has its own
MAX_STEPS = 32  # batches under one extractor while jobs under another wait
NO_ROWS = np.zeros((0, 0))
QUERIES = "labels"  # the kind of job that asks queries
Result = dict[str, Any]


@dataclass(eq=False, repr=False)
class Job:
    """A request in the queue: queries, or ``work``, which is one step and returns a result.

    Queries are answered batch by batch, with other jobs in between.

    ``id``: a half names caller and content, the other the call, so a retried call finds its job.
    ``done`` of ``total``: the request's own distinct queries; for other work 0 of 1 until done.
    ``from_custodian``: a change of the records, which no analyst may notice.
    ``embeds``: the work waits until all records have features; ``turns``: of that so far.
    ``rows``: the distinct inputs; ``inverse``: int64 [n_asked], each asked row's index there;
    ``quota``: cap on the caller's new queries.
    """

    id: str
    caller: str
    kind: str
    total: int = 1
    extractor: ExtractorSpec | None = None
    size: int = 0
    slot: int = 0
    from_custodian: bool = False
    embeds: bool = False
    turns: int = 0
    done: int = 0
    started: bool = False
    future: Future[Result | Refused] = field(default_factory=Future)
    work: Callable[[], Result] = dict
    rows: np.ndarray = field(default_factory=lambda: NO_ROWS)
    inverse: np.ndarray = field(default_factory=lambda: NO_ROWS)
    quota: int | None = None
    answers: list[Answers] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.future.set_running_or_notify_cancel()  # a client that disconnects cancels nothing
        self.needs = self.extractor.sha256() if self.extractor else ""

    @property
    def status(self) -> str:
        if self.future.done():
            return "failed" if isinstance(self.future.result(), Refused) else "done"
        return "running" if self.started else "queued"

    def finish(self, outcome: Result | Refused) -> None:
        """End the job and drop its inputs: finished jobs are kept for a while."""
        self.done = self.done if isinstance(outcome, Refused) else self.total
        self.future.set_result(outcome)
        self.extractor, self.work, self.rows, self.answers = None, dict, NO_ROWS, []

    def next_batch(self, size: int) -> Queries:
        return Queries(self.rows[self.done : self.done + size], self.slot)

    def result(self) -> Result:
        """All answers, in the order of the request."""
        joined = join_answers(self.answers)
        receipt = replace(joined.receipt, asked=len(self.inverse))
        labels, outcomes = joined.labels[self.inverse], joined.outcomes[self.inverse]
        return result_to_json(Answers(labels, outcomes, receipt))


class RequestQueue:
    """The queue of requests before a teacher, and the thread that works through it.

    ``guard``: raises LedgerMismatch where another process may use the ledger's directory.

    No reply to an analyst depends on whether the custodian changed the records: those requests take
    no analyst's room in the queue or among the finished jobs, go first, and do not count where the
    order of other requests is decided.
    """

    def __init__(
        self, teacher: Teacher, ledger: Ledger, shared: Shared, guard: Callable[[], None]
    ) -> None:
        self._teacher, self._ledger, self._shared = teacher, ledger, shared
        self._settings, self._guard = shared.settings, guard
        self.usage = Usage(ledger)
        self._pending: list[Job] = []  # in the order of arrival
        self._jobs: dict[tuple[str, str], Job] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._in_use = ""  # identity of the teacher's extractor
        self._answering, self._steps = "", 0  # extractor of the last answers, and their steps
        self._turns: dict[str, int] = {}  # caller -> number of the last step of its answers
        self._embeds_next = False
        self.at_work: tuple[str, int, int] | None = None  # (what, done, total) of rows. Private
        self.snapshot = Snapshot.of(ledger.state)
        self._thread = threading.Thread(target=self._run, name="writer")
        self.start = self._thread.start

    def close(self) -> None:
        """Finish the current step, refuse what waits, stop. Nothing that waits was charged."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            left, self._pending = self._pending, []
        for job in left:
            job.finish(refused("shutting_down"))

    @property
    def waiting(self) -> int:
        return len(self._pending)

    def submit(self, job: Job) -> Job:
        """Queue a job, or return that of the same call, if it waits or is done and asked something.

        Raises Refused when the queue is full or the service stops.
        """
        with self._changed:
            repeatable = not (job.from_custodian or job.embeds)
            earlier = self._jobs.get((job.caller, job.id))
            if earlier is not None and (
                not earlier.future.done() or (repeatable and earlier.status == "done")
            ):
                return earlier
            if self._closing:
                raise refused("shutting_down")
            self._require_room(job)
            self._forget_finished(job.from_custodian)
            self._jobs.pop((job.caller, job.id), None)
            self._jobs[job.caller, job.id] = job  # the newest is the last
            self._pending.append(job)
            self._changed.notify_all()
        return job

    def _require_room(self, job: Job) -> None:
        """Raise Refused where the queue is full and the caller has an equal part of it.

        At most twice the limits are ever used. Analysts and custodians have limits of their own.
        """
        max_jobs, max_bytes = self._shared.max_jobs, self._settings.body_room
        peers = [other for other in self._pending if other.from_custodian == job.from_custodian]
        mine = [other for other in peers if other.caller == job.caller]
        callers = len({other.caller for other in peers} | {job.caller})
        size, my_size = (sum(other.size for other in each) + job.size for each in (peers, mine))
        full = len(peers) >= max_jobs and len(mine) >= max(1, max_jobs // callers)
        crowded = bool(peers) and size > max_bytes and my_size > max_bytes // callers
        if full or crowded:
            raise refused("busy")

    def find(self, caller: str, identity: str) -> Job:
        """A caller's own job. Raises Refused where it is unknown or forgotten."""
        with self._changed:
            job = self._jobs.get((caller, identity))
        if job is None:
            raise refused("unknown_job")
        return job

    def progress(self, what: str, done: int, total: int) -> None:
        """The teacher's progress over private rows: passed to the custodian, never to a job."""
        self.at_work = (what, done, total) if done < total else None
        self._settings.progress(what, done, total)

    def forget_extractor(self) -> None:
        """Make the next step set the teacher's extractor again. For the machine's thread."""
        self._in_use = ""

    def _forget_finished(self, from_custodian: bool) -> None:
        """Make room for one more job by forgetting the oldest finished ones."""
        alike = [key for key, job in self._jobs.items() if job.from_custodian == from_custodian]
        finished = [key for key in alike if self._jobs[key].future.done()]
        for key in finished[: max(0, len(finished) - MAX_FINISHED + 1)]:
            del self._jobs[key]

    def _run(self) -> None:
        with suppress(Exception):  # the first step reports it
            self._settings.load()
        while jobs := self._next():
            for job in jobs:
                job.started = True
            self._shared.machine.submit(self._step, jobs).result()
        with suppress(Exception):  # what is not stored is computed again
            self._teacher.pause()

    def _next(self) -> list[Job]:
        """The next step's jobs: one task, or queries of one batch. Empty when the service stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            if self._closing:
                return []
            if changes := [job for job in self._pending if job.from_custodian]:
                return changes[:1]
            embeddings = [job for job in self._pending if job.embeds]
            answers = self._answerable()
            if embeddings and (self._embeds_next or not answers):
                self._embeds_next = False
                # A new one first, since its features may be there; then by slices.
                return [min(embeddings, key=lambda job: -(-job.turns // SLICE))]
            self._embeds_next = True
            return self._next_answers(answers)

    def _answerable(self) -> list[Job]:
        """The jobs to answer: of calls with one content the first, whose charge serves the rest."""
        answers: dict[str, Job] = {}
        for job in self._pending:
            if not job.embeds:
                answers.setdefault(job.id[:HALF], job)
        return list(answers.values())

    def _next_answers(self, answers: list[Job]) -> list[Job]:
        """The jobs of one step, of those that may be answered (in the order of arrival)."""
        # Do not switch the extractor at every other batch.
        same = [job for job in answers if job.needs == self._answering and self._steps < MAX_STEPS]
        # The turn of whoever had one longest ago; then in the order of arrival.
        head = min(same or answers, key=lambda job: self._turns.get(job.caller, 0))
        self._turns[head.caller] = max(self._turns.values(), default=0) + 1
        self._steps = 1 + (self._steps if head.needs == self._answering else 0)
        self._answering = head.needs
        chosen = [head]
        if head.kind != QUERIES:
            return chosen
        alone = self._teacher.whole(head.slot)
        room = 0 if alone else self._settings.batch_size - len(head.rows) + head.done
        for job in answers:
            alike = (job.kind, job.slot, job.needs) == (QUERIES, head.slot, head.needs)
            if room > 0 and alike and job is not head:
                chosen.append(job)
                room -= job.total - job.done
        return chosen

    def _step(self, jobs: list[Job]) -> None:
        before, job = self._ledger.written, jobs[0]
        try:
            self._guard()
            self._settings.load()
            if job.kind == QUERIES:
                self._answer(jobs)
            elif not job.embeds or self._embedded(job):
                self._use(job)
                self._finish(job, job.work())
        except Exception as error:
            refusal = self._refusal(error)
            for each in jobs:
                if not each.future.done():
                    self._finish(each, refusal)
        grown = (self._ledger.written - before) // len(jobs)
        for each in jobs:
            self._shared.growth.spend(each.caller, grown)
        if self.at_work is not None:  # it has ended, finished or not
            self.progress(self.at_work[0], self.at_work[2], self.at_work[2])
        self._take_snapshot()

    def _embedded(self, job: Job) -> bool:
        """Embed records for one turn. Whether all have features."""
        assert job.extractor is not None
        job.turns += 1
        over = time.monotonic() + TURN
        return self._teacher.embed_ahead(
            job.extractor, lambda: self._closing or time.monotonic() > over
        )

    def _use(self, job: Job) -> None:
        if job.extractor is not None and self._in_use != job.needs:
            self._in_use = ""
            self._teacher.use_extractor(job.extractor)
            self._in_use = job.needs

    def _answer(self, jobs: list[Job]) -> None:
        """Answer one batch for all who fit their caps; the others are refused."""
        self._use(jobs[0])
        for job in jobs:  # the whole job has to fit, before its first charge
            if job.quota is not None and not job.answers:
                whole = self._call(job.caller, job.next_batch(len(job.rows)), job.quota)
                if whole.exceeds(self.usage.charged):
                    self._finish(job, refused("quota_reached"))
        while jobs := [job for job in jobs if not job.future.done()]:
            alone = self._teacher.whole(jobs[0].slot)
            room = len(jobs[0].rows) if alone else self._settings.batch_size
            batch, calls = [], []
            for job in jobs:
                batch.append(job.next_batch(room))
                room -= len(batch[-1].inputs)
                calls.append(self._call(job.caller, batch[-1], job.quota))
            try:
                with self.usage.noted(calls):
                    answers = self._teacher.answer_together(batch)
            except OverCap as error:  # the caller was charged for another request meanwhile
                for position in error.positions:
                    self._finish(jobs[position], error)
                continue
            for job, answer in zip(jobs, answers, strict=True):
                job.answers.append(answer)
                job.done += len(answer.labels)
                if job.done == job.total:
                    self._finish(job, job.result())
            return

    def _call(self, caller: str, asked: Queries | Matrix, quota: int | None) -> ChargedCall:
        new = self._teacher.chargeable(asked)
        return ChargedCall(caller, asked.slot, new, self.snapshot.position, quota)

    def count(self, caller: str, matrix: Matrix, quota: int | None) -> Result:
        """Noisy counts by a public matrix: the work of a job, on the machine's thread."""
        with self.usage.noted([self._call(caller, matrix, quota)]):
            return result_to_json(self._teacher.count(matrix))

    def _finish(self, job: Job, outcome: Result | Refused) -> None:
        self._take_snapshot()  # before the caller can ask what is left
        with self._changed:
            if job in self._pending:
                self._pending.remove(job)
            job.finish(outcome)

    def _refusal(self, error: Exception) -> Refused:
        """The error that a caller may see: its own mistake, or a constant."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, InvalidInput):
            return Refused("invalid_input", str(error))
        self.forget_extractor()  # the teacher may have failed halfway
        if not isinstance(error, TeacherFailed | LedgerMismatch):
            self._shared.report()
        return refused("ledger_refused" if isinstance(error, LedgerMismatch) else "teacher_failed")

    def _take_snapshot(self) -> None:
        """Note the state. It is unknown after a failed transaction, until the next one reads it."""
        if self._ledger.state.plan is not None:
            self.snapshot = Snapshot.of(self._ledger.state)
