"""A finished run as its folder tells it, judged by its ledger."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...student.model import StudentInfo, unpack
from ...teacher.accounting.accountant import certified_epsilon
from ...teacher.accounting.conversion import round_up
from ...teacher.ledger.auditor.auditor import Finding, audit
from ...wall.errors import LabelwallError, MissingData
from ..config.config import Config
from ..config.settings import load_config
from ..run.run_folder import RunFolder

# What the pages say about a round
ROUND_KEYS = (
    *("asked", "answered", "abstained", "cap_reached", "label_accuracy", "student_accuracy"),
    *("epsilon_reading", "extractor", "confusion"),
)


@dataclass(frozen=True)
class FinishedRun:
    folder: RunFolder
    config: Config
    summary: dict[str, Any]  # summary.json
    rounds: list[dict[str, Any]]  # each metrics.json
    info: StudentInfo  # what the kept student's file says
    kept: int  # the round whose student the run kept, from 1
    finding: Finding  # the ledger's audit
    unsafe: bool  # whether the noise came from a test tape, by the ledger or by the summary
    # Why this run certifies nothing; empty where ledger, configuration and summary agree. An unsafe
    # ledger is reported apart.
    problems: list[str]
    certified: float | None  # epsilon by the ledger alone, None where nothing is certified
    choice: dict[str, Any] | None  # candidates.json, where `auto` chose the method


def read_run(run_dir: Path) -> FinishedRun:
    """Everything that a finished run left behind. Raises MissingData, LabelwallError."""
    folder = RunFolder(run_dir)
    _require(run_dir, "summary.json", "config.yaml", "ledger.sqlite", "student.safetensors")
    config = load_config(folder.config)
    try:
        summary, rounds = json.loads(folder.summary.read_text()), list[dict[str, Any]]()
        for number in range(1, len(summary["rounds"]) + 1):
            stored = f"round_{number}/metrics.json"
            _require(run_dir, stored, f"round_{number}/answers.npz")
            metrics = json.loads((run_dir / stored).read_text())
            rounds.append(metrics | {key: metrics[key] for key in ROUND_KEYS})
        finding, choice = audit(folder.ledger, expect_head=summary["ledger_head"]), None
        if folder.candidates.is_file():
            stored_choice = json.loads(folder.candidates.read_text())
            choice = {name: str(stored_choice[name]) for name in ("reason", "source")}
        unsafe = bool(summary["unsafe"]) or finding.unsafe
        problems = [] if unsafe else finding.problems or _problems(config, summary, finding)
        certified = None if unsafe or problems else finding.epsilon
        judged = finding, unsafe, problems, certified
        if (info := unpack(folder.student.read_bytes(), str(folder.student))) is None:
            raise LabelwallError(f"{folder.student} says nothing of its student.")
        kept = int(summary["best_round"])
        return FinishedRun(folder, config, summary, rounds, info, kept, *judged, choice)
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise LabelwallError(f"A JSON file of {run_dir} is damaged ({reason}).") from error


def _problems(config: Config, summary: dict[str, Any], finding: Finding) -> list[str]:
    """What claims another epsilon than a consistent ledger certifies."""
    stated = {
        "config.yaml": round_up(certified_epsilon(config.plan())),
        "summary.json": summary["epsilon"],
    }
    return [
        f"{source} claims epsilon {claimed}, the ledger certifies {finding.epsilon}"
        for source, claimed in stated.items()
        if claimed != finding.epsilon
    ]


def _require(run_dir: Path, *files: str) -> None:
    for needed in files:
        if not (run_dir / needed).is_file():
            raise MissingData(
                "`run_dir` must be the folder of a finished run. "
                f"Found {str(run_dir)!r} without {needed}. "
                "`labelwall run` with the same --run_dir finishes a run."
            )
