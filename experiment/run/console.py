"""Lines and progress bars on stderr; the bars on a terminal alone."""

from __future__ import annotations

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)


class Console:
    """Lines and one progress bar. ``progress`` has the callback's signature (what, done, total)."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = RichConsole(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self.interactive = self._console.is_terminal and not quiet
        self._bars: Progress | None = None
        self._bar: tuple[str, TaskID] | None = None  # what the bar shows

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False)

    def progress(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` units of ``what`` are finished.

        The bar disappears when all are, or for another ``what``.
        """
        if not self.interactive:
            return
        if self._bars is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=self._console, transient=True)
            self._bars.start()
        if self._bar is not None and self._bar[0] != what:
            self._bars.remove_task(self._bar[1])
            self._bar = None
        if self._bar is None:
            self._bar = what, self._bars.add_task(what, total=total)
        self._bars.update(self._bar[1], completed=done, total=total)
        if done >= total:
            self._bars.stop()
            self._bars = self._bar = None
