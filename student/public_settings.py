"""The public side's settings."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from ..wall.computing import Computing, Count
from ..wall.datasets.data_config import SOURCES, DataConfig
from ..wall.datasets.texts import HASHED
from ..wall.errors import InvalidInput
from ..wall.feature_maps import MAPS
from ..wall.questions import QueryForm, SumsForm
from .linear.tuning import MANY_STEPS
from .student_config import StudentConfig
from .tuning import LEAST_RECORDS

STAGES = "efficientnet_lite2_stages"
IMAGENET = ("efficientnet_lite0", "efficientnet_lite0_stages", "efficientnet_lite2", STAGES)
FEATURES = ("auto", "hog", "raw", *MAPS, "trees", *IMAGENET, "box")
TIMM = "timm/"  # with a model's name: further features


@dataclass(frozen=True, kw_only=True)
class FirstFeatures:
    """Which features the first round asks with.

    Args:
        features: features of the first round: "hog" for images, "raw" for feature vectors, "auto"
            by the data, "efficientnet_lite2_stages" for images by ImageNet weights (in a package)
            at three depths, "efficientnet_lite2" at the last, efficientnet_lite0 for a smaller
            network in two thirds of the time, "timm/NAME" for images by a timm model with its
            published weights, "box" for feature vectors in a declared box, "fourier" for 1,024
            random Fourier features of few columns of deviation about 1, as a table's are: classes
            with curved borders; "bins" for vectors beside up to 64 bins of each entry, one for each
            value or quantile of the public rows: classes that depend on single columns, in any way;
            "trees" for vectors beside the logits of boosted trees of the labelled public rows, for
            public_labels: train.
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
            raise InvalidInput.needless("weights", f"only `features: {TIMM}NAME` reads them")
        if name == "box" and not box:
            raise InvalidInput.missing("box", "`features: box` needs the vectors' public domain")
        if name != "box" and box:
            raise InvalidInput.needless("box", "only `features: box` uses it")
        for side in box:
            if len(side) != 2 or not all(map(math.isfinite, side)) or side[0] >= side[1]:
                raise InvalidInput("box", "a list of [low, high] with low < high, finite", side)
        if self.whiten and name == "box":
            raise InvalidInput("whiten", "0 with features: box", self.whiten)


def student_beside(student: StudentConfig, features: str) -> StudentConfig:
    """What a student's backbone ``auto`` becomes beside ``features`` of a configuration."""
    return student.beside(network=features in IMAGENET or features.startswith(TIMM))


@dataclass(frozen=True, kw_only=True)
class CountedPlan:
    """What suits other records than were guessed, by a rehearsal.

    Args:
        records: number of private records, a count.
        features: of the first round, as in a configuration.
        axes: principal axes, a count.
    """

    records: Count
    features: str
    axes: Count


@dataclass(frozen=True, kw_only=True)
class ServedFeatures(FirstFeatures):
    """What a custodian's configuration asks with, for an analyst whose own says nothing of it.

    No place on the custodian's machine stands here: ``weights`` is the name of a file.

    Args:
        by_count: as of a configuration.
        text_features: ``texts.model_name`` of that of a configuration's data.
        white: of its data, too.
    """

    by_count: list[CountedPlan] = field(default_factory=list)
    text_features: str = HASHED
    white: Annotated[float, Field(gt=0)] | None = None


def can_count(form: QueryForm) -> bool:
    """Whether a form has so many sums that one can be spent to count the records."""
    return isinstance(form, SumsForm) and form.steps >= MANY_STEPS.get(form.labels, math.inf)


@dataclass(frozen=True, kw_only=True)
class PublicSide(FirstFeatures, Computing):
    """What asking and training need; of the private side nothing but how many records a guess has.

    Args:
        data: where private, public and test rows come from.
        choice: which public rows are asked: typical ones (dense rows of every cluster of the
            round's features), or random ones.
        student: the public-side network and its training.
        public_labels: use of public labels, which are classes or values. metrics: only for reports
            and for choosing the method. train (the default for one's own data): the student also
            learns them, and private_linear's sums say what a classifier of these labels misses.
        balanced: whether labels favour each class alike, a rare one as a frequent one, so that it
            is found, and balanced accuracy rises while plain accuracy falls: probabilities of
            private_linear's classifier are divided by its shares of the classes, at no price.
        seed: public randomness alone (which queries, network initialisation, batches); never the
            noise.
        expected_records: a PUBLIC guess of the number of private records (a count), for plans and
            warnings, those of several custodians together; the published split's or the public
            rows' when null.
        by_count: features and axes for more records than were guessed, which a search rehearsed: a
            first count of the records takes the nearest ones.
    """

    data: DataConfig
    choice: Literal["typical", "random"] = "typical"
    student: StudentConfig = field(default_factory=StudentConfig)
    public_labels: Literal["metrics", "train"] = "metrics"
    balanced: bool = False
    seed: int = 0
    expected_records: Count | None = None
    by_count: list[CountedPlan] = field(default_factory=list)

    @property
    def taught(self) -> bool:
        return self.public_labels == "train" and self.data.labels in ("class", "value")

    @property
    def known_records(self) -> int | None:
        """The number of private records, as far as it is public; None where nobody guessed it."""
        return self.expected_records or SOURCES[self.data.source].private_records

    def records(self, public: int) -> int:
        """The number of private records, or a guess by the number of ``public`` rows."""
        return self.known_records or max(public, LEAST_RECORDS)
