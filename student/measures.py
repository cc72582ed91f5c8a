"""The measures of medicine and of imbalance: how well probabilities tell who has what.

They are of public test rows, or of rows that a user brings, so nothing is charged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..wall.labels import LabelSpace

MOST_NAMES = 1_000  # classes; of more nothing is told class by class
SPECIFICITY = 0.9  # at which sensitivity is told, unless another is asked for
BINS = 15  # of equal width, for the expected calibration error
# Of all classes or attributes together
MEANS = (
    *("balanced_accuracy", "auroc", "average_precision", "sensitivity", "brier"),
    "calibration_error",
)
CURVE = 51  # points of a stored ROC curve, at equal steps of the false positive rate


@dataclass(frozen=True, kw_only=True)
class NameMeasures:
    """How well rows with one class or attribute are told from rows without it.

    ``auroc``: how often a row with it has a larger probability than one without; ties count half.
    ``average_precision``: mean precision over the rows with it, by rank. ``sensitivity``: share of
    rows with it that the best threshold finds, of those with at least the asked specificity.
    ``roc``: the largest sensitivity at CURVE equally spaced false positive rates from 0 to 1. All
    are None if one of both kinds of row is missing. ``brier``: mean squared difference between
    probability and truth.
    """

    positives: int  # rows with it
    auroc: float | None
    average_precision: float | None
    sensitivity: float | None
    brier: float
    roc: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class Measures:
    """How good probabilities are on so many ``rows``.

    ``balanced_accuracy``: mean share of right rows over the classes that have some; for attributes
    the mean over them of (sensitivity + specificity) / 2. ``auroc``, ``average_precision``,
    ``sensitivity``: means over the classes (one against the others) or attributes that have them;
    ``brier``: the mean over all. ``calibration_error``: expected, over BINS. ``bins``: of each of
    BINS of certainty that has answers: (how many, mean certainty, share of right ones).
    """

    rows: int
    accuracy: float
    balanced_accuracy: float | None
    auroc: float | None
    average_precision: float | None
    sensitivity: float | None
    specificity: float  # at which sensitivity is told
    brier: float
    calibration_error: float | None
    bins: tuple[tuple[int, float, float], ...] = field(repr=False)
    names: dict[str, NameMeasures]

    def means(self) -> dict[str, float | None]:
        return {name: getattr(self, name) for name in MEANS}


def measures(
    space: LabelSpace,
    probabilities: np.ndarray,
    truth: np.ndarray,
    specificity: float = SPECIFICITY,
) -> Measures | None:
    """The measures of probabilities float64 [n, c] of classes or attributes.

    ``truth``: int64 [n] class indices, or [n, c] of 0 and 1. None without rows, for values, and for
    more than MOST_NAMES classes.
    """
    if space.kind == "value" or not len(truth) or len(space.names) > MOST_NAMES:
        return None
    present = truth if space.kind == "attributes" else truth[:, None] == np.arange(len(space.names))
    by_name = {
        name: _of_one(present[:, at].astype(bool), probabilities[:, at], specificity)
        for at, name in enumerate(space.names)
    }
    measured = list(by_name.values())
    predicted = probabilities.argmax(axis=1) if space.kind == "class" else probabilities > 0.5
    right = predicted == truth
    if space.kind == "class":
        shares = [right[truth == code].mean() for code in np.unique(truth)]
    else:
        each = [right[present[:, at] == bit, at] for at in range(len(measured)) for bit in (0, 1)]
        shares = [hits.mean() for hits in each if len(hits)]
    return Measures(
        rows=len(truth),
        accuracy=float(right.mean()),
        balanced_accuracy=float(np.mean(shares)),
        auroc=_mean([one.auroc for one in measured]),
        average_precision=_mean([one.average_precision for one in measured]),
        sensitivity=_mean([one.sensitivity for one in measured]),
        specificity=specificity,
        brier=float(np.mean([one.brier for one in measured])),
        calibration_error=calibration_error(space.certainty(probabilities), right),
        bins=_reliability(space.certainty(probabilities), right),
        names=by_name,
    )


def means(found: Mapping[str, Any]) -> dict[str, Any]:
    """MEANS of what is ``found``: of all rows (``measures``), and with the accuracy of ``groups``
    by name.
    """
    all_rows, groups = found["measures"], found["groups"]
    by_name = {
        name: {"accuracy": group.accuracy, **group.means()} for name, group in groups.items()
    }
    return {"measures": all_rows and all_rows.means(), "groups": by_name}


def by_group(
    space: LabelSpace,
    probabilities: np.ndarray,
    truth: np.ndarray,
    groups: Sequence[object] | np.ndarray,
    specificity: float = SPECIFICITY,
) -> dict[str, Measures]:
    """``measures`` of the rows of each group, by the group's name; the largest groups first."""
    named = np.array([str(group) for group in groups], dtype=object)
    names, counts = np.unique(named, return_counts=True)
    found = dict[str, Measures]()
    for name in names[np.argsort(-counts, kind="stable")]:
        rows = named == name
        if (of := measures(space, probabilities[rows], truth[rows], specificity)) is not None:
            found[str(name)] = of
    return found


def _of_one(present: np.ndarray, probability: np.ndarray, specificity: float) -> NameMeasures:
    """``present``: bool [n]; ``probability``: float64 [n], of being present."""
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve  # slow

    auroc = precision = sensitivity = None
    roc: tuple[float, ...] = ()
    if present.any() and not present.all():
        auroc = float(roc_auc_score(present, probability))
        precision = float(average_precision_score(present, probability))
        false, found, _ = roc_curve(present, probability, drop_intermediate=False)

        def best(most: float) -> float:
            return float(found[false <= most + 1e-12].max())

        sensitivity = best(1 - specificity)
        roc = tuple(round(best(most), 6) for most in np.linspace(0, 1, CURVE))
    return NameMeasures(
        positives=int(present.sum()),
        auroc=auroc,
        average_precision=precision,
        sensitivity=sensitivity,
        brier=float(((probability - present) ** 2).mean()),
        roc=roc,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return float(np.mean(given)) if given else None


def calibration_error(certainty: np.ndarray, right: np.ndarray) -> float | None:
    """The expected calibration error over BINS, a share in 0..1 (Guo et al. 2017, equation 3); None
    without answers. ``certainty``: float64 in 0..1; ``right``: bool of the same shape.
    """
    gaps = np.abs(np.bincount(_bins(certainty), (certainty - right).ravel()))
    return float(gaps.sum()) / certainty.size if certainty.size else None


def _reliability(certainty: np.ndarray, right: np.ndarray) -> tuple[tuple[int, float, float], ...]:
    bins = _bins(certainty)
    count, sure, hits = (
        np.bincount(bins, weights, BINS) for weights in (None, certainty.ravel(), right.ravel())
    )
    return tuple(
        (int(count[b]), float(sure[b] / count[b]), float(hits[b] / count[b]))
        for b in range(BINS)
        if count[b]
    )


def _bins(certainty: np.ndarray) -> np.ndarray:
    return np.minimum((certainty.ravel() * BINS).astype(np.int64), BINS - 1)
