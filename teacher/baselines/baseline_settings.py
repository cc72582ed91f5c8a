"""Settings of the baselines. Does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from ...wall.errors import InvalidInput
from ..mechanisms.fields import check, count, describe, param


@dataclass(frozen=True)
class Baseline:
    """Base of all baselines. ``images``: whether it trains on images, and not on features."""

    images: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self, "baseline")

    def for_records(self, records: int, batches: int) -> Self:
        """Settings for a public guess of the records, in so many batches if it takes any."""
        return self

    def at_rates(self, factors: Sequence[float]) -> list[Self]:
        """Settings with other learning rates; none if it has no learning rate."""
        return []


CLIP, RATE = "bound on a record's gradient (L2)", "of plain SGD with momentum 0.9, per step"
BATCH = "expected records per step; divided by expected_records it is the sampling rate"


@dataclass(frozen=True)
class GradientDescent(Baseline):
    """Settings of both NoisySGD baselines."""

    batch_size: int = param(1024, BATCH, unit="a count", ge=1)
    expected_records: int = param(
        60_000, "a public guess of the number of records", unit="a count", ge=1
    )
    epochs: int = param(10, "passes over expected_records records", unit="a count", ge=1)
    clip: float = param(1.0, CLIP, gt=0, lt=1e6)
    learning_rate: float = param(0.5, RATE, gt=0, lt=1e6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size > self.expected_records:
            raise InvalidInput("baseline.batch_size", "from 1 to expected_records", self.batch_size)

    def for_records(self, records: int, batches: int) -> Self:
        size = max(1, records // batches)
        return replace(self, batch_size=size, expected_records=records)

    def at_rates(self, factors: Sequence[float]) -> list[Self]:
        return [replace(self, learning_rate=factor * self.learning_rate) for factor in factors]


@dataclass(frozen=True)
class NoisySgd(GradientDescent):
    """NoisySGD on the private images, end to end (Abadi et al. 2016), Poisson sampled batches."""

    kind: Literal["noisy_sgd"] = "noisy_sgd"

    images = True


@dataclass(frozen=True)
class LinearNoisySgd(GradientDescent):
    """NoisySGD of a linear model on the first round's features (Tramer and Boneh 2021)."""

    kind: Literal["linear_noisy_sgd"] = "linear_noisy_sgd"
    batch_size: int = param(256, BATCH, unit="a count", ge=1)
    clip: float = param(0.1, CLIP, gt=0, lt=1e6)
    learning_rate: float = param(1.0, RATE, gt=0, lt=1e6)


@dataclass(frozen=True)
class DpLogisticRegression(Baseline):
    """Logistic regression by objective perturbation (Chaudhuri et al. 2011), from diffprivlib.

    Trained on the first round's features.
    """

    kind: Literal["dp_logistic_regression"] = "dp_logistic_regression"
    penalty: float = param(
        10.0,
        "factor of half the squared norm of the weights, which is added to the sum of the records' "
        "losses; 1/C of scikit-learn",
        gt=0,
        lt=1e9,
    )


@dataclass(frozen=True)
class DpNaiveBayes(Baseline):
    """Gaussian naive Bayes (Vaidya et al. 2013) from diffprivlib, on the first round's features."""

    kind: Literal["dp_naive_bayes"] = "dp_naive_bayes"


@dataclass(frozen=True)
class DpForest(Baseline):
    """Random decision trees with private leaves (Fletcher and Islam 2017), from diffprivlib.

    Trained on the first round's features.
    """

    kind: Literal["dp_forest"] = "dp_forest"
    trees: int = count(10, "number of trees; each record trains one of them", 1000)
    depth: int = count(5, "splits from the root to a leaf", 12)


PrivateClassification = DpLogisticRegression | DpNaiveBayes | DpForest
AnyBaseline = Annotated[
    NoisySgd | LinearNoisySgd | PrivateClassification, Field(discriminator="kind")
]
BASELINES: dict[str, type[AnyBaseline]] = {
    baseline.kind: baseline
    for baseline in (NoisySgd, LinearNoisySgd, DpLogisticRegression, DpNaiveBayes, DpForest)
}
for _baseline in BASELINES.values():
    describe(_baseline, "baseline")
