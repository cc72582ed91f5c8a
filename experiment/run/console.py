"""Lines and progress on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID

QUIET_FOR = 3.0  # seconds of a task before it is shown at all
EVERY = 5.0  # seconds between two lines about a task, where there is no terminal


class Console:
    """Lines and one progress bar. ``progress`` has the callback's signature (what, done, total)."""

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console as RichConsole

        self._console = RichConsole(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self.interactive = self._console.is_terminal and not quiet
        self._quiet = quiet
        self._bars: Progress | None = None
        self._bar: tuple[str, TaskID] | None = None  # what the bar shows
        self._task = ""  # what was reported last, since when, and when a line was last written
        self._began = self._written = 0.0
        self._state = (0, 1)  # done and total of the task
        self._lock = threading.Lock()
        self._ticking = False

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False)

    def show(self, made: RenderableType) -> None:
        """Print a table or another object of rich."""
        self._console.print(made)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` units of ``what`` are finished, and the time left.

        The bar disappears when all are, or for another ``what``. Without a terminal there is a
        line every few seconds, also while nothing is reported.
        """
        if self._quiet:
            return
        if self.interactive:
            self._draw(what, done, total)
            return
        with self._lock:
            now, self._state = time.monotonic(), (done, total)
            if what != self._task:
                self._task, self._began, self._written = what, now, now - EVERY + QUIET_FOR
            if done >= total:
                self._task = ""
            else:
                self._write_if_due(now)
                self._tick()

    def _write_if_due(self, now: float) -> None:
        if now - self._written >= EVERY:
            (done, total), self._written = self._state, now
            left = _left(now - self._began, done, total)
            self.say(f"{self._task}: {done} of {total}{left}")

    def _tick(self) -> None:
        """Begin to write lines, until the task is done, while it reports nothing itself."""

        def write() -> None:
            while True:
                time.sleep(1.0)
                with self._lock:
                    if not self._task:
                        self._ticking = False
                        return
                    self._write_if_due(time.monotonic())

        if not self._ticking:
            self._ticking = True
            threading.Thread(target=write, daemon=True).start()

    def _draw(self, what: str, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = self._start()
        if self._bar is not None and self._bar[0] != what:
            self._bars.remove_task(self._bar[1])
            self._bar = None
        if self._bar is None:
            self._bar = what, self._bars.add_task(what, total=total)
        self._bars.update(self._bar[1], completed=done, total=total)
        if done >= total:
            self._bars.stop()
            self._bars = self._bar = None

    def _start(self) -> Progress:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(elapsed_when_finished=True),
        )
        bars = progress.Progress(*columns, console=self._console, transient=True)
        bars.start()
        return bars


def _left(seconds: float, done: int, total: int) -> str:
    """The time left at the pace of the first ``seconds``, for a reader."""
    if not done:
        return ""
    left = seconds * (total - done) / done
    return f", about {left / 60:.0f} min left" if left >= 90 else f", about {left:.0f} s left"
