"""Whether a round may be useless, by public facts alone, before anything is charged."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.sums import ReverseKnn
from ...teacher.mechanisms.votes import SampledVotes

LEAST_PASSING = 0.2  # share of queries that pass; with fewer the budget buys hardly a label
LEAST_VOTES = 3.0  # on a row, in deviations of their noise: with fewer, most labels are chance


def plurality(features: np.ndarray, labels: np.ndarray, part: float) -> float:
    """Mean share of the most frequent label among the nearest ``part`` of PUBLIC rows.

    ``features``: int8 [n, d]; ``labels``: int64 [n]. A row is not its own neighbour.
    """
    n = len(labels)
    k = max(1, min(n - 1, round(part * (n - 1))))
    x = features.astype(np.float32)
    distances = (x * x).sum(axis=1) - 2 * x @ x.T
    np.fill_diagonal(distances, np.inf)
    nearest = labels[np.argpartition(distances, k - 1, axis=1)[:, :k]]
    most = np.stack([(nearest == label).sum(axis=1) for label in np.unique(labels)])
    return float(most.max(axis=0).mean() / k)


def foresee(mechanism: Mechanism, records: int, share: Callable[[float], float]) -> str | None:
    """Why its answers may be useless, and what to change; None where nothing indicates it.

    ``records``: a PUBLIC guess of their number. ``share(part)``: mean share of the most frequent
    class among the nearest ``part`` of all rows, from public rows.
    """
    if isinstance(mechanism, SampledVotes):
        sample = records * mechanism.sampling_probability
        voters = mechanism.expected_votes(records)
        votes = voters * share(voters / max(sample, 1.0))
        deviation = math.sqrt(2) * mechanism.require("sigma_screen")
        passing = 0.5 * math.erfc((mechanism.threshold - votes) / deviation)
        if passing < LEAST_PASSING:
            return (
                f"a sample of about {sample:.0f} of {records} records gives the best class "
                f"{votes:.0f} votes, and {100 * passing:.1f}% of queries pass a threshold of "
                f"{mechanism.threshold}. Set mechanism.threshold to {votes:.0f} or less, or use "
                "better features."
            )
    elif isinstance(mechanism, ReverseKnn):
        ballots = mechanism.row_neighbours
        votes = records * mechanism.neighbours * ballots / mechanism.centroids
        noise = mechanism.require("sigma") * math.sqrt(ballots)
        if votes < LEAST_VOTES * noise:
            few = max(1, int(votes * mechanism.centroids / (LEAST_VOTES * noise)))
            return (
                f"about {votes:.0f} of {records} records vote on a row, under noise of "
                f"{noise:.0f} votes. Set mechanism.centroids to {few} or fewer, or epsilon "
                f"{LEAST_VOTES * noise / votes:.1f} times as high."
            )
    return None
