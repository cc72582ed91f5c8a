"""The one writer: a single thread takes waiting requests to the teacher, batch by batch.

No request holds a lock while the teacher searches, and none reaches a record in any other way.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import numpy as np

from ...wall.errors import InvalidInput, LedgerMismatch, Refused, TeacherFailed
from ...wall.matrices import Matrix
from ...wall.messages import Answers, Queries
from ...wall.progress import Progress, no_progress
from ...wall.wire import result_to_json
from ..ledger.ledger import Ledger
from ..teacher import Teacher
from .fair_lock import FairLock
from .jobs import (
    Extractor,
    Job,
    QueryJob,
    RepeatJob,
    Result,
    TaskJob,
    refused,
    repeat_result,
)
from .network_tests import NetworkTests
from .room import Room
from .snapshot import Snapshot
from .usage import Call, OverCap, Usage

MAX_FINISHED = 64  # finished jobs that can still be asked for
TURN = 1.0  # seconds of embedding before others have their turn
MAX_STEPS = 32  # batches under one extractor while jobs under another wait


class RequestQueue:
    """The queue of requests before a teacher, and the thread that works through it.

    ``probe``: PUBLIC rows of the custodian on which received networks are tested.
    ``batch_size``: queries of one step, gathered from all callers.
    ``room``: limits on queued jobs.
    ``report``: records an unexpected failure (its traceback) for the custodian only.
    ``lock``: shared with other queues; only one of them works at a time.
    ``watch``: receives the teacher's progress, for the custodian only.
    ``load``: loads what steps need and requests do not, at the writer's start.
    ``grown(caller, size)``: hears by how many bytes of entries a caller let the ledger grow.

    No reply to an analyst depends on whether the custodian changed the records: those requests take
    no analyst's room in the queue or among the finished jobs, and do not count where the order of
    other requests is decided.
    """

    def __init__(
        self,
        teacher: Teacher,
        ledger: Ledger,
        *,
        probe: np.ndarray | None,
        load: Callable[[], None],
        batch_size: int,
        room: Room,
        report: Callable[[], None],
        lock: FairLock,
        watch: Progress = no_progress,
        grown: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._teacher, self._ledger = teacher, ledger
        self._batch_size, self._load = batch_size, load
        self._room = room
        self._report, self._lock, self._watch, self._grown = report, lock, watch, grown
        self.usage = Usage(ledger)
        self._pending: deque[Job] = deque()
        self._jobs: dict[tuple[str, str], Job] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._extractor = ""  # identity of the one in use
        self._steps = 0  # under it
        self._turns: dict[str, int] = {}  # caller -> number of the last turn
        self.networks = NetworkTests(teacher, probe, batch_size, load)
        self.at_work: tuple[str, int, int] | None = None  # (what, done, total) of rows. Private
        self.snapshot = self._take_snapshot()
        self._thread = threading.Thread(target=self._run, name="writer")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finish the current step, refuse what waits, stop. Nothing that waits was charged."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            left, self._pending = self._pending, deque()
        for job in left:
            job.finish(refused("shutting_down"))

    @property
    def waiting(self) -> int:
        """The number of jobs in the queue."""
        return len(self._pending)

    def submit(self, job: Job, repeatable: bool = True) -> Job:
        """Queue a job, or return the job of the same call.

        That one is returned while it waits, and also after it was done if its result is
        ``repeatable``. If another call of the caller asks, or asked, for the same content, the job
        becomes a RepeatJob of that one: it takes neither a turn nor a part of the caller's cap.

        Raises Refused when the queue is full or the service stops.
        """
        with self._changed:
            known = self._jobs.get((job.caller, job.id))
            if known is not None and (
                known.status != "failed" and (repeatable or not known.future.done())
            ):
                return known
            if self._closing:
                raise refused("shutting_down")
            original = self._original(job)
            self._room.require(job, self._pending, self._jobs.values(), original is not None)
            self._forget_finished(job.from_custodian)
            if original is not None:
                job = self._repeat(job, original)
            else:
                self._pending.append(job)
            self._jobs.pop((job.caller, job.id), None)  # so that the newest comes last
            self._jobs[job.caller, job.id] = job
            self._changed.notify_all()
        return job

    def _original(self, job: Job) -> Job | None:
        """The job of the same caller that is charged for the same content, unless it failed."""
        if not job.content:
            return None
        for other in self._jobs.values():
            same = (other.caller, other.content) == (job.caller, job.content)
            if same and not isinstance(other, RepeatJob) and other.status != "failed":
                return other
        return None

    def _repeat(self, job: Job, original: Job) -> RepeatJob:
        """A job that ends when ``original`` does, or now. It keeps none of the request's inputs."""
        repeat = RepeatJob(
            job.id, job.caller, job.kind, original.total, content=job.content, slot=job.slot
        )

        def end(done: Future[Result]) -> None:
            error = done.exception()
            repeat.finish(
                error if isinstance(error, Refused) else self._again(original, done.result())
            )

        original.future.add_done_callback(end)
        return repeat

    def _again(self, original: Job, result: Result) -> Result:
        """The original's result with a receipt that charges nothing."""
        receipt, now = result["receipt"], self.snapshot
        if now.position < receipt["ledger_position"]:  # the original's last step is still running
            entry = receipt["ledger_position"], receipt["ledger_head"]
            return repeat_result(result, original.total, receipt["left"], entry)
        left = {release: now.remaining[original.slot, release] for release in receipt["left"]}
        return repeat_result(result, original.total, left, (now.position, now.head))

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
        self._watch(what, done, total)

    def _end_progress(self) -> None:
        """Report the end of the current work, finished or not."""
        if self.at_work is not None:
            what, _, total = self.at_work
            self.progress(what, total, total)

    def forget_extractor(self) -> None:
        """Make the next query set the teacher's extractor again. The caller holds the lock."""
        self._extractor = ""
        self._end_progress()

    def _use(self, extractor: Extractor) -> None:
        """Make the teacher use an extractor."""
        if self._extractor != extractor.sha256:
            self._extractor = ""
            self._teacher.use_extractor(
                extractor.spec, probe=self.networks.probe_for(extractor.spec)
            )
            self._extractor, self._steps = extractor.sha256, 0

    def _forget_finished(self, from_custodian: bool) -> None:
        finished = [
            key
            for key, job in self._jobs.items()
            if job.future.done() and job.from_custodian == from_custodian
        ]
        for key in finished[: max(0, len(finished) - MAX_FINISHED + 1)]:
            del self._jobs[key]

    def _run(self) -> None:
        with suppress(Exception):  # the first step reports it
            self._load()
        while jobs := self._next():
            for job in jobs:
                job.started = True
            with self._lock:
                self._step(jobs)
        with suppress(Exception):  # what is not stored is computed again
            self._teacher.pause()

    def _step(self, jobs: list[Job]) -> None:
        before = self._ledger.written
        try:
            self._load()
            if not self._embedded(jobs[0].extractor):
                self._postpone(jobs)
            elif isinstance(jobs[0], QueryJob):
                self._answer([job for job in jobs if isinstance(job, QueryJob)])
            else:
                self._do(jobs[0])
        except Exception as error:
            refusal = self._refusal(error)
            for job in jobs:
                if not job.future.done():
                    self._finish(job, refusal)
        for job in jobs:
            self._grown(job.caller, (self._ledger.written - before) // len(jobs))
        self._end_progress()
        self.snapshot = self._take_snapshot()

    def _embedded(self, extractor: Extractor | None) -> bool:
        """Embed records for one turn. Whether a step under the extractor can be taken."""
        if extractor is None or extractor.sha256 == self._extractor:
            return True
        over = time.monotonic() + TURN
        return self._teacher.embed_ahead(
            extractor.spec,
            self.networks.probe_for(extractor.spec),
            lambda: self._closing or time.monotonic() > over,
        )

    def _postpone(self, jobs: list[Job]) -> None:
        """Let the jobs of others go first."""
        with self._changed:
            for job in jobs:
                if job in self._pending:
                    self._pending.remove(job)
                self._pending.append(job)

    def _next(self) -> list[Job]:
        """The next step's jobs: one task, or queries of one batch. Empty when the service stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            if self._closing:
                return []
            waiting = list(self._pending)
            if self._steps < MAX_STEPS:  # do not switch the extractor at every other batch
                ready = [
                    job
                    for job in waiting
                    if job.extractor is None or job.extractor.sha256 == self._extractor
                ]
                waiting = ready or waiting
            # The turn of whoever had one longest ago; then in the order of arrival.
            head = min(waiting, key=lambda job: self._turns.get(job.caller, 0))
            self._turns[head.caller] = max(self._turns.values(), default=0) + 1
            self._steps += not head.from_custodian
            if not isinstance(head, QueryJob):
                self._pending.remove(head)
                return [head]
            if head.single_batch:
                return [head]
            chosen: list[Job] = []
            rows = 0
            for job in [head, *self._pending]:
                if (
                    isinstance(job, QueryJob)
                    and job not in chosen
                    and job.can_batch_with(head)
                    and rows < self._batch_size
                ):
                    chosen.append(job)
                    rows += len(job.rows) - job.done
            return chosen

    def _do(self, job: Job) -> None:
        assert isinstance(job, TaskJob)
        if job.extractor is not None:
            self._use(job.extractor)
        self._finish(job, job.work())

    def _answer(self, jobs: list[QueryJob]) -> None:
        """Answer one batch for all of them. Unfinished jobs go to the end of the queue."""
        assert jobs[0].extractor is not None
        self._use(jobs[0].extractor)
        jobs = [job for job in jobs if self._admit(job)]
        room = len(jobs[0].rows) if jobs and jobs[0].single_batch else self._batch_size
        asked: list[tuple[QueryJob, Queries, Call]] = []
        for job in jobs:
            queries = job.next_batch(room)
            room -= len(queries.inputs)
            new = self._teacher.chargeable(queries)
            job.reserved = max(0, job.reserved - new)
            asked.append((job, queries, self._call(job.caller, job.slot, new)))
        for job, answers in self._charged(asked) if asked else ():
            job.add_answers(answers)
            if job.done == len(job.rows):
                self._finish(job, result_to_json(job.all_answers()))
            else:
                with self._changed:
                    self._pending.remove(job)
                    self._pending.append(job)

    def _charged(
        self, asked: list[tuple[QueryJob, Queries, Call]]
    ) -> list[tuple[QueryJob, Answers]]:
        """Answers to those that fit their caps; the others are refused, uncharged."""
        jobs, batch, calls = zip(*asked, strict=True)
        try:
            with self.usage.noted([(c, job.quota) for job, c in zip(jobs, calls, strict=True)]):
                return list(zip(jobs, self._teacher.answer_together(batch), strict=True))
        except OverCap as error:  # another process charged a caller since its job was admitted
            for position in error.positions:
                self._finish(jobs[position], refused("quota_reached"))
            left = [each for i, each in enumerate(asked) if i not in error.positions]
            return self._charged(left) if left else []

    def _call(self, caller: str, slot: int, new: int) -> Call:
        return Call(caller, slot, new, self.snapshot.position)

    def _admit(self, job: QueryJob) -> bool:
        """Whether the whole job fits the caller's quota. Decided before its first charge."""
        if job.quota is None or job.answers:
            return True
        new = self._teacher.chargeable(job.next_batch(len(job.rows)))
        if self._exceeds(job.caller, new, job.quota):
            self._finish(job, refused("quota_reached"))
            return False
        job.reserved = new
        return True

    def _exceeds(self, caller: str, new: int, quota: int | None) -> bool:
        with self._changed:
            reserved = sum(
                job.reserved
                for job in self._pending
                if isinstance(job, QueryJob) and job.caller == caller
            )
        return quota is not None and self.usage.charged[caller] + reserved + new > quota

    def count(self, caller: str, matrix: Matrix, quota: int | None) -> Result:
        """Noisy counts by a public matrix: the work of a task, on the writer's thread."""
        new = self._teacher.chargeable(matrix)
        if self._exceeds(caller, new, quota):
            raise refused("quota_reached")
        try:
            with self.usage.noted([(self._call(caller, matrix.slot, new), quota)]):
                return result_to_json(self._teacher.count(matrix))
        except OverCap as error:
            raise refused("quota_reached") from error

    def _finish(self, job: Job, outcome: Result | Refused) -> None:
        self.snapshot = self._take_snapshot()  # before the caller can ask what is left
        with self._changed:
            if job in self._pending:
                self._pending.remove(job)
            job.finish(outcome)

    def _refusal(self, error: Exception) -> Refused:
        """What a caller may learn about a failure: its own mistake, or a constant."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, InvalidInput):
            return Refused("invalid_input", str(error))
        self.forget_extractor()  # the teacher may have failed halfway
        if not isinstance(error, TeacherFailed | LedgerMismatch):
            self._report()
        return refused("ledger_refused" if isinstance(error, LedgerMismatch) else "teacher_failed")

    def _take_snapshot(self) -> Snapshot:
        state = self._ledger.state
        # Unknown after a failed transaction, until the next one reads it.
        return self.snapshot if state.plan is None else Snapshot.of(state)
