"""What a run came to: the records in metrics.json and summary.json, their reader and their writer.

Everything here is public: computed from what was released, and from public rows.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ...wall.files import DELETE, reading, write_file
from ...wall.guarantee import Unit

# What an estimate follows from
COUNTS, PROBABILITIES, AGREEMENT = "noisy counts", "probabilities", "cross-validation"
MOMENTS = "noisy moments"
UNKNOWN = "nothing"  # the released counts do not tell the records from none

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

    def text(self) -> str:
        """For a reader, where nothing else is known of the labels."""
        if not self.known:
            return f"unknown ({self.why})" if self.why else "unknown"
        if self.by == MOMENTS:
            deviation = math.sqrt(max(self.right, 0.0))
            return f"a deviation of {deviation:.2f} half ranges explained by {self.by}"
        name = "consistent" if self.by == AGREEMENT else "right"
        return f"about {100 * self.right:.0f}% {name} by {self.by}"


@dataclass(frozen=True, kw_only=True)
class StudentScore:
    """How good a student is on the test rows; None, and no counts, where there are none."""

    student_accuracy: float | None
    student_errors: Errors | None = None
    confusion: list[Any]  # LabelSpace.confusion as nested lists
    calibration_error: float | None  # expected calibration error, a share in 0..1
    test_sha256: str  # of the test rows and their labels


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
    estimate: Estimate | None
    extractor: str  # backbone of the features that it asked with
    features: str  # file of these features in the run folder; "" where the settings name them
    features_of: int  # the round whose student computes them, before axes; 0: the first features
    taught: bool  # False: its released classifier is taken for the student
    dropped: int  # doubtful labels that the student was not trained on
    seconds: float  # of the training
    epsilon_reading: float  # of the budget spent so far; no guarantee
    ledger_head: str


@dataclass(frozen=True, kw_only=True)
class PrivateScore:
    """A model's score on the private records, which a share of the budget paid for.

    ``right``: share of the private records, or of their attributes, in 0..1, None where noise hides
    it; for values 1 less the mean squared error over that of a quarter of the range; where persons
    are protected the mean over persons. ``error``: its
    standard error, of the noise. ``by_class``: name of a class or attribute -> (right, error),
    where counts carry them. ``epsilon``: of all scores of the plan by themselves. ``least``: what
    the guarantee by itself promises of ``right`` for fresh records from the same source, in the
    mean. ``rmse``: of values, in their unit: it, its standard error, and the largest for fresh
    records.
    """

    right: float | None
    error: float | None
    by_class: dict[str, tuple[float, float]]
    epsilon: float
    least: float | None
    rmse: tuple[float, float, float] | None = None

    def text(self) -> str:
        """For a reader."""
        bought = f"(released at epsilon {self.epsilon})"
        if self.right is None or self.error is None or self.least is None:
            return f"on the private records: unknown, the noise hides it {bought}"
        if self.rmse is not None:
            rmse, error, most = self.rmse
            return (
                f"on the private records: RMSE {rmse:.4g} +- {error:.2g}, on fresh ones at most "
                f"{most:.4g} {bought}"
            )
        right, error, least = 100 * self.right, 100 * self.error, 100 * self.least
        return (
            f"on the private records: {right:.1f}% +- {error:.1f} right, at most "
            f"{right - least:.1f} points more than on fresh ones {bought}"
        )


@dataclass(frozen=True, kw_only=True)
class PeriodResult:
    """A finished period of a plan."""

    period: int  # from 1
    epsilon: float  # certified, up to this period
    left: int  # periods
    test_accuracy: float | None
    estimate: Estimate | None
    private_score: PrivateScore | None
    public_sha256: str  # of the public rows


@dataclass(frozen=True, kw_only=True)
class CustodianRecord:
    """One of several custodians, by the last copy of its ledger that was seen."""

    teacher: str  # URL
    dataset: str | None = None
    ledger_head: str | None = None
    epsilon: float | None = None  # certified; None where nothing is
    left_out: str | None = None  # why


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A finished run: what its summary.json holds."""

    epsilon: float | None  # certified; None where the noise is unsafe
    delta: float
    unsafe: bool
    adversary: str
    unit: Unit
    certificates: dict[str, float]
    best_round: int  # the round whose student is the result, from 1
    test_accuracy: float | None
    test_errors: Errors | None = None
    balanced_accuracy: float | None = None
    worst_class: float | None = None
    rounds: tuple[RoundResult, ...]
    dataset: str
    ledger_head: str
    lost: dict[str, int]  # releases that were charged by calls that ended before an answer
    private_score: PrivateScore | None
    custodians: tuple[CustodianRecord, ...]
    seed: int
    public_rows: int
    periods: tuple[PeriodResult, ...]
    test_rows: int
    held_out: bool  # whether the test rows are public rows held out
    date: str  # ISO, of the day on which it was first finished

    @property
    def kept(self) -> RoundResult:
        """The round whose student is the result."""
        return self.rounds[self.best_round - 1]


def read(kind: type[T], path: Path, cure: str = DELETE) -> T:
    """The record of a JSON file. Raises LabelwallError as ``reading``."""
    with reading(path, cure):
        return TypeAdapter(kind).validate_json(path.read_bytes())


def write(record: object, path: Path) -> None:
    """Write a record as a JSON file, atomically."""
    write_file(path, TypeAdapter(type(record)).dump_json(record, indent=2))
