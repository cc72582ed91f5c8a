"""What a run reports: each round's metrics.json, a line of it, and a line of the whole run."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...teacher.accounting.conversion import round_up
from ...teacher.ledger.state import LedgerState
from ...wall.guarantee import POOLED, for_unit
from ...wall.label_kinds import format_errors
from ...wall.labels import LabelSpace, Score, has_label, has_truth
from ...wall.messages import ABSTAINED, Outcome
from .asking import Asked, Experiment
from .places import reading
from .quality import estimate_of
from .scoring import score_text

BINS = 15  # of equal width, for the expected calibration error
UNEVEN = 0.02  # by which balanced accuracy differs from accuracy, to be named
SELDOM = 0.5  # share of right rows of a class below which it is named


def round_metrics(experiment: Experiment, asked: Asked, outputs: np.ndarray) -> dict:
    """A round's metrics. ``outputs``: of its student for the test rows, float32 [n, c]."""
    space, public = experiment.task.labels, experiment.public
    answers, labels = asked.answers, asked.answers.labels
    score = dict.fromkeys(space.score(public.test_labels, public.test_labels))
    if public.labels is not None:
        truth = public.labels[asked.rows]
        known = has_truth(truth)
        released = space.decode(labels[known])
        score = space.score(released, truth[known], labels[known] != ABSTAINED)
    return {
        "asked": len(asked.rows),
        "answered": int(has_label(labels).sum()),
        "abstained": int((answers.outcomes == Outcome.ABSTAINED).sum()),
        "cap_reached": int((answers.outcomes == Outcome.CAP_REACHED).sum()),
        **{f"label_{key}": value for key, value in score.items()},
        **student_metrics(experiment, outputs),
        "estimate": asked.estimate and asdict(asked.estimate),
        "extractor": asked.extractor.backbone,
        "epsilon_reading": reading(experiment.folder.ledger_state()),
        "ledger_head": answers.receipt.ledger_head,
    }


def student_metrics(experiment: Experiment, outputs: np.ndarray) -> dict[str, Any]:
    """Those of ``round_metrics`` that are of the student alone."""
    space, truth = experiment.task.labels, experiment.public.test_labels
    predicted = space.predict(outputs)
    certainty = space.certainty(space.probabilities(outputs))
    right = predicted == truth if certainty.size else certainty
    return {
        **{f"student_{key}": value for key, value in space.score(predicted, truth).items()},
        "confusion": space.confusion(truth, predicted).tolist(),
        "calibration_error": calibration_error(certainty, right),
    }


def calibration_error(certainty: np.ndarray, right: np.ndarray) -> float | None:
    """The expected calibration error over BINS, a share in 0..1 (Guo et al. 2017, equation 3); None
    without answers. ``certainty``: float64 in 0..1; ``right``: bool of the same shape.
    """
    place = np.minimum((certainty.ravel() * BINS).astype(np.int64), BINS - 1)
    gaps = np.abs(np.bincount(place, (certainty - right).ravel()))
    return float(gaps.sum()) / certainty.size if certainty.size else None


def round_line(number: int, metrics: dict, space: LabelSpace) -> str:
    score, estimate = _score_of(metrics, "label"), estimate_of(metrics)
    known = any(value is not None for value in score.values())
    labels = space.format_score(score) if known or estimate is None else estimate.text()
    student = space.format_score(_score_of(metrics, "student"))
    return (
        f"round {number}: {metrics['answered']} of {metrics['asked']} answered, labels {labels}, "
        f"student {student}, epsilon so far {metrics['epsilon_reading']:.3f} (a reading)"
    )


def _score_of(metrics: dict, name: str) -> Score:
    errors = {"errors": metrics[f"{name}_errors"]} if f"{name}_errors" in metrics else {}
    return {"accuracy": metrics[f"{name}_accuracy"], **errors}


def by_class(metrics: dict) -> dict[str, float]:
    """Mean and least share of right test rows over the classes that have some; {} without."""
    counts = np.array(metrics["confusion"])
    if counts.ndim != 2 or "student_errors" in metrics:
        return {}
    rows = counts.sum(axis=1)
    right = counts.diagonal()[rows > 0] / rows[rows > 0]
    if not right.size:
        return {}
    return {"balanced_accuracy": float(right.mean()), "worst_class": float(right.min())}


def uneven(summary: dict) -> str:
    """What accuracy hides of the classes, for a reader; empty where it hides nothing."""
    balanced, worst = summary.get("balanced_accuracy"), summary.get("worst_class")
    if balanced is None or worst is None:
        return ""
    even = abs(balanced - summary["test_accuracy"]) <= UNEVEN and worst >= SELDOM
    return "" if even else f"balanced {100 * balanced:.2f}%, worst class {100 * worst:.2f}%"


def untested(summary: dict) -> str:
    """What stands in the place of a score where no test row tells one; empty elsewhere."""
    if summary["test_accuracy"] is not None or summary.get("test_errors"):
        return ""
    estimate = estimate_of(summary["rounds"][summary["best_round"] - 1])
    return f"no test rows, labels {estimate.text() if estimate else 'unknown'}"


def period_lines(summary: dict) -> list[str]:
    """What each period of several spent and came to."""
    entries = summary["periods"]
    if len(entries) == 1 and not entries[0]["left"]:
        return []
    return [
        f"period {entry['period']}: epsilon {entry['epsilon']} up to it, {entry['left']} left, "
        + ("no test rows" if (right := entry["test_accuracy"]) is None else f"test {right:.2%}")
        + (f"; {text}" if (text := score_text(entry["private_score"])) else "")
        for entry in entries
    ]


def lost_line(state: LedgerState) -> str:
    """What kills lost, in a line; empty where they lost nothing."""
    lost = ", ".join(f"{count} {name}" for name, count in state.lost().items())
    return lost and f"charged and never answered, as a call was cut off: {lost}"


def result_line(summary: dict, run_dir: Path) -> str:
    """A finished run in one line: the student's score, the guarantee, the report's path."""
    errors, accuracy = summary.get("test_errors"), summary["test_accuracy"]
    score = untested(summary) or (
        f"test {format_errors(errors)}" if errors else f"test accuracy {100 * accuracy:.2f}%"
    )
    score += f" ({hidden})" if (hidden := uneven(summary)) else ""
    kept, rounds = summary.get("best_round"), len(summary.get("rounds", ()))
    score += f" (round {kept} kept)" if kept not in (None, rounds) else ""
    against = "" if summary["adversary"] == POOLED else f" against {summary['adversary']}"
    against += for_unit(summary.get("unit", "row"))
    epsilon, delta = round_up(summary["epsilon"]), f"delta {summary['delta']:g}"
    private = f"; {text}" if (text := score_text(summary.get("private_score"))) else ""
    return f"{score} at epsilon {epsilon}, {delta}{against}{private}: {run_dir}/report.html"
