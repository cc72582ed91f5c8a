"""The run folder: a run's results on the public side, complete round by round.

Nothing private enters it.
"""

import io
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
from ...wall.files import whole
from ...wall.messages import ExtractorSpec
from ...wall.wire import SAFETENSORS, decode_extractor, encode_extractor
from ..config.config import Config
from ..config.groups import Computing
from ..config.settings import load_config

METRICS, TRAINING_LABELS = "metrics.json", "training_labels.npy"  # files of a round's folder
CLASSIFIER = "linear.safetensors"
PROBABILITIES = "probabilities.npy"  # float32 [n, c], in the order of the answers
FEATURES, COUNTED = "features.safetensors", "counted.safetensors"
# What may change between a run and its resumption.
NOT_IDENTITY = {"teacher", *(entry.name for entry in fields(Computing))}
NOT_IDENTITY |= {"expected_records"}  # once a method is chosen it decides whether a run stops


def write_file(path: Path, content: bytes | str) -> None:
    with whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_arrays(path: Path, array: np.ndarray | None = None, **named: Any) -> None:
    """Write an npy file of one array, or an npz file of ``named`` ones, atomically."""
    content = io.BytesIO()
    if array is None:
        np.savez(content, **named)
    else:
        np.save(content, array)
    write_file(path, content.getvalue())


class RunFolder:
    """Paths, and what lies there.

    Rounds are counted from 1. One is finished once its metrics.json exists, which is written last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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

    def round(self, number: int) -> Path:
        folder = self.path / f"round_{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def metrics(self, number: int) -> dict | None:
        """A finished round's metrics, None while it is not finished."""
        path = self.round(number) / METRICS
        return json.loads(path.read_text()) if path.exists() else None

    def periods(self) -> list[dict[str, Any]]:
        """What each finished period came to, as summary.json holds it."""
        known = json.loads(self.summary.read_text()) if self.summary.exists() else {}
        return list(known.get("periods", ()))

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
        with np.load(self.round(number) / "answers.npz", allow_pickle=False) as stored:
            return stored["rows"], stored["labels"], stored["outcomes"]

    def save_student(self, number: int, spec: ExtractorSpec, labels: np.ndarray) -> None:
        """Store a round's student, and the ``labels`` that it is trained on, int64 [n_public], or
        [n, c].
        """
        write_file(self.round(number) / "student.safetensors", encode_extractor(spec))
        write_arrays(self.round(number) / TRAINING_LABELS, labels)

    def load_extractor(self, number: int) -> ExtractorSpec:
        return _extractor(self.round(number) / "student.safetensors")

    def features(
        self, build: Callable[[], ExtractorSpec], number: int | None = None, file: str = FEATURES
    ) -> ExtractorSpec:
        """The first round's extractor, or the one that round ``number`` asks with, built once.

        A resumed run asks with the same extractor, to the last bit.
        """
        path = (self.path if number is None else self.round(number)) / file
        if not path.exists():
            write_file(path, encode_extractor(build()))
        return _extractor(path)


def _extractor(path: Path) -> ExtractorSpec:
    return decode_extractor(path.read_bytes(), SAFETENSORS, path.stat().st_size)


def resumed(config: Config, folder: RunFolder) -> Config:
    """With the method and the numbers that the folder records, where ``config`` leaves them open.

    Before the run began, only those of the same other settings. Raises LabelwallError where another
    configuration is recorded.
    """
    if not folder.config.exists():
        return config
    known, begun = load_config(folder.config), folder.ledger.exists()
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
