"""The run folder: a run's results on the public side, complete round by round.

Nothing private enters it.
"""

import itertools
import json
import os
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...teacher.accounting.plan import Plan
from ...teacher.ledger.state import LedgerState
from ...wall.errors import InvalidInput, LabelwallError
from ...wall.files import reading, write_arrays, write_file
from ...wall.messages import ExtractorSpec
from ...wall.wire import SAFETENSORS, decode_extractor, encode_extractor
from ..config.config import Config
from ..config.groups import Computing
from ..config.settings import load_config
from .results import PeriodResult, RoundResult, Summary, read, write

METRICS, TRAINING_LABELS = "metrics.json", "training_labels.npy"  # files of a round's folder
CLASSIFIER = "linear.safetensors"
PROBABILITIES = "probabilities.npy"  # float32 [n, c], in the order of the answers
FEATURES, COUNTED = "features.safetensors", "counted.safetensors"
# What may change between a run and its resumption.
NOT_IDENTITY = {"teacher", *(entry.name for entry in fields(Computing))}
NOT_IDENTITY |= {"expected_records"}  # which decides nothing once a method is chosen


class RunFolder:
    """Paths, and what lies there.

    Rounds are counted from 1. One is finished once its metrics.json exists, which is written last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"  # resolved
        self.ledger = path / "ledger.sqlite"
        self.left_out = path / "left_out.json"  # of several custodians
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

    def round(self, number: int) -> Path:
        folder = self.path / f"round_{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def results(self, rounds: int) -> list[RoundResult]:
        """What the finished rounds of the first ``rounds`` came to, in order."""
        files = [self.path / f"round_{number}" / METRICS for number in range(1, rounds + 1)]
        return [read(RoundResult, file) for file in itertools.takewhile(Path.exists, files)]

    def save_result(self, number: int, result: RoundResult) -> None:
        """Store what a round came to, which finishes it."""
        write(result, self.round(number) / METRICS)

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

    def save_answers(
        self, number: int, rows: np.ndarray, labels: np.ndarray, outcomes: np.ndarray
    ) -> None:
        """Store released answers.

        ``rows``: int64 [n], positions in the public pool; ``labels``: int64 [n], or [n, c] for
        attributes; ``outcomes``: uint8 [n].
        """
        path = self.round(number) / "answers.npz"
        write_arrays(path, rows=rows, labels=labels, outcomes=outcomes)

    def load_answers(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        with reading(path := self.round(number) / "answers.npz"), np.load(path) as stored:
            return stored["rows"], stored["labels"], stored["outcomes"]

    def save_student(self, number: int, spec: ExtractorSpec, labels: np.ndarray) -> None:
        """Store a round's student, and the ``labels`` that it is trained on, int64 [n_public], or
        [n, c].
        """
        write_file(self.round(number) / "student.safetensors", encode_extractor(spec))
        write_arrays(self.round(number) / TRAINING_LABELS, labels)

    def load_extractor(self, number: int) -> ExtractorSpec:
        return _extractor(self.round(number) / "student.safetensors")

    def extractor(self, file: str) -> ExtractorSpec:
        """The extractor in a file of the run folder."""
        return _extractor(self.path / file)

    def features(self, file: str, build: Callable[[], ExtractorSpec]) -> ExtractorSpec:
        """The extractor in a file of the run folder, which is built once: a resumed run asks with
        the same one, to the last bit.
        """
        path = self.path / file
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_file(path, encode_extractor(build()))
        return _extractor(path)


def _extractor(path: Path) -> ExtractorSpec:
    with reading(path):
        return decode_extractor(path.read_bytes(), SAFETENSORS, path.stat().st_size)


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
