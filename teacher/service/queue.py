"""The one writer. Requests wait here; a single thread takes them to the teacher, gathers what can be answered together, and
answers it together. No request holds a lock while the teacher searches, and none reaches a record in any other way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.service.fair_lock import Turns
from labelwall.teacher.service.jobs import (
    Ask,
    Extractor,
    Job,
    Repeat,
    Result,
    Task,
    failed,
    repeated,
)
from labelwall.teacher.service.usage import Call, Calls
from labelwall.teacher.teacher import Progress, Teacher, quiet
from labelwall.wall.cells import Cells
from labelwall.wall.errors import InvalidInput, LedgerMismatch, Refused, TeacherFailed
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.wire import result_to_json

KEPT = 64  # finished jobs that can still be asked for
STEPS_BEFORE_A_SWITCH = 32  # batches under one extractor while jobs under another wait


@dataclass(frozen=True)
class Figures:
    """Public quantities after the last step, for readers in other threads. ``spent``, ``left``: by (slot, release)."""

    position: int
    head: str
    spent: dict[tuple[int, str], int]
    left: dict[tuple[int, str], int]


class Desk:
    """The queue before a teacher.

    ``probe``: PUBLIC rows of the custodian's own on which received networks are tested; a caller has no say in them.
    ``batch_size``: queries of a step, gathered from all callers. ``waiting``, ``room``: jobs, and their bytes, that may queue;
    the custodian's requests have as much for themselves. ``report``: hears of an unexpected failure (its traceback), for the
    custodian alone. ``turns``: shared with other desks, which do not work while this one does. ``watch``: hears what the
    teacher says while it works, for the custodian alone.

    Whether the custodian changed the records shows in no reply to an analyst: those requests take nobody's room in the queue
    or among the finished jobs, and do not count where the order of other requests is decided.
    """

    def __init__(
        self,
        teacher: Teacher,
        ledger: Ledger,
        *,
        probe: np.ndarray | None,
        batch_size: int,
        waiting: int,
        room: int,
        report: Callable[[], None],
        turns: Turns,
        watch: Progress = quiet,
    ) -> None:
        self._teacher, self._ledger, self._probe, self._report = teacher, ledger, probe, report
        self._watch = watch
        self._batch_size, self._waiting, self._room, self._turns = batch_size, waiting, room, turns
        self.calls = Calls(ledger)
        self._queue: deque[Job] = deque()
        self._jobs: dict[tuple[str, str], Job] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._extractor, self._steps = "", 0
        self.at_work: tuple[str, int, int] | None = (
            None  # (what, done, total). Private: of the rows
        )
        self._independent: dict[tuple[str, tuple[int, ...]], bool] = {}
        self.figures = self._figures()
        self._thread = threading.Thread(target=self._run, name="writer")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finish the step at work, refuse what waits, stop. Nothing that waits was charged."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        for job in self._queue:
            job.finish(failed("shutting_down"))

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, job: Job, repeatable: bool = True) -> Job:
        """Put a job into the queue, or find the one of the same call: while it waits, or, where its result is
        ``repeatable``, after it was done. Where another call asks, or asked, for the same content, the job becomes that one's
        Repeat, and takes neither a turn nor a place of the caller's cap.

        Raises Refused when the queue is full or the service stops.
        """
        with self._changed:
            known = self._jobs.get((job.caller, job.id))
            if known is not None and (
                known.status != "failed" and (repeatable or not known.future.done())
            ):
                return known
            if self._closing:
                raise failed("shutting_down")
            beside = [waits for waits in self._queue if waits.of_custodian == job.of_custodian]
            repeats = 0 if job.of_custodian else self._repeats()
            if len(beside) + repeats >= self._waiting:
                raise failed("busy")
            first = self._first(job)
            held = sum(waits.size for waits in beside)
            if first is None and beside and held + job.size > self._room:
                raise failed("busy")
            self._forget(job.of_custodian)
            if first is not None:
                job = self._repeat(job, first)
            else:
                self._queue.append(job)
            self._jobs.pop((job.caller, job.id), None)  # so that the newest stands last
            self._jobs[job.caller, job.id] = job
            self._changed.notify_all()
        return job

    def _first(self, job: Job) -> Job | None:
        """The job of the same caller and content that is charged for it, None where there is none, or it failed."""
        alike = (
            other
            for other in self._jobs.values()
            if job.content and (other.caller, other.content) == (job.caller, job.content)
        )
        return next(
            (
                other
                for other in alike
                if not isinstance(other, Repeat) and other.status != "failed"
            ),
            None,
        )

    def _repeats(self) -> int:
        """How many calls wait for another one's result."""
        return sum(isinstance(job, Repeat) and not job.future.done() for job in self._jobs.values())

    def _repeat(self, job: Job, first: Job) -> Repeat:
        """A job that ends when ``first`` does, or at once; of its own it holds no more than its name."""
        repeat = Repeat(
            job.id, job.caller, job.kind, first.total, content=job.content, slot=job.slot
        )

        def end(done: Future[Result]) -> None:
            refusal = done.exception()
            repeat.finish(
                refusal if isinstance(refusal, Refused) else self._known(first, done.result())
            )

        first.future.add_done_callback(end)
        return repeat

    def _known(self, first: Job, result: Result) -> Result:
        """The result of a call that asks what ``first`` asked, with a receipt that charges nothing."""
        receipt, now = result["receipt"], self.figures
        if (
            now.position < receipt["ledger_position"]
        ):  # the step that ends the first call is not over
            place = receipt["ledger_position"], receipt["ledger_head"]
            return repeated(result, first.total, receipt["left"], place)
        left = {release: now.left[first.slot, release] for release in receipt["left"]}
        return repeated(result, first.total, left, (now.position, now.head))

    def find(self, caller: str, identity: str) -> Job:
        """A caller's own job. Raises Refused where there is none, or none any more."""
        with self._changed:
            job = self._jobs.get((caller, identity))
        if job is None:
            raise failed("unknown_job")
        return job

    def progress(self, what: str, done: int, total: int) -> None:
        """What the teacher says while it works. Shares of private rows: the custodian hears of them, and no job does."""
        self.at_work = (what, done, total) if done < total else None
        self._watch(what, done, total)

    def _rest(self) -> None:
        """Nothing is at work any more, whether or not it was finished."""
        if self.at_work is not None:
            what, _, total = self.at_work
            self.progress(what, total, total)

    def start_anew(self) -> None:
        """The teacher lost its extractor; the next question lets it take one in again. For the desk whose turn it is."""
        self._extractor = ""
        self._rest()

    def _use(self, extractor: Extractor) -> None:
        """Let the teacher use an extractor. A network is tested by its own weights and, since a caller could choose weights that
        sleep on known rows, by fresh ones; where one test fails it runs one row at a time."""
        if self._extractor != extractor.sha256:
            self._extractor = ""
            self._teacher.use_extractor(
                extractor.spec, probe=self._probe if self._slots_alike(extractor.spec) else None
            )
            self._extractor, self._steps = extractor.sha256, 0

    def _slots_alike(self, spec: ExtractorSpec) -> bool:
        if spec.backbone in ("hog", "raw", "box") or self._probe is None:
            return False
        place = spec.backbone, spec.input_shape
        if place not in self._independent:
            from labelwall.wall.networks.architectures import (
                build,
                to_safetensors,
            )  # torch

            fresh = build(spec.backbone, input_shape=spec.input_shape, num_classes=spec.num_classes)
            tested = self._teacher.embedder(
                replace(spec, weights=to_safetensors(fresh)), self._probe
            )
            self._independent[place] = tested.batch_size == self._batch_size
        return self._independent[place]

    def _forget(self, of_custodian: bool) -> None:
        finished = [
            key
            for key, job in self._jobs.items()
            if job.future.done() and job.of_custodian == of_custodian
        ]
        for key in finished[: max(0, len(finished) - KEPT + 1)]:
            del self._jobs[key]

    def _run(self) -> None:
        while jobs := self._next():
            for job in jobs:
                job.started = True
            with self._turns.turn():
                self._step(jobs)

    def _step(self, jobs: list[Job]) -> None:
        try:
            if isinstance(jobs[0], Ask):
                self._answer([job for job in jobs if isinstance(job, Ask)])
            else:
                self._do(jobs[0])
        except Exception as error:
            refusal = self._refusal(error)
            for job in jobs:
                if not job.future.done():
                    self._finish(job, refusal)
        self._rest()
        self.figures = self._figures()

    def _next(self) -> list[Job]:
        """The jobs of the next step, none when the service stops: one task, or queries that one batch can answer."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if self._closing:
                return []
            head = self._queue[0]
            if (
                self._steps < STEPS_BEFORE_A_SWITCH
            ):  # an extractor is not changed for every other batch
                ready = (
                    job
                    for job in self._queue
                    if job.extractor is None or job.extractor.sha256 == self._extractor
                )
                head = next(ready, head)
            self._steps += not head.of_custodian
            if not isinstance(head, Ask):
                self._queue.remove(head)
                return [head]
            if head.whole:
                return [head]
            chosen: list[Job] = []
            rows = 0
            for job in [head, *self._queue]:
                if (
                    isinstance(job, Ask)
                    and job not in chosen
                    and job.alike(head)
                    and rows < self._batch_size
                ):
                    chosen.append(job)
                    rows += len(job.rows) - job.done
            return chosen

    def _do(self, job: Job) -> None:
        assert isinstance(job, Task)
        if job.extractor is not None:
            self._use(job.extractor)
        self._finish(job, job.work())

    def _answer(self, asks: list[Ask]) -> None:
        """One batch for all of them. A job that is not finished goes to the end of the queue."""
        assert asks[0].extractor is not None
        self._use(asks[0].extractor)
        asks = [ask for ask in asks if self._admitted(ask)]
        batch, room = [], len(asks[0].rows) if asks and asks[0].whole else self._batch_size
        for ask in asks:
            batch.append(ask.next_batch(room))
            room -= len(batch[-1].inputs)
        noted = []
        for ask, queries in zip(asks, batch, strict=True):
            new = self._teacher.chargeable(queries)
            ask.pledged = max(0, ask.pledged - new)
            noted.append((Call(ask.caller, ask.slot, new, self.figures.position), ask.quota))
        asked = []
        for ask, queries, may in zip(asks, batch, self.calls.note(noted), strict=True):
            if may:
                asked.append((ask, queries))
            else:  # another process charged the same caller since the job was admitted
                self._finish(ask, failed("quota_reached"))
        replies = self._teacher.answer_together([queries for _, queries in asked]) if asked else []
        for (ask, _), answers in zip(asked, replies, strict=True):
            ask.take(answers)
            if ask.done == len(ask.rows):
                self._finish(ask, result_to_json(ask.answered()))
            else:
                with self._changed:
                    self._queue.remove(ask)
                    self._queue.append(ask)

    def _admitted(self, ask: Ask) -> bool:
        """Whether the caller may be charged for all of a job; asked when it starts, before anything of it is charged."""
        if ask.quota is None or ask.answers:
            return True
        new = self._teacher.chargeable(ask.next_batch(len(ask.rows)))
        if self._over(ask.caller, new, ask.quota):
            self._finish(ask, failed("quota_reached"))
            return False
        ask.pledged = new
        return True

    def _over(self, caller: str, new: int, quota: int | None) -> bool:
        with self._changed:
            pledged = sum(
                job.pledged for job in self._queue if isinstance(job, Ask) and job.caller == caller
            )
        return quota is not None and self.calls.charged[caller] + pledged + new > quota

    def count(self, caller: str, cells: Cells, quota: int | None) -> Result:
        """The work of a task: noisy counts in public cells. On the writer's thread, with the extractor in use."""
        new = self._teacher.chargeable(cells)
        if self._over(caller, new, quota):
            raise failed("quota_reached")
        if not all(
            self.calls.note([(Call(caller, cells.slot, new, self.figures.position), quota)])
        ):
            raise failed("quota_reached")
        return result_to_json(self._teacher.count(cells))

    def _finish(self, job: Job, outcome: Result | Refused) -> None:
        with self._changed:
            if job in self._queue:
                self._queue.remove(job)
            job.finish(outcome)

    def _refusal(self, error: Exception) -> Refused:
        """What a caller may know of a failure: its own mistake, or a constant."""
        if isinstance(error, Refused):
            return error
        if isinstance(error, InvalidInput):
            return Refused("invalid_input", str(error))
        self.start_anew()  # whatever it was in the middle of
        if not isinstance(error, TeacherFailed | LedgerMismatch):
            self._report()
        return failed("ledger_refused" if isinstance(error, LedgerMismatch) else "teacher_failed")

    def _figures(self) -> Figures:
        state = self._ledger.state
        if (
            state.plan is None
        ):  # a transaction failed: nothing is known until the next one reads the file again
            return self.figures
        releases = [
            (slot, release.name)
            for slot, entry in enumerate(state.plan.slots)
            for release in entry.releases
        ]
        left = {key: state.remaining(*key) for key in releases}
        return Figures(
            state.seq, state.head, {key: state.spent.get(key, 0) for key in releases}, left
        )
