"""Groups of settings of a run, each with its own rules; those that the public side needs."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from ...student.config import StudentConfig
from ...teacher.mechanisms.base import QueryForm
from ...teacher.mechanisms.registry import AnyMechanism
from ...wall.datasets.config import SOURCES, DataConfig
from ...wall.errors import InvalidInput

# The least guess, however few public rows there are: for 50 records every method seems hopeless.
# KEEL's letter and penbased, 50 public rows, epsilon 1: 45 and 68% became 70 and 96.
LEAST_RECORDS = 1_000
STAGES = "efficientnet_lite0_stages"
FEATURES = ("auto", "hog", "raw", "fourier", "efficientnet_lite0", STAGES, "box")
TIMM = "timm/"  # with a model's name: further features
Count = Annotated[int, Field(ge=1)]
MAX_PERIODS = 366


@dataclass(frozen=True)
class BudgetConfig:
    """The guarantee that the whole run may spend.

    Args:
        epsilon: cap on the certified epsilon (dimensionless, natural logarithm).
        delta: failure probability; fix it without looking at the number of private rows.
        periods: parts of it, a count: one for the records as they are first, and one for each later
            `labelwall update` of them.
        reserve: share of it (of its Renyi divergence) that all updates have together; null: equal
            parts.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    periods: Annotated[int, Field(ge=1, le=MAX_PERIODS)] = 1
    reserve: Annotated[float, Field(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        if self.reserve is not None and self.periods == 1:
            raise InvalidInput("budget.reserve", "given with budget.periods above 1", self.reserve)

    @property
    def first(self) -> float:
        """Share of the first period."""
        return 1 / self.periods if self.reserve is None else 1 - self.reserve

    @property
    def later_noise(self) -> float:
        """Noise of a later period's sums over that of the first one's."""
        reserve = self.reserve
        return math.sqrt((1 - reserve) * (self.periods - 1) / reserve) if reserve else 1.0


@dataclass(frozen=True)
class PrivacyConfig:
    """What the guarantee protects.

    Args:
        unit: row (a record is one row) or person (a record is all rows of a person, who is named by
            data.person or private_person).
    """

    unit: Literal["row", "person"] = "row"


@dataclass(frozen=True)
class CapsConfig:
    """The most releases that the plan pays for, over all rounds that share them.

    Args:
        asked: queries screened, a count; the rounds' total when null. For ind_knn no cap: the
            queries that its noise is planned for. A query is a round's histogram for reverse_knn,
            a step for private_linear, a round's batch for radius and batch_knn.
        answered: queries answered with a label after screening, a count; as asked when null.
    """

    asked: Count | None = None
    answered: Count | None = None


@dataclass(frozen=True)
class EvaluateConfig:
    """A private score: how many private records the result predicts right, with noise, by class or
    attribute; of values the mean squared error.

    Args:
        share: share of the budget that pays for it (of its Renyi divergence); 0: no score.
        choose: whether it chooses the result among the students of all rounds and the classifiers
            that noisy sums leave, each of which is scored, and paid for; else the result alone is
            scored.
        sigma: scale of the noise on every count (records); null: what the budget asks for.
    """

    share: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    choose: bool = False
    sigma: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True)
class RoundConfig:
    """One round: ask, train, send features back.

    Args:
        queries: public inputs asked in this round, a count. reverse_knn and private_linear ask all
            of them when null: their price does not depend on the count.
        mechanism: this round's own mechanism; the run's when null.
        caps: caps of the round's own mechanism.
    """

    queries: Count | None = None
    mechanism: AnyMechanism | None = None
    caps: CapsConfig = field(default_factory=CapsConfig)

    def __post_init__(self) -> None:
        if self.mechanism is None and self.caps != CapsConfig():
            rule = "given together with the round's own mechanism"
            raise InvalidInput("rounds.caps", rule, self.caps)


@dataclass(frozen=True, kw_only=True)
class FirstFeatures:
    """Which features the first round asks with.

    Args:
        features: features of the first round: "hog" for images, "raw" for feature vectors, "auto"
            by the data, "efficientnet_lite0" for images by ImageNet weights (in a package),
            "efficientnet_lite0_stages" for the same with those of earlier stages, better where
            images are unlike ImageNet's,
            "timm/NAME" for images by a timm model with its published weights, "box" for feature
            vectors in a declared box, "fourier" for 1,024 random Fourier features of few columns of
            deviation about 1, as a table's are: classes with curved borders.
        weights: safetensors file of the weights for "timm/NAME" (path); timm downloads them when
            null.
        box: the public domain of feature vectors (the vectors' units), required by "box": [low,
            high] for each dimension, or one for all of them.
        whiten: number of principal axes of the public rows onto which the first round's features
            are projected, each divided by its spread (a count); 0: features as they are. Neighbours
            are better ones where a few directions hold most of the spread.
    """

    features: str = "auto"
    weights: str | None = None
    box: list[list[float]] = field(default_factory=list)
    whiten: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        name, box = self.features, self.box
        if name not in FEATURES and not name.startswith(TIMM):
            raise InvalidInput("features", f"one of {', '.join(FEATURES)}, {TIMM}NAME", name)
        if self.weights is not None and not name.startswith(TIMM):
            raise InvalidInput("weights", f"given with features: {TIMM}NAME alone", self.weights)
        if (name == "box") != bool(box):
            raise InvalidInput("box", "given with features: box, and with nothing else", box)
        for side in box:
            if len(side) != 2 or not all(map(math.isfinite, side)) or side[0] >= side[1]:
                raise InvalidInput("box", "a list of [low, high] with low < high, finite", side)
        if self.whiten and name == "box":
            raise InvalidInput("whiten", "0 with features: box", self.whiten)


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How it is computed, which changes no result.

    Args:
        threads: CPU threads of torch, a count.
        workers: threads that compute features, and at most so many short trainings at a time,
            each in a process with its share of the threads, a count.
        batch_size: queries charged, answered and recorded together, a count.
        device: device for the private rows' networks, products and neighbour lists, and for the
            networks of public rows that may be asked: cpu, or cuda, a GPU of this machine.
    """

    threads: Count = 2
    workers: Count = 2
    batch_size: Count = 256
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True, kw_only=True)
class PublicSide(FirstFeatures, Computing):
    """What asking and training need; of the private side nothing but how many records a guess has.

    Args:
        data: where private, public and test rows come from.
        choice: which public rows are asked: typical ones (dense rows of every cluster of the
            round's features), or random ones.
        student: the public-side network and its training.
        public_labels: what labels of public rows serve, where these have classes: reported metrics
            and the choice of a method alone (metrics), or training as well (train, the default for
            one's own data): private_linear's sums then say what a classifier of these labels
            misses, and the student learns them beside the released labels.
        seed: public randomness alone (which queries, network initialisation, batches); never the
            noise.
        expected_records: a PUBLIC guess of the number of private records (a count), for plans and
            warnings, those of several custodians together; the published split's or the public
            rows' when null.
    """

    data: DataConfig
    choice: Literal["typical", "random"] = "typical"
    student: StudentConfig = field(default_factory=StudentConfig)
    public_labels: Literal["metrics", "train"] = "metrics"
    seed: int = 0
    expected_records: Count | None = None

    @property
    def taught(self) -> bool:
        return self.public_labels == "train" and self.data.labels == "class"

    @property
    def known_records(self) -> int | None:
        """The number of private records, as far as it is public; None where nobody guessed it."""
        return self.expected_records or SOURCES[self.data.source].private_records

    def records(self, public: int) -> int:
        """The same, or a guess where so many rows are ``public``."""
        return self.known_records or max(public, LEAST_RECORDS)


@dataclass(frozen=True)
class Scoring:
    """What a private score is asked by."""

    slot: int  # the entry of the plan that pays
    form: QueryForm
    choose: bool  # whether it chooses among the rounds


@dataclass(frozen=True)
class Round:
    """What asking and training need of a round."""

    number: int  # counted from 1
    slot: int  # the entry of the plan that pays
    queries: int | None  # rows to ask about; None: all
    once: bool  # whether it has one price, whatever the number of rows
    form: QueryForm  # what its mechanism asks, with the noise that the budget decides
    seed: int  # of its public randomness
    as_before: bool = False  # whether it asks as the round before it in its period
    period: int = 1  # of the records, counted from 1
    periods: int = 1  # of the plan
