"""Settings of the baselines. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...wall.errors import InvalidInput


@dataclass(frozen=True)
class GradientDescent:
    """Settings of both NoisySGD baselines.

    Args:
        batch_size: expected records per step, a count; divided by expected_records it is the
            sampling rate.
        expected_records: a public guess of the number of records, a count.
        epochs: passes over expected_records records, a count.
        clip: bound on a record's gradient (L2).
        learning_rate: of plain SGD with momentum 0.9, per step.
    """

    batch_size: int = 1024
    expected_records: int = 60_000
    epochs: int = 10
    clip: float = 1.0
    learning_rate: float = 0.5

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= self.expected_records:
            raise InvalidInput("baseline.batch_size", "from 1 to expected_records", self.batch_size)
        if self.epochs < 1:
            raise InvalidInput("baseline.epochs", "at least 1", self.epochs)
        for name, value in (("clip", self.clip), ("learning_rate", self.learning_rate)):
            if not 0 < value < 1e6:  # also catches NaN
                raise InvalidInput(f"baseline.{name}", "positive and finite", value)


@dataclass(frozen=True)
class NoisySgd(GradientDescent):
    """NoisySGD on the private images, end to end (Abadi et al. 2016), with Poisson sampled batches.

    Args:
        kind: the baseline's name.
    """

    kind: Literal["noisy_sgd"] = "noisy_sgd"


@dataclass(frozen=True)
class LinearNoisySgd(GradientDescent):
    """NoisySGD of a linear model on the first round's features (Tramer and Boneh 2021).

    Args:
        kind: the baseline's name.
    """

    kind: Literal["linear_noisy_sgd"] = "linear_noisy_sgd"
    batch_size: int = 256
    clip: float = 0.1
    learning_rate: float = 1.0


@dataclass(frozen=True)
class DpLogisticRegression:
    """Logistic regression by objective perturbation (Chaudhuri et al. 2011), from diffprivlib.

    Trained on the first round's features.

    Args:
        kind: the baseline's name.
        penalty: factor of half the squared norm of the weights, which is added to the sum of the
            records' losses; 1/C of scikit-learn.
    """

    kind: Literal["dp_logistic_regression"] = "dp_logistic_regression"
    penalty: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.penalty < 1e9:  # also catches NaN
            raise InvalidInput("baseline.penalty", "positive and finite", self.penalty)


@dataclass(frozen=True)
class DpNaiveBayes:
    """Gaussian naive Bayes (Vaidya et al. 2013) from diffprivlib, on the first round's features.

    Args:
        kind: the baseline's name.
    """

    kind: Literal["dp_naive_bayes"] = "dp_naive_bayes"


@dataclass(frozen=True)
class DpForest:
    """Random decision trees with private leaves (Fletcher and Islam 2017), from diffprivlib.

    Trained on the first round's features.

    Args:
        kind: the baseline's name.
        trees: number of trees, a count; each record trains one of them.
        depth: splits from the root to a leaf, a count.
    """

    kind: Literal["dp_forest"] = "dp_forest"
    trees: int = 10
    depth: int = 5

    def __post_init__(self) -> None:
        for name, value, maximum in (("trees", self.trees, 1000), ("depth", self.depth, 12)):
            if not 1 <= value <= maximum:
                raise InvalidInput(f"baseline.{name}", f"from 1 to {maximum}", value)


PrivateClassification = DpLogisticRegression | DpNaiveBayes | DpForest
AnyBaseline = NoisySgd | LinearNoisySgd | PrivateClassification
