"""The run folder: a run's results on the public side, complete round by round.

Nothing private enters it.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ...teacher.ledger.ledger import Ledger
from ...teacher.ledger.state import LedgerState
from ...wall.errors import InvalidInput, LabelwallError, LedgerMismatch
from ...wall.format import FORMAT
from ...wall.messages import ExtractorSpec
from ...wall.wire import SAFETENSORS, decode_extractor, encode_extractor, spec_from_fields
from ..config.config import Config
from ..config.settings import load_config
from .budgets import place_of
from .matrices import PROBABILITIES

# What may change between a run and its resumption.
NOT_IDENTITY = (
    "format",
    "threads",
    "workers",
    "batch_size",
    "device",
    "teacher",
    "expected_records",  # which decides nothing once a method is chosen
)


RUNS = Path("runs")


def default_run_dir(config: Config, name: str, say: Callable[[str], None]) -> Path:
    """runs/NAME: a new folder, or that of the same run, which continues.

    ``name``: of the data or its configuration; the source's where it is empty. Says so
    where there are runs of other settings: each has a ledger of its own, and what they release
    adds up.
    """
    name, own = name or config.data.source, place_of(config.data) is not None
    numbered = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    for tried in (RUNS / entry for entry in numbered):
        if not (tried / "config.yaml").exists() or not RunFolder(tried).differing(config):
            break
        if own:  # which have one ledger
            continue
        say(
            f"{tried} holds a run with other settings. Where its private records are these, the "
            "epsilons of both add up."
        )
    return tried


class RunFolder:
    """Paths and atomic writes.

    A round is finished once its metrics.json exists, which is written last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "ledger.sqlite"
        self.summary = path / "summary.json"
        self.student = path / "student.safetensors"
        self.report = path / "report.html"
        self.card = path / "MODEL_CARD.md"
        self.choice = path / "chosen.yaml"  # of `auto`, with the table of its candidates
        self.candidates = path / "candidates.json"

    def resumed(self, config: Config) -> Config:
        """With the numbers that the folder records, where ``config`` leaves them to the budget.

        Raises LabelwallError where another configuration is recorded.
        """
        config, resolved = self.decided(config), self.path / "config.yaml"
        if not resolved.exists():
            return config
        config = config.as_given(load_config(resolved))
        if differing := self.differing(config):
            raise LabelwallError(
                f"{self.path} holds a run with other settings ({', '.join(differing)}). "
                "Choose another --run_dir."
            )
        return config

    def decided(self, config: Config) -> Config:
        """With the method that the folder records, where ``config`` leaves it open.

        Before the run began, only where it was chosen for the same other settings.
        """
        if not config.open or not self.choice.exists():
            return config
        known = load_config(self.choice)
        chosen = config.chosen(known)
        same = not _differing(known, chosen) and known.expected_records == config.expected_records
        return chosen if same or (self.path / "config.yaml").exists() else config

    def create(self) -> None:
        """Create the folder. Raises InvalidInput where it can not be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput("run_dir", "a folder that can be written", str(self.path)) from error
        if not os.access(self.path, os.W_OK):
            raise InvalidInput("run_dir", "a folder that can be written", str(self.path))

    def prepare(self, config: Config) -> None:
        """Create the folder and record the resolved configuration, where none is recorded."""
        self.create()
        resolved = self.path / "config.yaml"
        if not resolved.exists():
            text = yaml.safe_dump({"format": FORMAT, **_json(config)}, sort_keys=False)
            self.write_text(resolved, text)

    def differing(self, config: Config) -> list[str]:
        """Settings in which the recorded configuration is another."""
        known, config = load_config(self.path / "config.yaml"), self.decided(config)
        return _differing(known, config.as_given(known))

    def round(self, number: int) -> Path:
        """The folder of round ``number``, counted from 1."""
        folder = self.path / f"round_{number}"
        folder.mkdir(exist_ok=True)
        return folder

    def metrics(self, number: int) -> dict | None:
        """A finished round's metrics, None while it is not finished."""
        path = self.round(number) / "metrics.json"
        return json.loads(path.read_text()) if path.exists() else None

    def drop_checkpoints(self, number: int) -> None:
        """Remove a finished round's training checkpoints."""
        shutil.rmtree(self.round(number) / "checkpoints", ignore_errors=True)

    def known_dataset(self) -> str | None:
        """UUID of the data set whose ledger was exported here, None before the first export."""
        if not self.ledger.exists():
            return None
        try:
            with sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True) as connection:
                (body,) = connection.execute("SELECT body FROM entries WHERE seq = 0").fetchone()
            return str(json.loads(body)["dataset"])
        except (sqlite3.DatabaseError, TypeError, KeyError, ValueError) as error:
            raise LedgerMismatch(f"{self.ledger} is not a readable ledger.") from error

    def ledger_state(self) -> LedgerState:
        """The state of the exported ledger."""
        return Ledger(self.ledger).state

    def save_answers(
        self, number: int, rows: np.ndarray, labels: np.ndarray, outcomes: np.ndarray
    ) -> None:
        """Store released answers.

        ``rows``: int64 [n], positions in the public pool; ``labels``: int64 [n], or [n, c] for
        attributes; ``outcomes``: uint8 [n].
        """
        scratch = self.round(number) / "answers.npz.part"
        with scratch.open("wb") as file:
            np.savez(file, rows=rows, labels=labels, outcomes=outcomes)
        scratch.replace(self.round(number) / "answers.npz")

    def load_answers(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, labels, outcomes) as saved."""
        with np.load(self.round(number) / "answers.npz", allow_pickle=False) as stored:
            return stored["rows"], stored["labels"], stored["outcomes"]

    def save_training_labels(self, number: int, labels: np.ndarray) -> None:
        """Store the labels that the student of a round trains on: int64 [n_public], or [n, c]."""
        content = io.BytesIO()
        np.save(content, labels)
        self.write_bytes(self.round(number) / "training_labels.npy", content.getvalue())

    def load_training_labels(self, number: int) -> np.ndarray:
        """Labels as saved."""
        return np.asarray(np.load(self.round(number) / "training_labels.npy", allow_pickle=False))

    def save_extractor(self, number: int, spec: ExtractorSpec) -> None:
        """Store the student's extractor: weights as safetensors, the other fields as JSON."""
        self.write_bytes(self.round(number) / "student.safetensors", spec.weights)
        self.write_text(self.round(number) / "extractor.json", json.dumps(spec.public_fields()))

    def load_extractor(self, number: int) -> ExtractorSpec:
        """The extractor that round ``number`` exported."""
        fields = json.loads((self.round(number) / "extractor.json").read_text())
        del fields["weights_sha256"], fields["axes_sha256"]
        return spec_from_fields(fields, (self.round(number) / "student.safetensors").read_bytes())

    def features(
        self, build: Callable[[], ExtractorSpec], number: int | None = None
    ) -> ExtractorSpec:
        """The first round's extractor, or the one that round ``number`` asks with, built once.

        A resumed run asks with the same extractor, to the last bit.
        """
        folder = self.path if number is None else self.round(number)
        path = folder / "features.safetensors"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            self.write_bytes(path, encode_extractor(build()))
        return decode_extractor(path.read_bytes(), SAFETENSORS, path.stat().st_size)

    def load_probabilities(self, number: int) -> np.ndarray | None:
        """Class probabilities of a round's rows, float32 [n, c], in the order of its answers.

        None where its mechanism released none.
        """
        path = self.round(number) / PROBABILITIES
        return np.load(path, allow_pickle=False) if path.exists() else None

    def write_text(self, path: Path, text: str) -> None:
        """Write a file atomically."""
        self.write_bytes(path, text.encode())

    def write_bytes(self, path: Path, content: bytes) -> None:
        """Write a file atomically."""
        scratch = path.with_name(path.name + ".part")
        scratch.write_bytes(content)
        scratch.replace(path)


def _differing(known: Config, other: Config) -> list[str]:
    before, now = _json(known), _json(other)
    return [k for k in now if k not in NOT_IDENTITY and before[k] != now[k]]


def _json(config: Config) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(config)))
