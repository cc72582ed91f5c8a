"""The run folder: a run's results on the public side, complete round by round.

Nothing private enters it.
"""

import os
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from ...student.results import ShownRows, read
from ...student.round_files import BOARD, FEATURES, RoundFiles
from ...teacher.accounting.plan import Plan
from ...teacher.custody.recorded import read_state
from ...teacher.ledger.state import LedgerState
from ...wall.errors import InvalidInput, LabelwallError
from .summary import PeriodResult, Summary


class RunFolder(RoundFiles):
    """Paths, and what lies there."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.config = path / "config.yaml"  # resolved
        self.ledger = path / "ledger.sqlite"
        self.left_out = path / "left_out.json"  # of several custodians
        self.stopped = path / "stopped.json"  # rounds that showed no records
        self.summary = path / "summary.json"
        self.student = path / "student.safetensors"
        self.report = path / "report.html"
        self.card = path / "MODEL_CARD.md"
        self.shown = path / "shown.json"  # of public rows, in the report
        self.candidates = path / "candidates.json"  # among which `auto` chose

    def create(self) -> None:
        """Create the folder. Raises InvalidInput where it can not be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            writable = os.access(self.path, os.W_OK)
        except OSError:
            writable = False
        if not writable:
            raise InvalidInput("run_dir", "a folder that can be written", str(self.path))

    def hide_times(self) -> None:
        """Give all files and folders that the run wrote until now one time, which is now.

        The seconds between two sums depend on the number of private rows, and on which changed.
        """
        own = (path for path in vars(self).values() if isinstance(path, Path) and path.is_file())
        folders = f"round_* round_*/**/* {BOARD} {BOARD}/**/*"
        others = f"{folders} ledger*.sqlite {FEATURES}".split()
        found = (path for pattern in others for path in self.path.glob(pattern))
        now = time.time()
        for path in (*own, *found):
            with suppress(OSError):
                os.utime(path, (now, now), follow_symlinks=False)

    def shown_rows(self) -> ShownRows | None:
        """What a report shows of the public rows; None if that is missing or damaged."""
        with suppress(OSError, LabelwallError):
            return read(ShownRows, self.shown)
        return None

    def finished(self) -> Summary | None:
        """What the run came to; None where it has not finished its first period."""
        return read(Summary, self.summary) if self.summary.exists() else None

    def periods(self) -> tuple[PeriodResult, ...]:
        """What each finished period came to."""
        return summary.periods if (summary := self.finished()) else ()

    def ledger_state(self) -> LedgerState:
        """What the copy of the ledger adds up to."""
        return read_state(self.ledger)

    @cached_property
    def plan(self) -> Plan:
        """The plan that it fixed before its first release, which is read once."""
        plan = self.ledger_state().plan
        assert plan is not None
        return plan
