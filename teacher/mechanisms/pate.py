"""PATE (Papernot et al. 2017, 2018): classifiers trained on disjoint shards vote, and a noisy plurality is the label.

One record changes one classifier (teacher/ensemble.py), so the votes move by e_a - e_b: L1 2, L2 sqrt(2), each count and
the maximum by 1. Nothing is sampled, hence no amplification. Only data-independent certificates are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from teacher.privacy.plan import Release
from wall.errors import InvalidInput
from wall.messages import ABSTAINED, Outcome, Value

if TYPE_CHECKING:
    from teacher.mechanisms.electorate import Electorate
    from teacher.privacy.noise import Entropy

SCREEN, AGGREGATE = "screen", "aggregate"
MOST_TEACHERS = 10_000


class _Pate:
    """What the three aggregators share: one noisy argmax a query."""

    stages: tuple[str, ...] = (AGGREGATE,)
    once_a_round = False

    def fields(self) -> dict[str, object]:
        """The publishable fields, as a ledger records them."""
        return asdict(self)  # type: ignore[call-overload]

    def planned(self, epsilon: float, delta: float, asked: int) -> Self:
        """Itself: every field is given."""
        return self

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """The release a query still needs, given what it has; None when it is settled."""
        return None if AGGREGATE in results else AGGREGATE

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, int]:
        """(outcome, label) of a settled query."""
        label = results.get(AGGREGATE)
        return (Outcome.ANSWERED, label) if isinstance(label, int) else (Outcome.ABSTAINED, ABSTAINED)


@dataclass(frozen=True)
class Lnmax(_Pate):
    """LNMAX (Papernot et al. 2017, section 2.1): argmax of the votes with Laplace noise on every count.

    Guarantee, for one query: releasing all noisy counts is (2 / scale)-DP by their L1 sensitivity 2, and the argmax
    post-processes them: ``curves.laplace_rdp``, min(epsilon, alpha epsilon^2 / 2) with epsilon = 2 / scale. The noise is the
    discrete Laplace distribution; the tighter Renyi curve of continuous Laplace noise does not hold for it.

    Args:
        kind: the mechanism's name.
        teachers: disjoint shards of the private records, a count; each is one classifier and one vote.
        scale: of the discrete Laplace noise on every class's count, in votes (the papers' 1 / gamma).
    """

    kind: Literal["lnmax"] = "lnmax"
    teachers: int = 250
    scale: float = 20.0

    def __post_init__(self) -> None:
        _check(self.teachers, scale=self.scale)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """What ``answered`` labels are, for the accountant; every query asked is answered."""
        return (Release(AGGREGATE, "laplace", {"scale": self.scale, "sensitivity": 2.0}, asked),)

    def draw(self, stage: str, voters: Electorate, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """The noisy winner of each query of ``voters``: int64 [n_queries]; ``keys``: charged identities."""
        votes = voters.teacher_votes(self.teachers)  # int64 [n_queries, n_classes]
        return (votes + entropy.discrete_laplace(self.scale, keys, stage, votes.shape[1])).argmax(axis=1)


@dataclass(frozen=True)
class Gnmax(_Pate):
    """GNMAX (Papernot et al. 2018, Definition 6): argmax of the votes with Gaussian noise on every count.

    Guarantee, for one query: ``curves.argmax_rdp`` without sampling.

    Args:
        kind: the mechanism's name.
        teachers: disjoint shards of the private records, a count; each is one classifier and one vote.
        sigma_vote: scale of the discrete Gaussian noise on every class's count, in votes.
    """

    kind: Literal["gnmax"] = "gnmax"
    teachers: int = 250
    sigma_vote: float = 40.0

    def __post_init__(self) -> None:
        _check(self.teachers, sigma_vote=self.sigma_vote)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """What ``asked`` labels are, for the accountant; every query asked is answered."""
        return (_argmax(self.sigma_vote, asked),)

    def draw(self, stage: str, voters: Electorate, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """The noisy winner of each query of ``voters``: int64 [n_queries]; ``keys``: charged identities."""
        return _noisy_winner(voters.teacher_votes(self.teachers), self.sigma_vote, stage, keys, entropy)


@dataclass(frozen=True)
class ConfidentGnmax(_Pate):
    """Confident-GNMAX (Papernot et al. 2018, Algorithm 1): a noisy screening of the plurality, then GNMAX.

    Guarantee, for one query: the screening bit costs ``curves.screening_rdp``, the label ``curves.argmax_rdp``, both without
    sampling. Each draws its own noise.

    Args:
        kind: the mechanism's name.
        teachers: disjoint shards of the private records, a count; each is one classifier and one vote.
        threshold: the noisy plurality must exceed it for a query to be answered, in votes.
        sigma_screen: scale of the discrete Gaussian noise on the plurality, in votes.
        sigma_vote: scale of the discrete Gaussian noise on every class's count, in votes.
    """

    kind: Literal["confident_gnmax"] = "confident_gnmax"
    teachers: int = 250
    threshold: int = 200
    sigma_screen: float = 150.0
    sigma_vote: float = 40.0

    stages = (SCREEN, AGGREGATE)

    def __post_init__(self) -> None:
        _check(self.teachers, sigma_screen=self.sigma_screen, sigma_vote=self.sigma_vote)
        if not 0 <= self.threshold <= self.teachers:
            raise InvalidInput("mechanism.threshold", "between 0 and teachers", self.threshold)

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """What ``asked`` screenings and ``answered`` labels are, for the accountant."""
        screening = {"max_votes": self.teachers, "threshold": self.threshold, "sigma": self.sigma_screen}
        screen = Release(SCREEN, "screening", {**screening, "sampling_probability": 1.0}, asked)
        return screen, _argmax(self.sigma_vote, answered)

    def draw(self, stage: str, voters: Electorate, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """One noisy release per query of ``voters``: int64 [n_queries], the screening bit or the winning class."""
        votes = voters.teacher_votes(self.teachers)
        if stage == SCREEN:
            noise = entropy.discrete_gaussian(self.sigma_screen, keys, stage, 1)
            return (votes.max(axis=1) + noise[:, 0] > self.threshold).astype(np.int64)
        return _noisy_winner(votes, self.sigma_vote, stage, keys, entropy)

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """The release a query still needs, given what it has; None when it is settled."""
        if SCREEN not in results:
            return SCREEN
        return AGGREGATE if results[SCREEN] == 1 and AGGREGATE not in results else None


def _argmax(sigma: float, cap: int) -> Release:
    return Release(AGGREGATE, "argmax", {"sigma": sigma, "sampling_probability": 1.0}, cap)


def _noisy_winner(votes: np.ndarray, sigma: float, stage: str, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
    """argmax of int64 [n_queries, n_classes] plus noise, ties to the lowest class: int64 [n_queries]."""
    return (votes + entropy.discrete_gaussian(sigma, keys, stage, votes.shape[1])).argmax(axis=1)


def _check(teachers: int, **scales: float) -> None:
    if not 1 <= teachers <= MOST_TEACHERS:
        raise InvalidInput("mechanism.teachers", f"from 1 to {MOST_TEACHERS}", teachers)
    for name, scale in scales.items():
        if not (math.isfinite(scale) and scale > 0):
            raise InvalidInput(f"mechanism.{name}", "positive and finite", scale)
