"""Lines and progress on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_FOR = 3.0  # seconds of a task before it is shown at all
EVERY = 30.0  # seconds between two lines about a task, if there is no terminal


class Console:
    """Lines and one progress bar. ``progress`` has the callback's signature (what, done, total).

    ``loggers``: of Lightning, which hear the public metrics of the students' trainings. ``json``:
    progress is a JSON object in a line, for other programs: task, done, total, seconds_left.
    """

    def __init__(
        self, quiet: bool = False, loggers: Sequence[Any] = (), json: bool = False
    ) -> None:
        from rich.console import Console as RichConsole

        self._console = RichConsole(stderr=True, highlight=False, soft_wrap=True)
        self.interactive = self._console.is_terminal and not quiet and not json
        self._quiet, self.loggers, self._json = quiet, loggers, json
        self.seconds: dict[str, float] = {}  # by part. They tell of private rows: never stored
        self._bar: Progress | None = None
        self._task = ""  # what was reported last, since when, and when a line was last written
        self._began = self._written = 0.0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Count what happens inside as a ``part`` of the run, but for the parts inside it."""
        began, before = time.monotonic(), sum(self.seconds.values())
        yield
        inside = sum(self.seconds.values()) - before
        self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - began - inside

    def say(self, text: str) -> None:
        if not self._quiet:  # rich would show an empty output in a notebook
            self.warn(text)

    def warn(self, text: str) -> None:
        """A line that is shown in any case."""
        self._console.print(text, markup=False)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` units of ``what`` are finished, and the time left.

        The bar disappears when all are, or for another ``what``. Without a terminal a report is a
        line every few seconds.
        """
        if self._quiet:
            return
        now = time.monotonic()
        if what != self._task:
            self._stop()
            self._task, self._began = what, now
            self._written = max(self._written, now - EVERY + QUIET_FOR)  # few lines of many tasks
        if self.interactive:
            self._bar = self._bar or self._start(what, total)
            self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        elif done < total and now - self._written >= EVERY:
            self._written, seconds = now, (now - self._began) * (total - done) / max(done, 1)
            minutes = f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
            left = f", about {minutes} left" if done else ""
            known = {"task": what, "done": done, "total": total}
            known["seconds_left"] = round(seconds) if done else None
            self.say(dumps(known) if self._json else f"{what}: {done} of {total}{left}")
        if done >= total:
            self._stop()

    def _start(self, what: str, total: int) -> Progress:
        from rich.progress import Progress

        bar = Progress(console=self._console, transient=True)
        bar.start()
        bar.add_task(what, total=total)
        return bar

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._task = None, ""
