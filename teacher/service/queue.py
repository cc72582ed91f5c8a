"""The one writer: a single thread takes waiting requests to the teacher, batch by batch.

No request holds a lock while the teacher searches, and none reaches a record in any other way.

The order of answers, and so of the ledger's entries, is a function of arrivals and of public
numbers. Embedding takes turns that the private rows decide. So it is apart: a turn of it comes
between two steps of answers, and decides nothing about which answer is next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...wall.errors import InvalidInput, LedgerMismatch, Refused, TeacherFailed
from ...wall.matrices import Matrix
from ...wall.messages import Answers
from ...wall.wire import result_to_json
from ..ledger.ledger import Ledger
from ..teacher import Teacher
from .extractors import NetworkTests
from .jobs import EmbeddingJob, Extractor, Job, QueryJob, Result
from .limits import Shared
from .refusals import refused
from .usage import Call, OverCap, Snapshot, Usage

MAX_FINISHED = 64  # finished jobs that can still be asked for
TURN = 1.0  # seconds of embedding between two steps of answers
SLICE = 10  # turns of one embedding before another one has its own
MAX_STEPS = 32  # batches under one extractor while jobs under another wait


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
        self.networks = NetworkTests(teacher, shared.settings)
        self.usage = Usage(ledger)
        self._pending: list[Job] = []  # in the order of arrival
        self._jobs: dict[tuple[str, str], Job] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._in_use = ""  # identity of the teacher's extractor
        self._answering, self._steps = "", 0  # extractor of the last answers, and their steps
        self._turns: dict[str, int] = {}  # caller -> number of the last step of its answers
        self._embeds_next = False
        self._embedding: Job | None = None  # the one that was embedded for last
        self.at_work: tuple[str, int, int] | None = None  # (what, done, total) of rows. Private
        self.snapshot = Snapshot.of(ledger.state)
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
            left, self._pending = self._pending, []
        for job in left:
            job.finish(refused("shutting_down"))

    @property
    def waiting(self) -> int:
        """The number of jobs in the queue."""
        return len(self._pending)

    def submit(self, job: Job) -> Job:
        """Queue a job, or return the job of the same call.

        That one is returned while it waits, and also after it was done if it is repeatable. Raises
        Refused when the queue is full or the service stops.
        """
        with self._changed:
            known = self._jobs.get((job.caller, job.id))
            if known is not None and (
                known.status != "failed" and (job.repeatable or not known.future.done())
            ):
                return known
            if self._closing:
                raise refused("shutting_down")
            self._shared.require_room(job, self._pending)
            self._forget_finished(job.from_custodian)
            self._jobs.pop((job.caller, job.id), None)
            self._jobs[job.caller, job.id] = job  # the newest is the last
            self._pending.append(job)
            self._changed.notify_all()
        return job

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

    def _end_progress(self) -> None:
        """Report the end of the current work, finished or not."""
        if self.at_work is not None:
            what, _, total = self.at_work
            self.progress(what, total, total)

    def forget_extractor(self) -> None:
        """Make the next step set the teacher's extractor again. For the machine's thread."""
        self._in_use = ""
        self._end_progress()

    def _forget_finished(self, from_custodian: bool) -> None:
        """Make room for one more job by forgetting the oldest finished ones."""
        finished = [
            key
            for key, job in self._jobs.items()
            if job.future.done() and job.from_custodian == from_custodian
        ]
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
            changes = [job for job in self._pending if job.from_custodian]
            if changes:
                return changes[:1]
            embeddings = [job for job in self._pending if isinstance(job, EmbeddingJob)]
            answers = self._answerable()
            if embeddings and (self._embeds_next or not answers):
                self._embeds_next = False
                # A new one first, since its features may be there; then by slices.
                return [min(embeddings, key=lambda job: -(-job.turns // SLICE))]
            self._embeds_next = True
            return self._next_answers(answers)

    def _answerable(self) -> list[Job]:
        """The jobs to answer, but no call while one with its content waits: what that one is
        charged for, it gets for nothing.
        """
        answers: dict[str, Job] = {}
        for job in self._pending:
            if not isinstance(job, EmbeddingJob):
                answers.setdefault(job.content, job)
        return list(answers.values())

    def _next_answers(self, answers: list[Job]) -> list[Job]:
        """The jobs of one step, of those that may be answered (in the order of arrival)."""
        candidates = answers
        if self._steps < MAX_STEPS:  # do not switch the extractor at every other batch
            same = [job for job in answers if job.needs in ("", self._answering)]
            candidates = same or answers
        # The turn of whoever had one longest ago; then in the order of arrival.
        head = min(candidates, key=lambda job: self._turns.get(job.caller, 0))
        self._turns[head.caller] = max(self._turns.values(), default=0) + 1
        if head.needs not in ("", self._answering):
            self._answering, self._steps = head.needs, 0
        self._steps += 1
        if not isinstance(head, QueryJob):
            return [head]
        chosen: list[Job] = [head]
        rows = len(head.rows) - head.done
        for job in answers:
            if rows >= self._settings.batch_size:
                break
            if isinstance(job, QueryJob) and job is not head and job.can_batch_with(head):
                chosen.append(job)
                rows += len(job.rows) - job.done
        return chosen

    def _step(self, jobs: list[Job]) -> None:
        before, job = self._ledger.written, jobs[0]
        try:
            self._guard()
            self._settings.load()
            if isinstance(job, QueryJob):
                self._answer([each for each in jobs if isinstance(each, QueryJob)])
            elif not isinstance(job, EmbeddingJob) or self._embedded(job):
                if job.extractor is not None:
                    self._use(job.extractor)
                self._finish(job, job.work())
        except Exception as error:
            refusal = self._refusal(error)
            for each in jobs:
                if not each.future.done():
                    self._finish(each, refusal)
        grown = (self._ledger.written - before) // len(jobs)
        for each in jobs:
            self._shared.growth.spend(each.caller, grown)
        self._end_progress()
        self._take_snapshot()

    def _embedded(self, job: EmbeddingJob) -> bool:
        """Embed records for one turn. Whether all have features."""
        assert job.extractor is not None
        if self._embedding is not job:
            self._teacher.pause()  # stores what another one has
            self._embedding = job
        job.turns += 1
        over, spec = time.monotonic() + TURN, job.extractor.spec
        probe = self.networks.probe_for(spec)
        return self._teacher.embed_ahead(
            spec, probe, lambda: self._closing or time.monotonic() > over
        )

    def _use(self, extractor: Extractor) -> None:
        """Make the teacher use an extractor."""
        if self._in_use != extractor.sha256:
            self._in_use = ""
            probe = self.networks.probe_for(extractor.spec)
            self._teacher.use_extractor(extractor.spec, probe=probe)
            self._in_use = extractor.sha256

    def _answer(self, jobs: list[QueryJob]) -> None:
        """Answer one batch for all of them."""
        assert jobs[0].extractor is not None
        self._use(jobs[0].extractor)
        jobs = [job for job in jobs if self._admit(job)]
        for job, answers in self._charged(jobs):
            job.add_answers(answers)
            if job.done == len(job.rows):
                self._finish(job, result_to_json(job.all_answers()))

    def _admit(self, job: QueryJob) -> bool:
        """Whether the whole job fits the caller's quota. Decided before its first charge."""
        if job.quota is not None and not job.answers:
            new = self._teacher.chargeable(job.next_batch(len(job.rows)))
            if self._exceeds(job.caller, new, job.quota):
                self._finish(job, refused("quota_reached"))
                return False
            job.reserved = new
        return True

    def _charged(self, jobs: Sequence[QueryJob]) -> list[tuple[QueryJob, Answers]]:
        """One batch of answers to those that fit their caps; the others are refused, uncharged."""
        if not jobs:
            return []
        room = len(jobs[0].rows) if jobs[0].single_batch else self._settings.batch_size
        batch, calls = [], []
        for job in jobs:
            queries = job.next_batch(room)
            room -= len(queries.inputs)
            new = self._teacher.chargeable(queries)
            batch.append(queries)
            calls.append(Call(job.caller, job.slot, new, self.snapshot.position, job.quota))
        try:
            with self.usage.noted(calls):
                answers = self._teacher.answer_together(batch)
        except OverCap as error:  # another process charged a caller since its job was admitted
            for position in error.positions:
                self._finish(jobs[position], refused("quota_reached"))
            return self._charged([job for job in jobs if not job.future.done()])
        for job, call in zip(jobs, calls, strict=True):
            job.reserved = max(0, job.reserved - call.queries)
        return list(zip(jobs, answers, strict=True))

    def _exceeds(self, caller: str, new: int, quota: int | None) -> bool:
        with self._changed:
            queries = [job for job in self._pending if isinstance(job, QueryJob)]
        reserved = sum(job.reserved for job in queries if job.caller == caller)
        return quota is not None and self.usage.charged[caller] + reserved + new > quota

    def count(self, caller: str, matrix: Matrix, quota: int | None) -> Result:
        """Noisy counts by a public matrix: the work of a task, on the machine's thread."""
        new = self._teacher.chargeable(matrix)
        if self._exceeds(caller, new, quota):
            raise refused("quota_reached")
        try:
            with self.usage.noted([Call(caller, matrix.slot, new, self.snapshot.position, quota)]):
                return result_to_json(self._teacher.count(matrix))
        except OverCap as error:
            raise refused("quota_reached") from error

    def _finish(self, job: Job, outcome: Result | Refused) -> None:
        self._take_snapshot()  # before the caller can ask what is left
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
            self._shared.report()
        return refused("ledger_refused" if isinstance(error, LedgerMismatch) else "teacher_failed")

    def _take_snapshot(self) -> None:
        """Note the state. It is unknown after a failed transaction, until the next one reads it."""
        if self._ledger.state.plan is not None:
            self.snapshot = Snapshot.of(self._ledger.state)
