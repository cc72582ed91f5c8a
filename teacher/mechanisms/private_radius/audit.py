"""Radius votes as the statistical audit sees them (teacher/mechanisms/vote_audit.py)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...statistical_audit import Pair
from ..vote_laws import Poll
from ..voters import Voters
from .mechanism import PrivateRadius


@dataclass(frozen=True)
class BallPoll(Poll):
    """All records of a pair within the radius: the only landmark is as far off as they are."""

    def voters(self, pair: Pair, added: bool, queries: int) -> Voters:
        """See ``Poll.voters``."""
        return replace(super().voters(pair, added, queries), landmarks=b"\x01")


def poll(mechanism: PrivateRadius) -> Poll:
    """A Poisson sample within the radius, screened."""
    return BallPoll(
        k=mechanism.max_votes,
        sigma_vote=mechanism.number("sigma_vote"),
        threshold=mechanism.threshold,
        sigma_screen=mechanism.number("sigma_screen"),
        sampling_probability=mechanism.sampling_probability,
        swap=False,
    )


def probe(mechanism: PrivateRadius) -> PrivateRadius:
    """The same code with parameters at which faults show in seconds, as private_knn's."""
    return replace(
        mechanism, threshold=2, sigma_screen=1.0, sigma_vote=1.0, sampling_probability=0.5
    )
