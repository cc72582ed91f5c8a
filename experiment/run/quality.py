"""What released values alone say about a round: how many labels are right, and which round is best.

All of it is post-processing of released values and public rows: it costs nothing, and neither
private rows nor test labels enter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...student.held_out import Cleaned
from ...teacher.mechanisms.base import Mechanism
from ...teacher.mechanisms.registry import from_slot
from ...teacher.mechanisms.reverse_knn import ReverseKnn
from ...teacher.mechanisms.votes import SampledVotes
from ...wall.matrices import inherit
from ...wall.messages import ABSTAINED
from ..config.config import Config

DRAWS = 20  # of the split of noisy counts into two independent ones
SURE = 2.0  # deviations by which a round must be worse than an earlier one
COUNTS, PROBABILITIES, AGREEMENT = "noisy counts", "probabilities", "cross-validation"
MOMENTS = "noisy moments"
UNKNOWN = "nothing"  # the released counts do not tell the records from none
PROBABILITY_ERROR = 0.02
LEAST_PASSING = 0.2  # share of queries that pass; with fewer the budget buys hardly a label
LEAST_VOTES = 3.0  # on a row, in deviations of their noise: with fewer, most labels are chance


@dataclass(frozen=True)
class Estimate:
    """``right``: estimated share of right labels, in [0, 1]; ``error``: its standard error.

    ``by``: COUNTS, PROBABILITIES, or AGREEMENT, which tells whether labels agree with one another.
    By MOMENTS ``right`` is the variance of values that a regression explains, in squares of half
    the range, which has a place among rounds and is no share of right labels.
    """

    right: float
    error: float
    by: str

    def to_json(self) -> dict[str, Any]:
        """What a round's metrics.json holds."""
        return {**asdict(self), "right": round(self.right, 4), "error": round(self.error, 4)}

    def text(self) -> str:
        """For a reader, where nothing else is known of the labels."""
        if self.by == UNKNOWN:
            return "unknown"
        if self.by == MOMENTS:
            deviation = math.sqrt(max(self.right, 0.0))
            return f"a deviation of {deviation:.2f} half ranges explained by {self.by}"
        name = "consistent" if self.by == AGREEMENT else "right"
        return f"about {100 * self.right:.0f}% {name} by {self.by}"


def estimate_of(metrics: dict[str, Any]) -> Estimate | None:
    """The estimate of a finished round; None where it has none."""
    stored = metrics.get("estimate")
    return None if stored is None else Estimate(**stored)


def unknown() -> Estimate:
    """Of labels by counts that are not above their noise: there may be no records at all."""
    return Estimate(0.0, 1.0, UNKNOWN)


def by_counts(counts: np.ndarray, cells: np.ndarray, margin: float, noise: float) -> Estimate:
    """The share of votes that fall on the label of their cell.

    ``counts``: noisy votes int64 [m, c], with ``noise`` their deviation; ``cells``: int64
    [n, reach], each public row's cells. The labels of the counts plus a Gaussian draw are scored by
    the counts minus that draw, whose noise is independent of it (data thinning, Neufeld et al.
    2024): no class is counted right because its noise made it win. Pessimistic: the
    labels scored have twice the noise's variance, and rows with different labels share the votes of
    their cell (CIFAR-10's features, 86 cells, reach 3: 50% for 61%).
    """
    rng, total = np.random.default_rng(0), float(counts.sum())
    spread = noise * math.sqrt(counts.size)  # of the total
    votes = max(total, spread, 1.0)
    scores = []
    for _ in range(DRAWS):
        draw = rng.normal(0.0, max(noise, 1e-9), counts.shape)
        labels, _outcomes = inherit(counts + draw, cells, margin)
        shares = np.zeros(counts.shape)  # of the labels of each cell's rows
        answered = labels != ABSTAINED
        np.add.at(shares, (cells[answered, 0], labels[answered]), 1.0)
        rows = shares.sum(axis=1, keepdims=True)
        shares /= np.maximum(rows, 1.0)
        seen = (counts - draw)[rows[:, 0] > 0].sum()
        scores.append(float((shares * (counts - draw)).sum()) / max(float(seen), spread, 1.0))
    share = min(1.0, max(0.0, float(np.mean(scores))))
    few = math.sqrt(max(share * (1 - share), 1e-4) / votes)
    return Estimate(share, math.hypot(noise * math.sqrt(2 * len(counts)) / votes, few), COUNTS)


def by_probabilities(sure: np.ndarray) -> Estimate:
    """The mean probability of labels by a fitted classifier: float [n], of each row.

    A classifier that is fitted to noise is overconfident; PROBABILITY_ERROR allows for that.
    """
    share = float(sure.mean())
    chance = math.sqrt(max(share * (1 - share), 1e-4) / len(sure))
    return Estimate(share, math.hypot(chance, PROBABILITY_ERROR), PROBABILITIES)


def by_moments(explained: float, deviation: float, rows: int) -> Estimate:
    """The variance of a regression's values over so many public rows, in half ranges squared.

    ``deviation``: of the noise on ``explained``.
    """
    return Estimate(explained, math.hypot(deviation, explained * math.sqrt(2 / rows)), MOMENTS)


def by_agreement(cleaned: Cleaned) -> Estimate | None:
    """How many held-out labels a student of the others gives; None where none was held out."""
    if cleaned.agreement is None:
        return None
    share = cleaned.agreement
    return Estimate(share, math.sqrt(max(share * (1 - share), 1e-4) / cleaned.judged), AGREEMENT)


def worse(later: Estimate | None, earlier: Estimate | None) -> bool:
    """Whether a round is worse than an earlier one, by more than chance explains."""
    if later is None or earlier is None:
        return False
    if later.by != earlier.by:
        return later.by == UNKNOWN
    chance = SURE * math.hypot(later.error, earlier.error)
    return later.right < earlier.right - chance


def best_round(estimates: Sequence[Estimate | None]) -> int:
    """The round whose student a run keeps, counted from 1: the last that is not worse."""
    kept = 1
    for number in range(2, len(estimates) + 1):
        if not worse(estimates[number - 1], estimates[kept - 1]):
            kept = number
    return kept


def foreseen(config: Config, records: int, share: Callable[[float], float]) -> Iterator[str]:
    """Why rounds would be useless, a line each; ``records``, ``share``: see ``foresee``."""
    plan = config.plan()
    for number, slot in enumerate(config.slots(), start=1):
        reason = foresee(from_slot(plan.slots[slot]), records, share)
        if reason is not None:
            yield f"round {number} may be useless: {reason}"


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
