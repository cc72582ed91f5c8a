"""The lines that a run says of its results."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...student.results import RoundResult, StudentScore
from ...wall.errors import listed
from ...wall.guarantee import POOLED, for_unit
from ...wall.label_kinds import format_errors
from ...wall.labels import LabelSpace
from .summary import Summary

UNEVEN = 0.02  # by which balanced accuracy differs from accuracy, to be named
SELDOM = 0.5  # share of right rows of a class below which it is named


def round_line(number: int, result: RoundResult, space: LabelSpace) -> str:
    known = result.label_accuracy is not None or result.label_errors is not None
    score = {"accuracy": result.label_accuracy, "errors": result.label_errors}
    labels = space.format_score(score)
    if not known and result.estimate is not None:
        labels = "estimated " * result.estimate.known + result.estimate.text()
    score = {"accuracy": result.student_accuracy, "errors": result.student_errors}
    return (
        f"round {number}: {result.answered} of {result.asked} answered, labels {labels}, student "
        f"{space.format_score(score)}, about epsilon {result.epsilon_reading:.3f} spent so far"
    )


def few_line(result: RoundResult, space: LabelSpace) -> str:
    """Classes whose records hardly show in what was released; empty where there are none.

    Those that are right on half of their test rows are known by these.
    """
    estimate, counts = result.estimate, np.array(result.confusion)
    few = {} if estimate is None else {int(k): n for k, n in estimate.few.items()}
    share = len(few) / max(len(space.names), 1)
    if estimate is not None and estimate.known and estimate.right > 1 - share / 2:
        return ""  # labels that are right so often are not hardly known
    few = {k: n for k, n in few.items() if counts[k, k] < SELDOM * max(counts[k].sum(), 1)}
    named = listed(f"{space.names[k]} (about {n})" for k, n in few.items())
    return named and (
        f"at this epsilon the noise hides the records of these classes: {named}. Their labels may "
        "be wrong. Check their spelling with `labelwall data`, merge them with others, or raise "
        "epsilon."
    )


def collapsed_line(result: RoundResult, space: LabelSpace) -> str:
    """A line if a taught student says few of the test rows' classes; empty if it does not."""
    if space.kind != "class" or not result.taught:
        return ""
    counts = np.array(result.confusion)
    there, said = ((counts.sum(axis=axis) > 0).sum() for axis in (1, 0))
    if 2 * said > there or there < 2:
        return ""
    return (
        f"the student says only {said} of the {there} classes of the test rows: its training on "
        "rows without labels may have collapsed. Try student.class_prior: uniform, or another "
        "student.objective"
    )


def by_class(score: StudentScore, space: LabelSpace) -> tuple[float | None, float | None]:
    """(mean, least) share of right test rows over the classes that have some; None without."""
    if space.kind != "class":
        return None, None
    counts = np.array(score.confusion)
    rows = counts.sum(axis=1)
    right = counts.diagonal()[rows > 0] / rows[rows > 0]
    return (float(right.mean()), float(right.min())) if right.size else (None, None)


def uneven(summary: Summary) -> str:
    """What accuracy hides of the classes, for a reader; empty where it hides nothing."""
    accuracy, balanced = summary.test_accuracy, summary.balanced_accuracy
    worst = summary.worst_class
    if accuracy is None or balanced is None or worst is None:
        return ""
    even = abs(balanced - accuracy) <= UNEVEN and worst >= SELDOM
    return "" if even else f"balanced {100 * balanced:.2f}%, worst class {100 * worst:.2f}%"


def seldom_found(summary: Summary) -> list[str]:
    """The option that finds a class which balanced accuracy shows to be lost, in a line."""
    accuracy, balanced = summary.test_accuracy, summary.balanced_accuracy
    if summary.balanced or accuracy is None or balanced is None:
        return []
    if summary.worst_class is None or summary.worst_class >= SELDOM or balanced > accuracy - UNEVEN:
        return []
    return [
        f"a class is right on {100 * summary.worst_class:.1f}% of its test rows. A run with "
        "--balanced finds a rare one more often, and is right less often in all. It is another "
        "release: epsilons add up"
    ]


def untested(summary: Summary) -> str:
    """What stands in the place of a score where no test row tells one; empty elsewhere."""
    if summary.test_accuracy is not None or summary.test_errors:
        return ""
    estimate = summary.kept.estimate
    return f"no test rows, labels {estimate.text() if estimate else 'unknown'}"


def period_lines(summary: Summary) -> list[str]:
    """What each period of several spent and came to, and when to ask the next."""
    left = summary.periods[-1].left
    if len(summary.periods) == 1 and not left:
        return []
    lines = []
    for period in summary.periods:
        right, score = period.test_accuracy, period.private_score
        text = f"period {period.period}: epsilon {period.epsilon} spent by then, "
        text += f"{period.left} periods left, "
        text += "no test rows" if right is None else f"test {right:.2%}"
        lines.append(text if score is None else f"{text}; {score.text()}")
    if left:
        lines.append(
            f"updates left: {left} (`labelwall update`). Ask on dates that were fixed beforehand, "
            "whether or not rows changed"
        )
    return lines


def lost_line(lost: Mapping[str, int]) -> str:
    """What kills lost, by release, in a line; empty where they lost nothing."""
    text = ", ".join(f"{count} {name}" for name, count in lost.items())
    return text and f"charged and never answered, as a call was cut off: {text}"


def result_line(summary: Summary, run_dir: Path) -> str:
    """A finished run in one line: the student's score, the guarantee, the report's path."""
    score = untested(summary)
    if not score and summary.test_errors:
        score = f"test {format_errors(summary.test_errors)}"
    elif not score:
        score = f"test accuracy {100 * (summary.test_accuracy or 0.0):.2f}%"
    if summary.useless:
        score += ", BELOW THE MOST FREQUENT CLASS"
    elif summary.needless:
        score += ", BELOW WHAT PUBLIC LABELS ALONE GIVE"
    beside = [uneven(summary), summary.baselines.text() if summary.baselines else ""]
    if told := "; ".join(filter(None, beside)):
        score += f" ({told})"
    if summary.best_round != len(summary.rounds):
        score += f" (round {summary.best_round} kept)"
    against = "" if summary.adversary == POOLED else f" against {summary.adversary}"
    against += for_unit(summary.unit)
    epsilon, delta = summary.epsilon, f"delta {summary.delta:g}"
    private = "" if summary.private_score is None else f"; {summary.private_score.text()}"
    return f"{score} at epsilon {epsilon}, {delta}{against}{private}: {run_dir}/report.html"
