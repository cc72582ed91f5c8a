"""Settings of the baselines. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wall.errors import InvalidInput


@dataclass(frozen=True)
class NoisySgd:
    """NoisySGD on the private images, end to end (Abadi et al. 2016), with Poisson sampled batches.

    Args:
        kind: the baseline's name.
        batch_size: expected records a step, a count; over a public guess of the number of records it is the sampling rate.
        expected_records: the public guess of the number of records, a count.
        epochs: passes over so many records, a count.
        clip: bound on a record's gradient (L2).
        learning_rate: of plain SGD with momentum 0.9, per step.
    """

    kind: Literal["noisy_sgd"] = "noisy_sgd"
    batch_size: int = 1024
    expected_records: int = 60_000
    epochs: int = 10
    clip: float = 1.0
    learning_rate: float = 0.5

    def __post_init__(self) -> None:
        _check(self.batch_size, self.expected_records, self.epochs, self.clip, self.learning_rate)


@dataclass(frozen=True)
class LinearNoisySgd:
    """NoisySGD of a linear model on the first round's features (Tramer and Boneh 2021).

    Args:
        kind: the baseline's name.
        batch_size: expected records a step, a count; over a public guess of the number of records it is the sampling rate.
        expected_records: the public guess of the number of records, a count.
        epochs: passes over so many records, a count.
        clip: bound on a record's gradient (L2).
        learning_rate: of plain SGD with momentum 0.9, per step.
    """

    kind: Literal["linear_noisy_sgd"] = "linear_noisy_sgd"
    batch_size: int = 256
    expected_records: int = 60_000
    epochs: int = 10
    clip: float = 0.1
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        _check(self.batch_size, self.expected_records, self.epochs, self.clip, self.learning_rate)


def _check(batch_size: int, records: int, epochs: int, clip: float, learning_rate: float) -> None:
    if not 1 <= batch_size <= records:
        raise InvalidInput("baseline.batch_size", "from 1 to expected_records", batch_size)
    if epochs < 1:
        raise InvalidInput("baseline.epochs", "at least 1", epochs)
    for name, value in (("clip", clip), ("learning_rate", learning_rate)):
        if not 0 < value < 1e6:  # also catches NaN
            raise InvalidInput(f"baseline.{name}", "positive and finite", value)
