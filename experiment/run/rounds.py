"""The loop: ask, train, send features back, ask again.

Each round is complete on disk before the next one starts.
"""

import hashlib
import json
import shutil
from datetime import UTC, datetime

import numpy as np

from ...student.model import Privacy, StudentInfo, pack
from ...teacher.accounting.accountant import certificates, certified_epsilon, smallest_certified
from ...teacher.accounting.conversion import round_up
from ...wall.datasets.config import DataConfig
from ...wall.datasets.tables import encoding
from ...wall.labels import LabelSpace
from ...wall.messages import ExtractorSpec
from ..config.groups import Round
from .asking import Experiment, ask, public_alone
from .custodians import Custodians
from .metrics import by_class, lost_line, round_line
from .quality import best_round, estimate_of
from .run_folder import METRICS, TRAINING_LABELS, RunFolder, write_file
from .scoring import STUDENT, best_scored
from .training import retold, train_round, untaught


def run_rounds(experiment: Experiment) -> dict[str, object]:
    """All rounds, those that are not finished; returns what summary.json holds."""
    if experiment.known is not None and (alone := public_alone(experiment)):
        experiment.console.say(alone)
    rounds = [_round(experiment, current) for current in experiment.rounds]
    return _summarise(experiment, rounds)


def _round(experiment: Experiment, current: Round) -> dict:
    folder, say, number = experiment.folder, experiment.console.say, current.number
    metrics = folder.metrics(number)
    if metrics is None:
        with experiment.console.timed("asking"):
            asked = ask(experiment, current)
        folder.save_answers(number, asked.rows, asked.answers.labels, asked.answers.outcomes)
        experiment.teacher.export(folder.ledger)
        with experiment.console.timed("training"):
            network = untaught(experiment, current, asked)
            metrics = network or train_round(experiment, current, asked)
        write_file(folder.round(number) / METRICS, json.dumps(metrics, indent=2))  # ends the round
    shutil.rmtree(folder.round(number) / "checkpoints", ignore_errors=True)
    if current.period < experiment.rounds[-1].period:
        return metrics
    say(round_line(number, metrics, experiment.task.labels))
    estimates = [*experiment.estimates(current), estimate_of(metrics)]
    if (kept := best_round(estimates)) < number:
        labels = [estimate.text() for n in (number, kept) if (estimate := estimates[n - 1])]
        say(
            f"round {number} is worse than round {kept}: labels {' against '.join(labels)}. "
            f"Round {kept}'s student and features are kept."
        )
    return metrics


def _summarise(experiment: Experiment, rounds: list[dict]) -> dict[str, object]:
    """Write summary.json and the student; ``rounds``: the metrics of all rounds, in order."""
    folder, public = experiment.folder, experiment.public
    best = best_scored(experiment, experiment.kept(experiment.rounds[-1]))
    kept = best.number
    if best.name != STUDENT:
        rounds[kept - 1] |= retold(experiment, best.spec)
        write_file(folder.round(kept) / METRICS, json.dumps(rounds[kept - 1], indent=2))
    experiment.teacher.export(folder.ledger)
    teacher, state, plan = experiment.teacher, folder.ledger_state(), folder.plan()
    custodians = teacher.described(folder.ledger) if isinstance(teacher, Custodians) else []
    last, finished = rounds[kept - 1], folder.summary.exists()
    date = datetime.now(UTC).date().isoformat()
    summary = {
        "epsilon": None if state.unsafe else round_up(certified_epsilon(plan)),
        "delta": plan.delta,
        "unsafe": state.unsafe,
        "adversary": state.adversary,
        "unit": plan.unit,
        "certificates": {name: round_up(c.epsilon) for name, c in certificates(plan).items()},
        "best_round": kept,
        "test_accuracy": last["student_accuracy"],
        **({"test_errors": last["student_errors"]} if "student_errors" in last else {}),
        **by_class(last),
        "rounds": [{k: v for k, v in entry.items() if k != "confusion"} for entry in rounds],
        "dataset": state.dataset,
        "ledger_head": state.head,
        "lost": state.lost(),
        "private_score": best.score,
        "custodians": custodians,
        "seed": experiment.settings.seed,
        "public_rows": len(public.inputs),
        "periods": _periods(experiment, last, best.score),
        "test_rows": len(public.test_inputs),
        "held_out": public.held_out,
        "date": json.loads(folder.summary.read_text())["date"] if finished else date,
    }
    data, labels = experiment.settings.data, experiment.task.labels
    write_file(folder.student, _described(folder, best.spec, data, labels, summary))
    write_file(folder.summary, json.dumps(summary, indent=2))
    if lost := lost_line(state):
        experiment.console.say(lost)
    return summary


def public_digest(rows: np.ndarray) -> str:
    """SHA-256 (hex) of PUBLIC rows in their order."""
    kind = repr((rows.dtype.str, rows.shape)).encode()
    return hashlib.sha256(kind + np.ascontiguousarray(rows).tobytes()).hexdigest()


def _periods(
    experiment: Experiment, metrics: dict, score: dict[str, object] | None
) -> list[dict[str, object]]:
    """What the periods until now came to, the last one by the ``metrics`` of its kept round."""
    folder, period = experiment.folder, experiment.rounds[-1].period
    plan = folder.plan()
    known = folder.periods()
    own = {
        "period": period,
        "epsilon": round_up(certified_epsilon(plan.up_to(period))),
        "left": plan.periods - period,
        "test_accuracy": metrics["student_accuracy"],
        "estimate": metrics["estimate"],
        "private_score": score,
        "public_sha256": public_digest(experiment.public.inputs),
    }
    return [*known[: period - 1], own]


def _described(
    folder: RunFolder, spec: ExtractorSpec, data: DataConfig, labels: LabelSpace, summary: dict
) -> bytes:
    """The kept model with its metadata: a safetensors file.

    ``summary``: what summary.json holds. All of it is public, so nothing is charged.
    """
    kept, plan = summary["best_round"], folder.plan()
    names = ("epsilon", "delta", "adversary", "ledger_head", "dataset", "unit")
    known = {name: summary[name] for name in names}
    privacy = Privacy(certificate=smallest_certified(plan), **known)
    shares = None
    if labels.kind == "class":  # a class without a label is as if it had one
        taught = np.load(folder.round(kept) / TRAINING_LABELS, allow_pickle=False)
        counts = 1.0 + np.bincount(taught[taught >= 0], minlength=labels.outputs)
        shares = tuple(map(float, counts / counts.sum()))
    table = encoding(data) if data.source == "table" else None
    network = spec.backbone, spec.input_shape, spec.mean, spec.std
    return pack(StudentInfo(*network, labels, privacy, table, shares), spec.weights)
