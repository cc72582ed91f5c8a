"""Noisy sums over all records, of a round's public matrices: histograms of cells, and gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.matrices import MAX_CELLS, MAX_DIMENSIONS, MAX_ENTRY, MAX_GAIN, SENSITIVITY
from ...wall.messages import ABSTAINED, Value
from ...wall.questions import CellsForm, SumsForm
from ..accounting.plan import Release
from .base import Mechanism
from .fields import count, more_noise, noise_scale, param

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Keys, Voters

HISTOGRAM, SUM = "histogram", "sum"
MAX_NEIGHBOURS = 64
ROWS_A_CELL = 3  # public rows, at least: fewer do not tell where cells are
MAX_PARTS = 1 << 12  # of a vote; what a person gets by default
MAX_STEPS = 100
MIN_MULTIPLIER, MAX_MULTIPLIER = 0.001, 900.0  # times SENSITIVITY within the curves' range


@dataclass(frozen=True)
class NoisySum(Mechanism):
    """Releases sums of what records add, integers, with discrete Gaussian noise on every entry.

    Guarantee, for one query under add/remove of one record: ``curves.gaussian_rdp``, as a record
    moves the sum by ``sensitivity`` units of the noise's scale at most, in L2. The scale drawn is
    the accounted one, the same float.

    Class attributes:
        noise_field: the one with the noise's scale.
    """

    noise_field: ClassVar[str] = "sigma"
    persons = True

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """L2, in the units of ``noise_field``."""

    @property
    @abstractmethod
    def grid(self) -> int:
        """Integers of the sum in one unit of ``noise_field``."""

    def sums(self, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Sums without noise: int64 [n_queries, m]; the tally if no record is sampled."""
        tally = self.tally(voters) if voters.tally is None else voters.tally
        assert tally is not None
        return tally

    @property
    def noise(self) -> float:
        """The noise's scale in integers of the sum."""
        return self.require(self.noise_field) * self.grid

    def with_noise(self, level: float, asked: int) -> Self:
        """A sum moves by its sensitivity."""
        return self.with_values(**{self.noise_field: more_noise(level * self.sensitivity)})

    def noisier(self, factor: float) -> Self:
        if factor == 1.0:
            return self
        noise = more_noise(self.require(self.noise_field) * factor)
        bare: Self = replace(self, **{self.noise_field: None})
        return bare.with_values(**{self.noise_field: noise})

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` noisy sums; each of them is answered."""
        priced = {
            "sigma": self.noise,
            "sensitivity": self.grid * self.sensitivity,
            "sample_rate": self.rate,
        }
        return (Release(self.stages[0], "gaussian", priced, asked),)

    def draw(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Noisy sums: int64 [n_queries, m]."""
        sums = self.sums(voters, keys, entropy)
        return sums + entropy.discrete_gaussian(self.noise, keys, stage, sums.shape[1])

    def label(self, value: Any) -> Value:
        """A matrix has sums and no label; rows get theirs from the sums."""
        return ABSTAINED


@dataclass(frozen=True)
class Histogram(NoisySum):
    """Base of counts of records: a row adds 1 to some of them.

    A person adds a vector no longer than a row's (``votes_in_cells.shared_votes``).
    """

    sigma: float | None = noise_scale("every count")
    parts: int | None = count(
        None,
        "counts are multiples of 1 / parts, so that a person can share its votes among those that "
        "its rows are in; null: 1, or 4096 with privacy.unit: person",
        MAX_PARTS,
    )

    stages = (HISTOGRAM,)
    of_persons: ClassVar = {"parts": MAX_PARTS}

    @property
    def grid(self) -> int:
        return self.parts or 1


@dataclass(frozen=True)
class Score(Histogram):
    """How many records of each class a PUBLIC model predicts right, and how many wrong.

    The features are the model's decisions, and the cells those of the classes in their order: a
    record's prediction is its nearest cell. Guarantee: that of ``NoisySum``. A record adds 1 to one
    count and changes nothing else, so the L2 sensitivity is 1 for any number of classes. The kinds
    for other labels divide this 1. Settings name them by ``evaluate``.
    """

    kind: Literal["score"] = "score"
    updated = True
    scores = True

    stages = ("score",)
    sensitivity = 1.0

    @property
    def query_form(self) -> CellsForm:
        return CellsForm(centroids=0, noise=self.sigma, parts=self.grid)

    def tally(self, voters: Voters) -> np.ndarray:
        """Right predictions by output, then wrong ones: int64 [n_queries, 2 * outputs]."""
        return voters.right_votes(self.label_space, self.grid)


def _shared() -> Any:
    return count(MAX_PARTS, "counts are multiples of 1 / parts of what a record adds", MAX_PARTS)


@dataclass(frozen=True)
class ScoreAttributes(Score):
    """How many records of each attribute a PUBLIC model predicts right, and how many wrong.

    A record moves a count of each of c attributes by the same, 1 / sqrt(c) or a little less.
    """

    kind: Literal["score_attributes"] = "score_attributes"  # type: ignore[assignment]
    parts: int | None = _shared()
    label_space = "attributes"


@dataclass(frozen=True)
class ScoreValue(Score):
    """How large a PUBLIC model's squared errors are.

    A record adds e to one count and 1 - e to the other: e is the square of its error over a quarter
    of the range, at most 1.
    """

    kind: Literal["score_value"] = "score_value"  # type: ignore[assignment]
    parts: int | None = _shared()
    label_space = "value"


@dataclass(frozen=True)
class ScoreTables(Score):
    """How many records of each class are in each bin of a PUBLIC model's score.

    Bins lie between public thresholds, so that sums of counts are a 2 x 2 table at each threshold.
    The features are the numbers of the bins, and a record's bin is its nearest cell. Guarantee:
    that of ``Score``, as a record has one bin and one class. Settings name it by
    ``evaluate.thresholds``.
    """

    kind: Literal["score_tables"] = "score_tables"  # type: ignore[assignment]
    thresholds: int = count(4, "between which records are counted", MAX_ENTRY)

    @property
    def query_form(self) -> CellsForm:
        bins = self.thresholds + 1
        cells = 0 if self.label_space == "attributes" else bins
        return CellsForm(centroids=cells, noise=self.sigma, parts=self.grid, bins=bins)

    def tally(self, voters: Voters) -> np.ndarray:
        """Records by score, class (or absence and presence) and bin: int64 [n_queries, m]."""
        return voters.table_votes(self.label_space, self.grid)


@dataclass(frozen=True)
class ScoreTablesAttributes(ScoreTables):
    """How many records with and without each attribute are in each bin of a PUBLIC model's score.

    A record moves a count of each of c attributes by the same, 1 / sqrt(c) or a little less.
    """

    kind: Literal["score_tables_attributes"] = "score_tables_attributes"  # type: ignore[assignment]
    parts: int | None = _shared()
    label_space = "attributes"


@dataclass(frozen=True)
class ReverseKnn(Histogram):
    """Votes of all private records in public cells (Li et al. 2022), released once a round.

    Guarantee: that of ``NoisySum``. A record adds 1 to the count of its label in ``neighbours``
    different cells and changes nothing else, so the L2 sensitivity is sqrt(neighbours) for any
    number of cells. Cells without records get the same noise as all others.
    """

    kind: Literal["reverse_knn"] = "reverse_knn"
    centroids: int = count(
        150, "of a round's public cells: means of clusters of the public rows' features", MAX_CELLS
    )
    neighbours: int = count(
        1,
        "nearest cells that each record votes in; more of them smooth the counts, and the noise "
        "for the same epsilon grows with their square root",
        MAX_NEIGHBOURS,
    )
    margin: float = param(
        0.0,
        "a public row is labelled only if its best class leads the next by more; free",
        unit="noisy votes",
        ge=0,
    )
    row_neighbours: int = count(
        1,
        "nearest cells whose noisy counts a public row adds up; free; small cells are purer, and "
        "adding their neighbours' votes makes up for their few votes",
        MAX_NEIGHBOURS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("neighbours", "row_neighbours"):
            if vars(self)[name] > self.centroids:
                raise InvalidInput(f"mechanism.{name}", "at most centroids", vars(self)[name])

    rehearsed = True

    def sized_for(self, records: int, classes: int, rows: int, votes: int | None) -> Self:
        return replace(self, centroids=min(self.centroids, max(1, rows // ROWS_A_CELL)))

    @property
    def sensitivity(self) -> float:
        return math.sqrt(self.neighbours)

    @property
    def query_form(self) -> CellsForm:
        return CellsForm(
            centroids=self.centroids,
            row_neighbours=self.row_neighbours,
            margin=self.margin,
            noise=self.sigma,
            parts=self.grid,
            neighbours=self.neighbours,
        )

    def tally(self, voters: Voters) -> np.ndarray:
        """Histograms of sets of m cells: int64 [n_queries, m * n_classes]."""
        return voters.cell_votes(self.neighbours, self.grid)


def residual_clip(default: float, help: str, most: float = 1.0) -> Any:
    """The setting of the length above which residuals are shrunk."""
    return param(default, f"{help}, at inputs of a unit vector's length", ge=0.01, le=most)


def label_margin(text: str) -> Any:
    """The setting of the lead that a label needs."""
    return param(0.0, f"{text}; free", unit="a probability", ge=0, lt=1)


@dataclass(frozen=True)
class LinearSums(NoisySum):
    """Base of three linear models: every step releases the noisy sum of all clipped gradients.

    Guarantee, for one step: that of ``NoisySum``. The record adds an integer vector of length
    SENSITIVITY at most, whatever the weights, its features, its label and the other records, and
    changes nothing else. Steps compose; weights may depend on earlier sums. The label space decides
    a record's residuals: of classes (softmax regression), of attributes (one logistic regression
    each) or of a value (linear regression).
    """

    steps: int = count(2, "noisy sums of a round", MAX_STEPS)
    noise_multiplier: float | None = noise_scale(
        "one step", "sensitivities", ge=MIN_MULTIPLIER, le=MAX_MULTIPLIER
    )
    clip: float = residual_clip(1.0, "length of the residuals above which they are shrunk")
    axes: int | None = count(
        None,
        "principal axes of the public rows' features that the model looks at, each divided by the "
        "root of its deviation; null: the features as they are. The noise on every axis is the "
        "same, so that few records and a small budget want few of them; free",
        MAX_DIMENSIONS,
    )
    gain: int | None = count(
        None,
        "factor of a record's gradient (of a person's, the average of its rows') before it is "
        "clipped to the length of a row's; null: 1, or 2 for classes and attributes with "
        "privacy.unit: person",
        MAX_GAIN,
    )

    stages = (SUM,)
    leaves_classifier = True
    rehearsed = True
    noise_field = "noise_multiplier"
    # Averages of many rows are shorter than single gradients; with more than 2 the count of the
    # records becomes uncertain.
    of_persons: ClassVar = {"gain": 2}
    sensitivity = 1.0
    grid = SENSITIVITY

    @property
    def query_form(self) -> SumsForm:
        return SumsForm(
            noise=self.noise_multiplier,
            steps=self.steps,
            clip=self.clip,
            labels=self.label_space,
            axes=self.axes,
            gain=self.gain or 1,
            margin=vars(self).get("margin", 0.0),
        )

    @property
    def charges_a_round(self) -> int:
        return self.steps

    def tally(self, voters: Voters) -> np.ndarray:
        """Sums of gradients: int64 [n_queries, (d + 1) * outputs + 1]."""
        return voters.gradients(self.clip, self.label_space, self.gain or 1)


@dataclass(frozen=True)
class PrivateLinear(LinearSums):
    """A linear classifier: softmax regression by noisy sums (``LinearSums`` has the guarantee)."""

    kind: Literal["private_linear"] = "private_linear"
    updated = True
    steps: int = count(
        30,
        "noisy sums of a round; fewer than ten are poor, but for a single one, which gives "
        "Gaussian classes and suits images at tiny budgets; more cost time alone",
        MAX_STEPS,
    )
    clip: float = residual_clip(
        0.1,
        "length of the residuals (probabilities minus label, at most 1.41) above which they are "
        "shrunk",
        1.5,  # no residual is longer than sqrt(2)
    )
    margin: float = label_margin(
        "a public row is labelled only if its best class leads the next by more, or by more than "
        "on half of the rows of that class"
    )


@dataclass(frozen=True)
class PrivateLinearAttributes(LinearSums):
    """One logistic regression an attribute, by sums over all of them at once (``LinearSums``).

    A record's residuals of all attributes are one vector, which is clipped as a whole: a step costs
    the same for any number of attributes.
    """

    kind: Literal["private_linear_attributes"] = "private_linear_attributes"
    steps: int = count(
        30, "noisy sums of a round; fewer than ten are poor, more cost time alone", MAX_STEPS
    )
    clip: float = residual_clip(
        0.1,
        "root mean square of a record's residuals (probability minus label, each at most 1), over "
        "the attributes, above which they are shrunk",
    )
    margin: float = label_margin(
        "a public row's attribute is labelled only if one answer leads the other by more"
    )
    label_space = "attributes"


@dataclass(frozen=True)
class PrivateLinearValue(LinearSums):
    """Linear regression by noisy moments (``LinearSums`` has the guarantee).

    The first sum is of value times features, values counted from the middle of the declared bounds.
    Later ones are of what the regression misses. Public rows tell the features' second moments.
    """

    kind: Literal["private_linear_value"] = "private_linear_value"
    steps: int = count(5, "noisy sums of a round", MAX_STEPS)
    clip: float = residual_clip(
        0.25,
        "length of the residuals (prediction minus value) after the first step above which they "
        "are shrunk, in half ranges (high - low) / 2",
    )
    label_space = "value"
    of_persons: ClassVar = {"gain": 1}  # clipping large values would bend the first sum's moments
