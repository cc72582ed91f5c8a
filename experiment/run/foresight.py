"""Why a mechanism's answers may be useless, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.reverse_knn import ReverseKnn
from ...teacher.mechanisms.votes import SampledVotes

LEAST_PASSING = 0.2  # share of queries that pass; with fewer the budget buys hardly a label
LEAST_VOTES = 3.0  # on a row, in deviations of their noise: with fewer, most labels are chance


def foresee(mechanism: Mechanism, records: int, share: Callable[[float], float]) -> str | None:
    """Why its answers may be useless, and what to change; None where nothing indicates it.

    ``records``: a PUBLIC guess of their number. ``share(part)``: mean share of the most frequent
    class among the nearest ``part`` of all rows, from public rows.
    """
    if isinstance(mechanism, SampledVotes):
        return _few_pass(mechanism, records, share)
    return _few_votes(mechanism, records) if isinstance(mechanism, ReverseKnn) else None


def _few_pass(mechanism: SampledVotes, records: int, share: Callable[[float], float]) -> str | None:
    """The plurality that is expected, against the threshold."""
    sample = records * mechanism.sampling_probability
    voters = mechanism.expected_votes(records)
    votes = voters * share(voters / max(sample, 1.0))
    deviation = math.sqrt(2) * mechanism.require("sigma_screen")
    passing = 0.5 * math.erfc((mechanism.threshold - votes) / deviation)
    if passing >= LEAST_PASSING:
        return None
    return (
        f"a sample of about {sample:.0f} of {records} records gives the best class "
        f"{votes:.0f} votes, and {100 * passing:.1f}% of queries pass a threshold of "
        f"{mechanism.threshold}. Set mechanism.threshold to {votes:.0f} or less, or use better "
        "features."
    )


def _few_votes(mechanism: ReverseKnn, records: int) -> str | None:
    """Votes a row sees, against the noise of their sum."""
    votes = records * mechanism.neighbours * mechanism.reach / mechanism.cells
    noise = mechanism.require("sigma") * math.sqrt(mechanism.reach)
    if votes >= LEAST_VOTES * noise:
        return None
    cells = max(1, int(votes * mechanism.cells / (LEAST_VOTES * noise)))
    return (
        f"about {votes:.0f} of {records} records vote on a row, under noise of {noise:.0f} "
        f"votes. Set mechanism.cells to {cells} or fewer, or epsilon "
        f"{LEAST_VOTES * noise / votes:.1f} times as high."
    )
