"""What a run came to: the record in summary.json. All of it is public."""

import math
from dataclasses import dataclass, field

from ...student.results import Errors, Estimate, RoundResult
from ...wall.guarantee import Unit

LEAST_BEHIND = 2.0  # deviations of a share of the test rows that are no chance
Noisy = tuple[float, float]  # a number, and its standard error, of the noise


@dataclass(frozen=True, kw_only=True)
class AtThreshold:
    """Private records at a public ``threshold`` of a probability.

    ``sensitivity``: share of those with the class or attribute that are above it; ``specificity``:
    share of the others that are not. None where noise hides it.
    """

    threshold: float
    sensitivity: Noisy | None
    specificity: Noisy | None


@dataclass(frozen=True, kw_only=True)
class ByThreshold:
    """Private records by public thresholds of the probability of a class or an attribute.

    ``auroc``: how often one with it is in a higher bin than one without, where the same bin counts
    half; its standard error, of the noise; and half the share of pairs in the same bin, by which
    the AUROC of the probabilities themselves may be more or less. ``balanced_accuracy``: at 0.5,
    (sensitivity + specificity) / 2. None where noise hides it.
    """

    auroc: tuple[float, float, float] | None
    balanced_accuracy: Noisy | None
    tables: tuple[AtThreshold, ...]


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
    records. ``thresholds``: by the second of two classes, or by attribute, where they were asked.
    """

    right: float | None
    error: float | None
    by_class: dict[str, tuple[float, float]]
    epsilon: float
    least: float | None
    rmse: tuple[float, float, float] | None = None
    thresholds: dict[str, ByThreshold] = field(default_factory=dict)

    @property
    def auroc(self) -> tuple[float, float, float] | None:
        """Means of those that are known, whose noise is independent."""
        known = [one.auroc for one in self.thresholds.values() if one.auroc is not None]
        if not known:
            return None
        values, errors, ties = zip(*known, strict=True)
        count = len(known)
        return sum(values) / count, math.hypot(*errors) / count, sum(ties) / count

    def text(self) -> str:
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
        ranked = "AUROC {:.3f} +- {:.3f} (ties +- {:.3f}), " if self.auroc else ""
        ranked = ranked.format(*self.auroc or ())
        return (
            f"on the private records: {ranked}{right:.1f}% +- {error:.1f} right, at most "
            f"{right - least:.1f} points more than on fresh ones {bought}"
        )


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """What a classifier is compared with, by public rows alone: shares of right rows, in 0..1.

    ``frequent``: the most frequent class of the test rows, and its share. ``public``: what gives
    most of the public labels that are learned, and its share, cross-validated; None without any.
    ``no_privacy``: logistic regression on the test rows, a forecast of what labels without noise
    would give; None of few rows.
    """

    frequent: tuple[str, float]
    public: tuple[str, float] | None
    no_privacy: float | None

    def text(self) -> str:
        name, share = self.frequent
        text = f"always {name!r} {100 * share:.1f}%"
        if self.public is not None:
            by, share = self.public
            text += f", public labels alone {100 * share:.1f}% by {by}"
        if self.no_privacy is not None:
            text += f", regression on the test rows about {100 * self.no_privacy:.0f}%"
        return text


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
    baselines: Baselines | None = None  # of classes, where there are test rows
    rounds: tuple[RoundResult, ...]
    dataset: str
    ledger_head: str
    lost: dict[str, int]  # releases that were charged by calls that ended before an answer
    private_score: PrivateScore | None
    custodians: tuple[CustodianRecord, ...]
    seed: int
    balanced: bool = False  # whether labels favour each class alike
    public_rows: int
    periods: tuple[PeriodResult, ...]
    test_rows: int
    held_out: bool  # whether the test rows are public rows held out
    date: str  # ISO, of the day on which it was first finished

    @property
    def useless(self) -> bool:
        """Whether the most frequent class alone is right on more of the test rows.

        A balanced result is compared by balanced accuracy.
        """
        if self.baselines is None:
            return False
        if self.balanced:
            return (self.balanced_accuracy or 0.0) < 1 / sum(map(any, self.kept.confusion))
        return (self.test_accuracy or 0.0) < self.baselines.frequent[1]

    @property
    def needless(self) -> bool:
        """Whether the share that public labels alone give, cross-validated, is above the test
        accuracy by more than the test rows' chance.
        """
        if self.baselines is None or self.baselines.public is None or self.balanced:
            return False
        share = self.baselines.public[1]
        deviation = math.sqrt(share * (1 - share) / max(self.test_rows, 1))
        return (self.test_accuracy or 0.0) < share - LEAST_BEHIND * deviation

    @property
    def kept(self) -> RoundResult:
        """The round whose student is the result."""
        return self.rounds[self.best_round - 1]
