"""PATE (Papernot et al. 2017, 2018): a noisy plurality of classifiers trained on disjoint shards.

One record changes one classifier (linear_ensemble.py, cnn_ensemble.py), so the votes move by
e_a - e_b: L1 2, L2 sqrt(2), each count and the maximum by 1. Nothing is sampled, hence no
amplification. Only data-independent certificates are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from ....wall.errors import InvalidInput
from ....wall.messages import Value
from ...accounting.plan import Release
from ...classifiers.linear_ensemble import MAX_TEACHERS
from ...noise.scales import (
    SCREEN_RATIO,
    check_scale,
    check_screen_ratio,
    more_noise,
)
from ..base import Classifiers
from ..noisy_argmax import (
    AGGREGATE,
    SCREEN,
    NoisyArgmax,
    argmax_release,
    noisy_winner,
)

if TYPE_CHECKING:
    from ...noise.entropy import Entropy
    from ..voters import Voters

Classifier = Literal["linear", "cnn"]


@dataclass(frozen=True)
class Pate(NoisyArgmax):
    """Base of the three mechanisms: classifiers of one kind on disjoint shards of the records."""

    if TYPE_CHECKING:  # declared by each mechanism, which decides the order of its fields
        teachers: int
        classifier: Classifier

    sharded = True  # a linear classifier's records are collected from all shards
    persons = True

    @property
    def needs(self) -> tuple[Classifiers, ...]:
        """The classifiers that vote."""
        return (Classifiers(self.classifier, self.teachers),)

    def require_sharded(self) -> None:
        """Raise InvalidInput for networks: no process has the images of all shards."""
        if self.classifier != "linear":
            rule = "0 for PATE's networks (mechanism.classifier: cnn)"
            raise InvalidInput("scale.shards", rule, self.kind)

    def _check(self, **scales: float | None) -> None:
        if not 1 <= self.teachers <= MAX_TEACHERS:
            raise InvalidInput("mechanism.teachers", f"from 1 to {MAX_TEACHERS}", self.teachers)
        if self.classifier not in get_args(Classifier):
            rule = f"one of {', '.join(get_args(Classifier))}"
            raise InvalidInput("mechanism.classifier", rule, self.classifier)
        for name, scale in scales.items():
            check_scale(f"mechanism.{name}", scale)


@dataclass(frozen=True)
class Lnmax(Pate):
    """LNMAX (Papernot et al. 2017, section 2.1): argmax of counts with Laplace noise.

    Guarantee, for one query: releasing all noisy counts is (2 / scale)-DP by their L1 sensitivity
    2, and the argmax post-processes them: ``curves.laplace_rdp``, min(epsilon, alpha epsilon^2 / 2)
    with epsilon = 2 / scale. The noise is the discrete Laplace distribution; the tighter Renyi
    curve of continuous Laplace noise does not hold for it.

    Args:
        kind: the mechanism's name.
        teachers: disjoint shards of the private records, a count; each is one classifier and one
            vote.
        classifier: what is trained on a shard: linear (ridge regression on the round's features,
            anew each round) or cnn (a small network on the images themselves, once).
        scale: of the discrete Laplace noise on every class's count, in votes (the papers'
            1 / gamma); null: what the budget asks for.
    """

    kind: Literal["lnmax"] = "lnmax"
    teachers: int = 250
    scale: float | None = None
    classifier: Classifier = "linear"

    solved = ("scale",)

    def __post_init__(self) -> None:
        self._check(scale=self.scale)

    def with_noise(self, level: float, asked: int) -> Lnmax:
        """See ``Mechanism.with_noise``. Votes move by 2 in L1."""
        return self.filled(scale=more_noise(2 * level))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` labels; every query is answered."""
        return (
            Release(
                AGGREGATE, "laplace", {"scale": self.number("scale"), "sensitivity": 2.0}, asked
            ),
        )

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """The noisy winner of each query: int64 [n_queries]."""
        votes = voters.teacher_votes(self.teachers, self.classifier)  # int64 [n_queries, n_classes]
        noise = entropy.discrete_laplace(self.number("scale"), keys, stage, votes.shape[1])
        return (votes + noise).argmax(axis=1)


@dataclass(frozen=True)
class Gnmax(Pate):
    """GNMAX (Papernot et al. 2018, Definition 6): argmax of counts with Gaussian noise.

    Guarantee, for one query: ``curves.argmax_rdp`` without sampling.

    Args:
        kind: the mechanism's name.
        teachers: disjoint shards of the private records, a count; each is one classifier and one
            vote.
        classifier: what is trained on a shard: linear (ridge regression on the round's features,
            anew each round) or cnn (a small network on the images themselves, once).
        sigma_vote: scale of the discrete Gaussian noise on every class's count, in votes; null:
            what the budget asks for.
    """

    kind: Literal["gnmax"] = "gnmax"
    teachers: int = 250
    sigma_vote: float | None = None
    classifier: Classifier = "linear"

    solved = ("sigma_vote",)

    def __post_init__(self) -> None:
        self._check(sigma_vote=self.sigma_vote)

    def with_noise(self, level: float, asked: int) -> Gnmax:
        """See ``Mechanism.with_noise``. Votes move by sqrt(2)."""
        return self.filled(sigma_vote=more_noise(level * math.sqrt(2)))

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` labels; every query is answered."""
        return (argmax_release(self.number("sigma_vote"), asked),)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """The noisy winner of each query: int64 [n_queries]."""
        votes = voters.teacher_votes(self.teachers, self.classifier)
        return noisy_winner(votes, self.number("sigma_vote"), stage, keys, entropy)


@dataclass(frozen=True)
class ConfidentGnmax(Pate):
    """Confident-GNMAX (Papernot et al. 2018, Algorithm 1): noisy screening, then GNMAX.

    Guarantee, for one query: the screening bit costs ``curves.screening_rdp``, the label
    ``curves.argmax_rdp``, both without sampling. Each draws its own noise.

    Args:
        kind: the mechanism's name.
        teachers: disjoint shards of the private records, a count; each is one classifier and one
            vote.
        classifier: what is trained on a shard: linear (ridge regression on the round's features,
            anew each round) or cnn (a small network on the images themselves, once).
        threshold: the noisy plurality must exceed it for a query to be answered, in votes.
        sigma_screen: scale of the discrete Gaussian noise on the plurality, in votes; null: what
            the budget asks for.
        sigma_vote: scale of the discrete Gaussian noise on every class's count, in votes; null:
            what the budget asks for.
        screen_ratio: sigma_screen / sigma_vote where the budget asks for both.
    """

    kind: Literal["confident_gnmax"] = "confident_gnmax"
    teachers: int = 250
    threshold: int = 200
    sigma_screen: float | None = None
    sigma_vote: float | None = None
    classifier: Classifier = "linear"
    screen_ratio: float = SCREEN_RATIO

    stages = (SCREEN, AGGREGATE)
    solved = ("sigma_screen", "sigma_vote")

    def __post_init__(self) -> None:
        self._check(sigma_screen=self.sigma_screen, sigma_vote=self.sigma_vote)
        if not 0 <= self.threshold <= self.teachers:
            raise InvalidInput("mechanism.threshold", "between 0 and teachers", self.threshold)
        check_screen_ratio(self.screen_ratio)

    def with_noise(self, level: float, asked: int) -> ConfidentGnmax:
        """See ``Mechanism.with_noise``. Votes move by sqrt(2)."""
        sigma = level * math.sqrt(2)
        return self.filled(
            sigma_screen=more_noise(self.screen_ratio * sigma), sigma_vote=more_noise(sigma)
        )

    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price of ``asked`` screenings and ``answered`` labels."""
        screening = {
            "max_votes": self.teachers,
            "threshold": self.threshold,
            "sigma": self.number("sigma_screen"),
            "sampling_probability": 1.0,
        }
        screen = Release(SCREEN, "screening", screening, asked)
        return screen, argmax_release(self.number("sigma_vote"), answered)

    def draw(self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy) -> np.ndarray:
        """Screening bits, or winning classes, of all queries: int64 [n_queries]."""
        votes = voters.teacher_votes(self.teachers, self.classifier)
        if stage == SCREEN:
            noise = entropy.discrete_gaussian(self.number("sigma_screen"), keys, stage, 1)
            return (votes.max(axis=1) + noise[:, 0] > self.threshold).astype(np.int64)
        return noisy_winner(votes, self.number("sigma_vote"), stage, keys, entropy)

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """The release a query still needs, given what it has; None when it is settled."""
        if SCREEN not in results:
            return SCREEN
        return AGGREGATE if results[SCREEN] == 1 and AGGREGATE not in results else None
