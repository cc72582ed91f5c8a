"""Radius votes: screening and argmax as of Private-kNN, by every sampled record within a radius.

A record adds one vote and displaces none, so that less noise hides it than one of the k nearest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ....wall.errors import InvalidInput
from ...noise.scales import SCREEN_RATIO
from ..base import Asks
from ..noisy_argmax import ScreenedArgmax

if TYPE_CHECKING:
    from ...noise.entropy import Entropy
    from ..voters import Voters

LANDMARKS = 2_000  # public rows that radii are measured by, at most
# Deviations of the noise above the threshold at which a plurality is cut off: it passes but once in
# 10^9 queries, whether it is cut or not.
CUT = 6
MOST_VOTES = 10**6  # of the curve


@dataclass(frozen=True)
class PrivateRadius(ScreenedArgmax):
    """Votes of all of a new Poisson sample within a public radius, screened by their plurality.

    The radius of a query is its distance to one of the extractor's landmarks, features of public
    rows: the smallest that has a given share of them within. Dense regions get a small one, so that
    about as many records vote everywhere.

    Guarantee, for one query under add/remove of one record: a record moves the votes by 0 or e_a,
    whatever the radius. The screening bit min(max_j n_j, max_votes) + Z > threshold costs
    ``curves.screening_rdp``, the argmax of n_j + Z_j costs ``curves.argmax_rdp`` without a swap.
    Each release has its own sample. Proof: docs/privacy.md, section 5. All fields are publishable
    and fixed without looking at private rows.

    Args:
        kind: the mechanism's name.
        share: part of the public rows that a query's radius has within; about share x
            sampling_probability of the private records vote.
        threshold: the noisy plurality must exceed it for a query to be answered, in votes.
        sigma_screen: scale of the discrete Gaussian noise on the plurality, in votes; null: what
            the budget asks for.
        sigma_vote: scale of the discrete Gaussian noise on each class's count, in votes; null: what
            the budget asks for.
        sampling_probability: each record takes part in a release with this probability,
            independently; in (0, 1].
        screen_ratio: sigma_screen / sigma_vote where the budget asks for both.
    """

    kind: Literal["private_radius"] = "private_radius"
    share: float = 0.03
    threshold: int = 150
    sigma_screen: float | None = None
    sigma_vote: float | None = None
    sampling_probability: float = 0.15
    screen_ratio: float = SCREEN_RATIO

    swap = False

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput("mechanism.share", "in (0, 1]", self.share)
        if not 0 <= self.threshold < MOST_VOTES:
            rule = f"from 0 to {MOST_VOTES - 1}"
            raise InvalidInput("mechanism.threshold", rule, self.threshold)
        self.check()

    @property
    def asks(self) -> Asks:
        """Rows, with landmarks in the extractor."""
        return Asks(landmarks=LANDMARKS)

    @property
    def max_votes(self) -> int:
        """CUT deviations above the threshold."""
        return min(self.threshold + math.ceil(CUT * self.number("sigma_screen")), MOST_VOTES)

    def expected_votes(self, records: int) -> float:
        """See ``ScreenedArgmax.expected_votes``."""
        return self.share * self.sampling_probability * records

    def spread(self, votes: int) -> float:
        """Poisson, and the radius varies with the landmarks."""
        return 1 / max(votes, 1) + 1 / max(self.share * LANDMARKS, 1)

    @classmethod
    def sized(
        cls, votes: int, sampling_probability: float, records: int, **fields: float
    ) -> PrivateRadius:
        """See ``ScreenedArgmax.sized``."""
        share = min(1.0, float(f"{votes / (sampling_probability * records):.4g}"))
        return cls(share=share, sampling_probability=sampling_probability, **fields)  # type: ignore[arg-type]

    def votes(
        self, stage: str, voters: Voters, keys: Sequence[str], entropy: Entropy
    ) -> np.ndarray:
        """See ``ScreenedArgmax.votes``."""
        from .landmarks import squared_radii

        radii = squared_radii(voters.queries, voters.landmarks, self.share)
        return voters.sampled_ball_votes(radii, self.sampling_probability, keys, stage, entropy)
