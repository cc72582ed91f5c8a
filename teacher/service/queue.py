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
from dataclasses import dataclass, replace

import numpy as np

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.service.fair_lock import FairLock
from labelwall.teacher.service.jobs import (
    Extractor,
    Job,
    QueryJob,
    RepeatJob,
    Result,
    TaskJob,
    refused,
    repeat_result,
)
from labelwall.teacher.service.usage import Call, Usage
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput, LedgerMismatch, Refused, TeacherFailed
from labelwall.wall.matrix import Matrix
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.progress import Progress, quiet
from labelwall.wall.wire import result_to_json

MAX_FINISHED = 64  # finished jobs that can still be asked for
TURN = 1.0  # seconds of embedding before others have their turn
MAX_ROW_SECONDS = 0.25  # that a received network may take for one row
MAX_STEPS = 32  # batches under one extractor while jobs under another wait


@dataclass(frozen=True)
class Snapshot:
    """The ledger's public counts after the last step, for readers in other threads.

    ``spent``, ``remaining``: releases by (slot, release).
    """

    position: int
    head: str
    spent: dict[tuple[int, str], int]
    remaining: dict[tuple[int, str], int]


class RequestQueue:
    """The queue of requests before a teacher, and the thread that works through it.

    ``probe``: PUBLIC rows of the custodian on which received networks are tested. Callers have no
    influence on them.
    ``batch_size``: queries of one step, gathered from all callers.
    ``max_jobs``, ``max_bytes``: limits on queued jobs and their bytes, separate for analysts' and
    for the custodian's requests. Beyond them a caller may still use an equal part, so that nobody
    fills the queue alone; at most twice the limits are ever used.
    ``report``: records an unexpected failure (its traceback) for the custodian only.
    ``lock``: shared with other queues; only one of them works at a time.
    ``watch``: receives the teacher's progress, for the custodian only.
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
        batch_size: int,
        max_jobs: int,
        max_bytes: int,
        report: Callable[[], None],
        lock: FairLock,
        watch: Progress = quiet,
        grown: Callable[[str, int], None] = lambda *_: None,
    ) -> None:
        self._teacher, self._ledger = teacher, ledger
        self._probe, self._batch_size = probe, batch_size
        self._max_jobs, self._max_bytes = max_jobs, max_bytes
        self._report, self._lock, self._watch, self._grown = report, lock, watch, grown
        self.usage = Usage(ledger)
        self._pending: deque[Job] = deque()
        self._jobs: dict[tuple[str, str], Job] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._extractor = ""  # identity of the one in use
        self._steps = 0  # under it
        self._turns: dict[str, int] = {}  # caller -> number of the last turn
        self._testing = threading.Lock()
        self._tested_by: set[str] = set()  # callers whose networks are being tested
        self.at_work: tuple[str, int, int] | None = None  # (what, done, total) of rows. Private
        self._independent: dict[tuple[str, tuple[int, ...]], bool] = {}
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
            self._require_room(job, repeated=original is not None)
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

    def _require_room(self, job: Job, repeated: bool) -> None:
        """Raise Refused where the queue is full and the caller has an equal part of it."""
        peers = [other for other in self._pending if other.from_custodian == job.from_custodian]
        if not job.from_custodian:
            repeats = (other for other in self._jobs.values() if isinstance(other, RepeatJob))
            peers += [other for other in repeats if not other.future.done()]
        mine = [other for other in peers if other.caller == job.caller]
        callers = len({other.caller for other in peers} | {job.caller})
        if len(peers) >= self._max_jobs and len(mine) >= max(1, self._max_jobs // callers):
            raise refused("busy")
        size, my_size = (sum(other.size for other in each) + job.size for each in (peers, mine))
        crowded = bool(peers) and size > self._max_bytes
        if not repeated and crowded and my_size > self._max_bytes // callers:
            raise refused("busy")

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
        """Make the teacher use an extractor.

        A network is tested with its own weights and, since a caller could choose weights that
        behave well on known rows only, with fresh ones. If one test fails, rows run one by one.
        """
        if self._extractor != extractor.sha256:
            self._extractor = ""
            self._teacher.use_extractor(extractor.spec, probe=self._probe_for(extractor.spec))
            self._extractor, self._steps = extractor.sha256, 0

    def test(self, spec: ExtractorSpec, caller: str) -> None:
        """Build a received network and test it on public rows, besides the writer's work.

        Networks are tested one by one, and one at a time of each caller. Raises InvalidInput for a
        network that does not fit or is too slow, Refused for a second one.
        """
        if spec.backbone in ("hog", "raw", "box"):
            return
        with self._changed:
            if caller in self._tested_by:
                raise refused("busy")
            self._tested_by.add(caller)
        try:
            with self._testing:
                self._require_fast(spec)
                self._teacher.embedder(spec, self._probe_for(spec))
        finally:
            with self._changed:
                self._tested_by.remove(caller)

    def _require_fast(self, spec: ExtractorSpec) -> None:
        """Time one row of zeros. It says nothing of private rows, nor of how many there are."""
        alone = self._teacher.embedder(spec, None)
        dtype = np.uint8 if len(spec.input_shape) == 3 else np.float32
        row, seconds = np.zeros((1, *spec.input_shape), dtype=dtype), list[float]()
        for _ in range(3):
            started = time.perf_counter()
            alone.features(row)
            seconds.append(time.perf_counter() - started)
        if min(seconds) > MAX_ROW_SECONDS:
            rule = f"a network that takes at most {MAX_ROW_SECONDS} seconds for a row"
            raise InvalidInput("extractor.backbone", rule, spec.backbone)

    def _probe_for(self, spec: ExtractorSpec) -> np.ndarray | None:
        """The rows to test an extractor on; None for a network that runs row by row."""
        return self._probe if self._rows_independent(spec) else None

    def _rows_independent(self, spec: ExtractorSpec) -> bool:
        """Whether the architecture with fresh weights embeds rows independently in batches."""
        if spec.backbone in ("hog", "raw", "box") or self._probe is None:
            return False
        architecture = spec.backbone, spec.input_shape
        if architecture not in self._independent:
            from labelwall.wall.networks.architectures import build, to_safetensors  # torch

            fresh = build(spec.backbone, input_shape=spec.input_shape, num_classes=spec.num_classes)
            tested = self._teacher.embedder(
                replace(spec, weights=to_safetensors(fresh)), self._probe
            )
            self._independent[architecture] = tested.batch_size == self._batch_size
        return self._independent[architecture]

    def _forget_finished(self, from_custodian: bool) -> None:
        finished = [
            key
            for key, job in self._jobs.items()
            if job.future.done() and job.from_custodian == from_custodian
        ]
        for key in finished[: max(0, len(finished) - MAX_FINISHED + 1)]:
            del self._jobs[key]

    def _run(self) -> None:
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
            self._probe_for(extractor.spec),
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
        batch, calls = [], []
        for job in jobs:
            queries = job.next_batch(room)
            room -= len(queries.inputs)
            batch.append(queries)
        for job, queries in zip(jobs, batch, strict=True):
            new = self._teacher.chargeable(queries)
            job.reserved = max(0, job.reserved - new)
            calls.append((Call(job.caller, job.slot, new, self.snapshot.position), job.quota))
        asked = []
        for job, queries, allowed in zip(jobs, batch, self.usage.note(calls), strict=True):
            if allowed:
                asked.append((job, queries))
            else:  # another process charged the same caller since the job was admitted
                self._finish(job, refused("quota_reached"))
        replies = self._teacher.answer_together([queries for _, queries in asked]) if asked else []
        for (job, _), answers in zip(asked, replies, strict=True):
            job.add_answers(answers)
            if job.done == len(job.rows):
                self._finish(job, result_to_json(job.all_answers()))
            else:
                with self._changed:
                    self._pending.remove(job)
                    self._pending.append(job)

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
        call = Call(caller, matrix.slot, new, self.snapshot.position)
        if self._exceeds(caller, new, quota) or not all(self.usage.note([(call, quota)])):
            raise refused("quota_reached")
        return result_to_json(self._teacher.count(matrix))

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
        if state.plan is None:  # unknown after a failed transaction, until the next one reads it
            return self.snapshot
        slots = enumerate(state.plan.slots)
        keys = [(slot, release.name) for slot, entry in slots for release in entry.releases]
        return Snapshot(
            state.seq,
            state.head,
            spent={key: state.spent.get(key, 0) for key in keys},
            remaining={key: state.remaining(*key) for key in keys},
        )
