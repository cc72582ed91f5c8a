"""The loop: ask, train, send features back, ask again.

Each round is complete on disk before the next one starts.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from ...student.devices import require_devices
from ...student.student_file import Privacy, StudentInfo, pack
from ...teacher.accounting.accountant import require_affordable, smallest_certified
from ...teacher.accounting.plan import Plan
from ...teacher.noise.entropy import Entropy
from ...wall.datasets.sources import DataConfig, PublicData, Task, describe, read_public
from ...wall.datasets.tables import scaling
from ...wall.labels.base import LabelSpace
from ..config.config import Config, solved_line, solved_numbers
from .asking import ask, asking_extractor
from .budgets import custodian_place
from .console import Console
from .experiment import Experiment
from .extractors import first_extractor
from .metrics import round_line, run_summary
from .public_features import PublicFeatures
from .quality import Estimate, best_round, estimate_of, foreseen, plurality
from .run_folder import RunFolder
from .teachers import teacher_of
from .training import calibrated, train_round
from .training_rows import check_student

SHARE_ROWS = 2_000  # test rows among which neighbours are counted, for a warning


def run(
    config: Config,
    run_dir: Path,
    *,
    entropy: Entropy,
    console: Console,
    isolate: bool = False,
    custodian: Path | None = None,
) -> dict[str, object]:
    """Run, or resume, an experiment; returns what summary.json holds.

    No data is read unless the plan is affordable. A killed run continues with the same command:
    known queries are served from the ledger, finished rounds are not repeated, an interrupted
    training continues from its checkpoint.

    ``isolate``: the teacher runs in a child process, and this process opens no private file.
    ``custodian``: the private side's directory; ``custodian_place`` where it is None.

    Raises BudgetRefused, LedgerMismatch, InvalidInput, MissingData.
    """
    folder = RunFolder(run_dir)
    config = folder.resumed(config)
    require_affordable(config.plan())
    require_devices(config.student)
    folder.create()
    known = folder.known_dataset()
    task = describe(config.data)
    public = read_public(
        config.data, lambda done, total: console.progress("reading public rows", done, total)
    )
    check_student(config.student, first_extractor(config.first, task), task)  # fails early
    features = PublicFeatures(config.computing, public, console.progress)
    if folder.metrics(1) is None:
        _foresee(config, task, public, features, console)
    directory = custodian or custodian_place(config, run_dir)
    with teacher_of(
        config, task, directory, entropy, console, known_dataset=known, isolate=isolate
    ) as teacher:
        teacher.export(folder.ledger)
        config = _fixed(config, folder, console)
        folder.prepare(config)
        experiment = Experiment(config, folder, task, public, teacher, console, features)
        rounds = [_round(experiment, number) for number in range(1, len(config.rounds) + 1)]
        return _summarise(experiment, rounds)


def _fixed(config: Config, folder: RunFolder, console: Console) -> Config:
    """With every number that the budget decided, as the ledger fixed it before its first release.

    Another version may have solved it otherwise, which is said.
    """
    plan = folder.ledger_state().plan
    assert plan is not None
    require_affordable(plan)
    fixed = config.recorded(plan)
    if fixed != config.solved():
        console.say(f"as the ledger fixed it, {solved_line(solved_numbers(config, fixed))}")
    return fixed


def _foresee(
    config: Config,
    task: Task,
    public: PublicData,
    features: PublicFeatures,
    console: Console,
) -> None:
    """Say, before anything is charged, where public facts foresee a useless round."""

    def share(part: float) -> float:
        if task.labels.kind != "class":
            return 1.0
        spec, rows = first_extractor(config.first, task), slice(SHARE_ROWS)
        test = features.quantised(spec, "test")[rows]
        return plurality(test, public.test_labels[rows], part)

    for line in foreseen(config, config.records(len(public.inputs)), share):
        console.say(line)


def _round(experiment: Experiment, number: int) -> dict:
    """A round's metrics: read from its file when it is finished, otherwise by running it."""
    folder, console = experiment.folder, experiment.console
    metrics = folder.metrics(number)
    if metrics is None:
        extractor = asking_extractor(experiment, number)
        answers, rows, estimate = ask(experiment, number, extractor)
        metrics = train_round(experiment, number, answers, rows, extractor, estimate)
        folder.write_text(folder.round(number) / "metrics.json", json.dumps(metrics, indent=2))
    folder.drop_checkpoints(number)
    console.say(round_line(number, metrics, experiment.task.labels))
    estimates = experiment.estimates(number)
    if (kept := best_round(estimates)) < number:
        console.say(
            f"round {number} is worse than round {kept}: labels {_text(estimates[number - 1])} "
            f"against {_text(estimates[kept - 1])}. Round {kept}'s student and features are kept."
        )
    return metrics


def _text(estimate: Estimate | None) -> str:
    return "unknown" if estimate is None else estimate.text()


def _summarise(experiment: Experiment, rounds: list[dict]) -> dict[str, object]:
    folder, config = experiment.folder, experiment.config
    experiment.teacher.export(folder.ledger)
    kept = best_round([estimate_of(metrics) for metrics in rounds])
    rounds[kept - 1] = calibrated(experiment, kept, rounds[kept - 1])
    plan, labels = config.plan(), experiment.task.labels
    finished = folder.summary.exists() and json.loads(folder.summary.read_text())
    summary = run_summary(plan, folder.ledger_state(), rounds, kept, config.seed) | {
        "public_rows": len(experiment.public.inputs),
        "date": finished["date"] if finished else datetime.now(UTC).date().isoformat(),
    }
    folder.write_bytes(
        folder.student, described_student(folder, config.data, labels, summary, plan)
    )
    folder.write_text(folder.summary, json.dumps(summary, indent=2))
    return summary


def described_student(
    folder: RunFolder, data: DataConfig, labels: LabelSpace, summary: dict, plan: Plan
) -> bytes:
    """The kept round's student with its metadata: a safetensors file.

    ``summary``: what summary.json holds. All of it is public, so nothing is charged.
    """
    kept = summary["best_round"]
    spec, metrics = folder.load_extractor(kept), folder.metrics(kept) or {}
    privacy = Privacy(
        summary["epsilon"],
        summary["delta"],
        smallest_certified(plan),
        summary["adversary"],
        summary["ledger_head"],
        summary["dataset"],
        plan.unit,
    )
    info = StudentInfo(
        spec.backbone,
        spec.input_shape,
        spec.mean,
        spec.std,
        labels,
        metrics.get("temperature", 1.0),
        privacy,
        table=scaling(data) if data.source == "table" else None,
    )
    return pack(info, spec.weights)
