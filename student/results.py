"""What a round came to: the record in metrics.json; what a report shows of public rows; the reader
and the writer of such records. Which round is kept follows from them.

Everything here is public: computed from what was released, and from public rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ..wall.files import DELETE, reading, write_file
from .measures import Measures
from .tuning import SURE

# What an estimate follows from
COUNTS, PROBABILITIES, AGREEMENT = "noisy counts", "probabilities", "cross-validation"
MOMENTS = "noisy moments"
UNKNOWN = "nothing"  # the released counts do not tell the records from none

LEAST_ERROR = 0.035  # of an estimate by probabilities: a linear model is not quite right

T = TypeVar("T")
Errors = dict[str, float]  # of values, by measure: rmse, mae, r2


@dataclass(frozen=True)
class Estimate:
    """How many of a round's labels are right, from released values alone.

    ``right``: estimated share of right labels, in [0, 1]; ``error``: its standard error.

    ``by``: COUNTS, PROBABILITIES, or AGREEMENT, which tells whether labels agree with one another.
    By MOMENTS ``right`` is the variance of values that a regression explains, in squares of half
    the range, which has a place among rounds and is no share of right labels.
    """

    right: float
    error: float
    by: str
    why: str = ""  # it is unknown
    few: dict[str, int] = field(default_factory=dict)  # classes with few records: about how many

    @property
    def known(self) -> bool:
        return not self.why and self.by != UNKNOWN

    @property
    def range(self) -> tuple[float, float]:
        """Between which shares of right labels nine of ten runs were (docs/decisions.md)."""
        wide = 2 * max(self.error, LEAST_ERROR)
        return max(self.right - wide, 0.0), min(self.right + wide, 1.0)

    def text(self) -> str:
        """For a reader, where nothing else is known of the labels."""
        if not self.known:
            return f"unknown ({self.why})" if self.why else "unknown"
        if self.by == MOMENTS:
            deviation = math.sqrt(max(self.right, 0.0))
            return f"a deviation of {deviation:.2f} half ranges explained by {self.by}"
        name = "consistent" if self.by == AGREEMENT else "right"
        if self.by == PROBABILITIES:  # whose errors on data were measured
            low, high = (100 * end for end in self.range)
            name = f"({low:.0f} to {high:.0f}%) {name}"
        return f"about {100 * self.right:.0f}% {name} by {self.by}"


@dataclass(frozen=True, kw_only=True)
class StudentScore:
    """How good a student is on the test rows; None, and no counts, where there are none."""

    student_accuracy: float | None
    student_errors: Errors | None = None
    confusion: list[Any]  # LabelSpace.confusion as nested lists
    calibration_error: float | None  # expected calibration error, a share in 0..1
    test_sha256: str  # of the test rows and their labels
    measures: Measures | None = None  # of medicine and of imbalance; None for values
    groups: dict[str, Measures] = field(default_factory=dict)  # those of named groups of test rows


@dataclass(frozen=True, kw_only=True)
class RoundResult(StudentScore):
    """A finished round: what its metrics.json holds."""

    period: int  # of the plan, from 1
    asked: int  # public rows
    answered: int
    abstained: int
    cap_reached: int
    label_accuracy: float | None  # of released labels, where public rows have true ones
    label_errors: Errors | None = None
    nearest_right: float | None = None  # labelled rows whose nearest one, by the features, agrees
    estimate: Estimate | None
    extractor: str  # backbone of the features that it asked with
    features: str  # file of these features in the run folder; "" where the settings name them
    features_of: int  # the round whose student computes them, before axes; 0: the first features
    taught: bool  # False: its released classifier is taken for the student
    dropped: int  # doubtful labels that the student was not trained on
    seconds: float  # of the training
    epsilon_reading: float  # of the budget spent so far; no guarantee
    ledger_head: str

    @property
    def shares(self) -> dict[str, float | None]:
        """Shares of right rows by their names, None where one is not known."""
        known = self.estimate is not None and self.estimate.known
        return {
            "student, test rows": self.student_accuracy,
            "labels, public rows": self.label_accuracy,
            "nearest neighbours": self.nearest_right,
            "labels, estimate": self.estimate.right if self.estimate and known else None,
        }


def estimates(results: Sequence[RoundResult], period: int) -> list[Estimate | None]:
    """Each round's estimate; None for rounds of another period, whose records were others."""
    return [result.estimate if result.period == period else None for result in results]


def kept_round(results: Sequence[RoundResult]) -> int:
    """The round, from 1, whose student is kept after the last of these."""
    return best_round(estimates(results, results[-1].period))


def best_round(known: Sequence[Estimate | None]) -> int:
    """The round whose student a run keeps, counted from 1: the last that is not worse.

    ``known``: of each round.
    """
    kept = 1
    for number in range(2, len(known) + 1):
        if not worse(known[number - 1], known[kept - 1]):
            kept = number
    return kept


def worse_rounds(known: Sequence[Estimate | None]) -> set[int]:
    """The rounds, counted from 1, that are worse than an earlier one."""
    return {n for n in range(2, len(known) + 1) if best_round(known[:n]) < n}


def worse(later: Estimate | None, earlier: Estimate | None) -> bool:
    """Whether a round is worse than an earlier one, by more than chance explains."""
    if later is None or earlier is None:
        return False
    if later.by != earlier.by:
        return later.by == UNKNOWN
    return later.right < earlier.right - SURE * math.hypot(later.error, earlier.error)


@dataclass(frozen=True, kw_only=True)
class ShownImage:
    """A public image. ``label``: the released one, empty if it has none; ``sure``: in 0..1."""

    jpeg: str  # base64
    label: str
    said: str  # by the model
    sure: float


@dataclass(frozen=True, kw_only=True)
class ShownRows:
    """The record in shown.json.

    ``answered``: by the class that the model says, asked rows with a label and without one; empty
    if all have one. ``columns``, ``words``: as in ``shown.py``.
    """

    model: str  # SHA-256
    rows: int  # public ones that it was asked about
    unsure: tuple[ShownImage, ...] = ()
    against: tuple[ShownImage, ...] = ()
    answered: dict[str, tuple[int, int]] = field(default_factory=dict)
    columns: dict[str, dict[str, float]] = field(default_factory=dict)
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read(kind: type[T], path: Path, cure: str = DELETE) -> T:
    """The record of a JSON file. Raises LabelwallError as ``reading``."""
    with reading(path, cure):
        return TypeAdapter(kind).validate_json(path.read_bytes())


def write(record: object, path: Path) -> None:
    """Write a record as a JSON file, atomically."""
    write_file(path, TypeAdapter(type(record)).dump_json(record, indent=2))
