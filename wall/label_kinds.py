"""The kinds of label: a class, some attributes, or a value a row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np

from .errors import InvalidInput
from .labels import LabelSpace, Score
from .messages import ABSTAINED

MOST_ATTRIBUTES = 62  # bits of a code
MOST_CLASSES = 1 << 16  # that have numbers instead of names
# Between the bounds. Rounding to the nearest moves a value by at most 1 / 8192 of their distance.
STEPS = 1 << 12
CELLS = 32  # parts a side of the picture of predicted against true values
TENTHS = 10  # parts of the range in which a custodian's rows are counted
ERRORS = ("rmse", "mae", "r2")


@dataclass(frozen=True)
class ClassLabels(LabelSpace):
    """One class a row: truth, code and label are the index of its name, int64 [n]."""

    kind: ClassVar[str] = "class"
    form: ClassVar[str] = "whole numbers or texts [n]"
    valid: ClassVar[str] = "from 0 to the number of classes less 1"
    cure: ClassVar[str] = (
        "Texts are taken for names of classes. Numbers to predict need --data.labels value "
        "--data.bounds '[LOW, HIGH]'."
    )
    names: tuple[str, ...]

    @property
    def num_labels(self) -> int:
        return len(self.names)

    def fits(self, truth: np.ndarray) -> bool:
        return truth.dtype.kind in "biufU" and truth.ndim == 1

    def numbered(self, truth: np.ndarray) -> "ClassLabels":
        if not self.names and truth.max() >= MOST_CLASSES:
            rule = f"numbers below {MOST_CLASSES}, or named"
            raise InvalidInput("data.classes", rule, int(truth.max()), "Number them from 0.")
        return self if self.names else self.of(max(2, 1 + int(truth.max())))

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """The classes themselves: screening passes some of them far less often than others."""
        return labels

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.argmax(axis=1)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        from scipy.special import softmax  # slow

        return softmax(outputs.astype(np.float64), axis=1)

    def certainty(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities.max(axis=1)

    def confusion(self, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        counts = np.zeros((len(self.names), len(self.names)), dtype=np.int64)
        np.add.at(counts, (truth, predicted), 1)
        return counts

    def tally(self, codes: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        return self.names, np.bincount(codes, minlength=len(self.names))

    def text(self, label: np.ndarray) -> str | None:
        return None if label == ABSTAINED else self.names[int(label)]


def pack(bits: np.ndarray) -> np.ndarray:
    """Codes int64 [n] of int64 [n, c], bit j for column j; -1 for a row not of 0 and 1 alone."""
    places = np.arange(bits.shape[1], dtype=np.int64)
    codes = (np.clip(bits, 0, 1) << places).sum(axis=1, dtype=np.int64)
    return np.where(((bits == 0) | (bits == 1)).all(axis=1), codes, -1)


def unpack(codes: np.ndarray, attributes: int) -> np.ndarray:
    """Inverse of ``pack`` for codes of at least 0: int64 [n, attributes] of 0 and 1."""
    return (codes[:, None] >> np.arange(attributes, dtype=np.int64)) & 1


@dataclass(frozen=True)
class AttributeLabels(LabelSpace):
    """Each of at most MOST_ATTRIBUTES named attributes is present (1) or absent (0).

    Truth and labels are int64 [n, c]; a label may be ABSTAINED for some attributes alone. A code
    has bit j set where attribute j is present.
    """

    kind: ClassVar[str] = "attributes"
    form: ClassVar[str] = "whole numbers [n, attributes], at least 2 attributes"
    valid: ClassVar[str] = "0 and 1"
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        count = len(self.names)
        if count > MOST_ATTRIBUTES:
            raise InvalidInput("data.classes", f"at most {MOST_ATTRIBUTES} attributes", count)

    @property
    def num_labels(self) -> int:
        return 1 << len(self.names)

    def fits(self, truth: np.ndarray) -> bool:
        if truth.dtype.kind not in "biuf" or truth.ndim != 2:
            return False
        return truth.shape[1] == len(self.names) if self.names else truth.shape[1] > 1

    def encode(self, name: str, truth: np.ndarray) -> np.ndarray:
        return pack(self.canonical(name, truth))

    def numbered(self, truth: np.ndarray) -> "AttributeLabels":
        return self if self.names else self.of(truth.shape[1])

    def expand(self, codes: np.ndarray) -> np.ndarray:
        return unpack(codes, len(self.names))

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        return (outputs > 0).astype(np.int64)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        from scipy.special import expit  # slow

        return expit(outputs.astype(np.float64))

    def certainty(self, probabilities: np.ndarray) -> np.ndarray:
        return np.maximum(probabilities, 1 - probabilities)

    def confusion(self, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        counts = [((truth == i) & (predicted == j)).sum(axis=0) for i, j in np.ndindex(2, 2)]
        return np.stack(counts, axis=-1).reshape(-1, 2, 2)

    def tally(self, codes: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        return self.names, self.expand(codes).sum(axis=0)

    def text(self, label: np.ndarray) -> str | None:
        """The attributes present, those not released with a question mark."""
        if (label == ABSTAINED).all():
            return None
        marked = zip(self.names, label.tolist(), strict=True)
        present = (f"{name}?" if bit == ABSTAINED else name for name, bit in marked if bit)
        return ", ".join(present) or "none of them"


@dataclass(frozen=True)
class ValueLabels(LabelSpace):
    """A real value a row: truth is float64 [n], codes and labels are steps, int64 [n].

    Steps are counted from the lower bound, STEPS of them to the upper one; a value outside is moved
    to the bound. ``low``, ``high``: public bounds, declared, never taken from private rows. Raises
    InvalidInput unless both are finite and low < high.
    """

    kind: ClassVar[str] = "value"
    form: ClassVar[str] = "numbers [n]"
    valid: ClassVar[str] = "finite"
    low: float
    high: float
    names: tuple[str, ...] = field(init=False, repr=False, default=("value",))

    def __post_init__(self) -> None:
        if not 0 < self.high - self.low < math.inf:  # also refuses NaN
            rule = "[low, high] with low < high, finite, and so their difference"
            raise InvalidInput("data.bounds", rule, [self.low, self.high])

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def num_labels(self) -> int:
        return STEPS + 1

    def fits(self, truth: np.ndarray) -> bool:
        return truth.dtype.kind in "iuf" and truth.ndim == 1

    def encode(self, name: str, truth: np.ndarray) -> np.ndarray:
        return self.steps(self.canonical(name, truth))

    def steps(self, values: np.ndarray) -> np.ndarray:
        """The nearest steps of float64 [n], outside ones clipped; -1 for one that is not finite."""
        finite = np.isfinite(values)
        inside = np.clip(np.where(finite, values, self.low), self.low, self.high)
        steps = np.rint((inside - self.low) / (self.high - self.low) * STEPS).astype(np.int64)
        return np.where(finite, steps, ABSTAINED)

    def decode(self, labels: np.ndarray) -> np.ndarray:
        """Inverse of ``steps`` up to its rounding, also for fractional ones; NaN for ABSTAINED."""
        width = (self.high - self.low) / STEPS
        return np.where(labels == ABSTAINED, np.nan, self.low + labels * width)

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """An output is -1 at the lower bound, 1 at the upper one; others are clipped."""
        return self.decode((np.clip(outputs[:, 0].astype(np.float64), -1, 1) + 1) / 2 * STEPS)

    def score(
        self, predicted: np.ndarray, truth: np.ndarray, known: np.ndarray | None = None
    ) -> Score:
        rows = slice(None) if known is None else known
        return {"accuracy": None, "errors": errors(predicted[rows], truth[rows])}

    def format_score(self, score: Score) -> str:
        return format_errors(score["errors"])

    def confusion(self, truth: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        x, y = (np.clip(values, self.low, self.high) for values in (truth, predicted))
        return np.histogram2d(x, y, CELLS, [self.bounds, self.bounds])[0].astype(np.int64)

    def tally(self, codes: np.ndarray) -> tuple[Sequence[str], np.ndarray]:
        edges = self.decode(np.linspace(0, STEPS, TENTHS + 1)).tolist()
        names = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
        return names, np.bincount(codes * TENTHS // (STEPS + 1), minlength=TENTHS)

    def text(self, label: np.ndarray) -> str | None:
        return None if label == ABSTAINED else f"{self.decode(label):.4g}"


def half_ranges(steps: np.ndarray) -> np.ndarray:
    """Values of ``steps``, int64 [n], in half ranges from the middle of the bounds: float64 [n]."""
    return 2.0 * steps / STEPS - 1


def steps_of(values: np.ndarray) -> np.ndarray:
    """The nearest steps, int64 [n], of values in half ranges, outside ones clipped."""
    return np.rint((np.clip(values, -1, 1) + 1) / 2 * STEPS).astype(np.int64)


def errors(values: np.ndarray, truth: np.ndarray) -> dict[str, float] | None:
    """Root mean squared and mean absolute error, in the values' unit, and R2 of float64 [n] each.

    None for fewer than two rows.
    """
    if len(values) < 2:
        return None
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error  # slow

    measures = (root_mean_squared_error, mean_absolute_error, r2_score)
    results = [float(measure(truth, values)) for measure in measures]
    return dict(zip(ERRORS, results, strict=True))


def format_errors(measured: dict[str, float] | None) -> str:
    """Errors for a reader: "RMSE 0.31, R2 0.892"; "unknown" if there are none."""
    if measured is None:
        return "unknown"
    return f"RMSE {measured['rmse']:.4g}, R2 {measured['r2']:.3f}"


def label_space(kind: str, names: Sequence[str] = (), bounds: Sequence[float] = ()) -> LabelSpace:
    """The space called ``kind``, with the names of classes or attributes, or the bounds of values.

    Raises InvalidInput for an unknown kind, and for names or bounds that break the space's rules.
    """
    if kind == ValueLabels.kind:
        low, high = bounds
        return ValueLabels(low, high)
    named = {space.kind: space for space in (ClassLabels, AttributeLabels)}
    if kind not in named:
        known = ", ".join([*named, ValueLabels.kind])
        raise InvalidInput("data.labels", f"one of {known}", kind)
    return named[kind](tuple(names))


def numbered_space(kind: str, count: int) -> LabelSpace:
    """A space of ``count`` classes or attributes, or of values, if names do not matter."""
    return label_space(kind, list(map(str, range(count))), (0.0, 1.0))
