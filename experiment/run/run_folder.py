"""The run folder: a run's results on the public side, complete round by round.

Nothing private enters it.
"""

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ...student.results import read, write
from ...student.round_files import RoundFiles
from ...teacher.accounting.plan import Plan
from ...teacher.ledger.state import LedgerState
from ...wall.computing import Computing
from ...wall.errors import InvalidInput, LabelwallError
from ..config.config import Config
from ..config.settings import load_config
from .summary import PeriodResult, Summary

# What may change between a run and its resumption.
NOT_IDENTITY = {"teacher", *(entry.name for entry in fields(Computing))}
NOT_IDENTITY |= {"expected_records"}  # once a method is chosen it decides whether a run stops


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

    def save_summary(self, summary: Summary) -> None:
        """Store what the run came to."""
        write(summary, self.summary)

    def finished(self) -> Summary | None:
        """What the run came to; None where it has not finished its first period."""
        return read(Summary, self.summary) if self.summary.exists() else None

    def periods(self) -> tuple[PeriodResult, ...]:
        """What each finished period came to."""
        return summary.periods if (summary := self.finished()) else ()

    def ledger_state(self) -> LedgerState:
        from ...teacher.ledger.ledger import Ledger  # takes half a second

        return Ledger(self.ledger).state

    def plan(self) -> Plan:
        """The plan that it fixed before its first release."""
        plan = self.ledger_state().plan
        assert plan is not None
        return plan


def resumed(config: Config, folder: RunFolder) -> Config:
    """With the method and the numbers that the folder records, where ``config`` leaves them open.

    Before the run began, only those of the same other settings. Raises LabelwallError where another
    configuration is recorded.
    """
    if not folder.config.exists():
        return config
    known, begun = load_config(folder.config).solved(), folder.ledger.exists()
    chosen = config.chosen(known) if config.open else config
    chosen = chosen.recorded(known.plan())
    before, now = _json(known), _json(chosen)
    differing = [name for name in now if before[name] != now[name]]
    if differing and begun:
        raise LabelwallError(
            f"{folder.path} holds a run with other settings ({', '.join(differing)}). Choose "
            "another --run_dir. Budgets of the same private records add up."
        )
    same = not differing and known.expected_records == config.expected_records
    return chosen if begun or same else config


def _json(config: Config) -> dict[str, Any]:
    settings = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in settings.items() if name not in NOT_IDENTITY}
