"""Lines and progress on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from json import dumps
from typing import TYPE_CHECKING, Any

from .progress import Whole

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_FOR = 3.0  # seconds of a run, or of a task outside of one, before a line about it
EVERY = 30.0  # seconds between two lines, if there is no terminal


class Console:
    """Lines and one progress bar. ``progress`` has the callback's signature (what, done, total).

    ``loggers``: of Lightning, which hear the public metrics of the students' trainings. ``json``:
    progress is a JSON object in a line, for other programs: task, done, total, seconds_left, and
    of a whole run its share done (whole) and left_s.
    """

    def __init__(
        self, quiet: bool = False, loggers: Sequence[Any] = (), json: bool = False
    ) -> None:
        from rich.console import Console as RichConsole

        self._console = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self.interactive = self._console.is_terminal and not quiet and not json
        self._quiet, self.loggers, self._json = quiet, loggers, json
        self.seconds: dict[str, float] = {}  # by part. They tell of private rows: never stored
        self._whole: Whole | None = None
        self._bar: Progress | None = None
        self._task = ""  # what was reported last, since when, and when a line was last written
        self._began = self._written = 0.0

    @contextmanager
    def whole(self, expected: Mapping[str, float]) -> Iterator[None]:
        """Show what happens inside as one run: its parts in order, with their expected seconds."""
        self._whole, self._written = Whole(expected), time.monotonic() - EVERY + QUIET_FOR
        try:
            yield
        finally:
            self._stop()
            self._whole = None

    def expect(self, expected: Callable[[], Mapping[str, float]]) -> None:
        """Expect other seconds of the run's parts, now that more is known, if anybody looks."""
        if self._whole is not None and not self._quiet:
            self._whole.expected, self._whole.most = dict(expected()), 0.0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count what happens inside as a ``part`` of the run, but for the parts inside it."""
        began, before, whole = time.monotonic(), sum(self.seconds.values()), self._whole
        if whole is not None:
            outer, whole.part, whole.since = whole.part, part, began
            self.progress(part, 0, 1)
        yield
        inside = sum(self.seconds.values()) - before
        own = time.monotonic() - began - inside
        self.seconds[part] = self.seconds.get(part, 0.0) + own
        if whole is not None:
            whole.took[part.split(": ")[-1]] = own
            whole.ended.add(part)
            whole.part, whole.since = outer, time.monotonic()

    def say(self, text: str) -> None:
        if not self._quiet:  # rich would show an empty output in a notebook
            self.warn(text)

    def warn(self, text: str) -> None:
        """A line that is shown in any case."""
        self._console.print(text, markup=False)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` units of ``what`` are finished, and the time left: of the
        whole run, if there is one.

        A task's bar disappears when all are, or for another ``what``. Without a terminal a report
        is a line now and then.
        """
        if self._quiet:
            return
        now, whole = time.monotonic(), self._whole
        if what != self._task:
            if whole is None:
                self._stop()
                self._written = max(self._written, now - EVERY + QUIET_FOR)
            self._task, self._began = what, now
        left = (now - self._began) * (total - done) / done if done else None
        known: dict[str, Any] = {"task": what, "done": done, "total": total}
        known["seconds_left"] = None if left is None else round(left)
        text, share = f"{what}: {done} of {total}", done / max(total, 1)
        if whole is not None:
            share, left = whole.reached(now, left or 0.0)
            known |= {"whole": round(share, 3), "left_s": round(left)}
            what = whole.part or what
            text = f"{what}, {share:.0%} of the run"
        words = ""
        if left is not None:
            words = f"about {left:.0f} s left" if left < 90 else f"about {left / 60:.0f} min left"
        if self.interactive:
            self._bar = self._bar or self._start()
            bar = self._bar.task_ids[0]
            self._bar.update(bar, description=what, completed=share, total=1, left=words)
        elif (whole or done < total) and now - self._written >= EVERY:
            self._written = now
            self.say(dumps(known) if self._json else ", ".join(filter(None, (text, words))))
        if done >= total and whole is None:
            self._stop()

    def _start(self) -> Progress:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
        )
        bar.start()
        bar.add_task("", left="")
        return bar

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._task = None, ""
