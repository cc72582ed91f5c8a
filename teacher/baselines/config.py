"""Settings of the baselines. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wall.errors import InvalidInput


@dataclass(frozen=True)
class PrivateTraining:
    """What both baselines set.

    Args:
        batch_size: expected records a step, a count; over a public guess of the number of records it is the sampling rate.
        expected_records: the public guess of the number of records, a count.
        epochs: passes over so many records, a count.
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
        for name in ("clip", "learning_rate"):
            value = getattr(self, name)
            if not 0 < value < 1e6:  # also catches NaN
                raise InvalidInput(f"baseline.{name}", "positive and finite", value)


@dataclass(frozen=True)
class NoisySgd(PrivateTraining):
    """NoisySGD on the private images, end to end (Abadi et al. 2016), with Poisson sampled batches.

    Args:
        kind: the baseline's name.
    """

    kind: Literal["noisy_sgd"] = "noisy_sgd"


@dataclass(frozen=True)
class LinearNoisySgd(PrivateTraining):
    """NoisySGD of a linear model on the first round's features (Tramer and Boneh 2021).

    Args:
        kind: the baseline's name.
    """

    kind: Literal["linear_noisy_sgd"] = "linear_noisy_sgd"
    batch_size: int = 256
    clip: float = 0.1
    learning_rate: float = 1.0
