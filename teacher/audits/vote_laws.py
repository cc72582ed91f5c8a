"""Worst-case neighbouring data sets of a noisy vote, and the laws of its releases on them.

The curve of a release is a supremum over the votes of the other records
(teacher/accounting/curves); the data sets here put the votes where it is attained. The added
record is the nearest and has the last class, a, which loses ties. Then come records of class a
(allies), then of class 0 (rivals). Their numbers determine the votes n_a and n_0, the plurality,
and whether the sample is full, so that the record displaces another (e_a - e_0) or joins (e_a).

The laws only choose among pairs, before anything is drawn. No bound depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.special import gammaln, xlogy

from ..accounting.curves.discrete_gaussian import log_at_least, log_pmf
from ..mechanisms.voters import Voters
from ..mechanisms.votes import AGGREGATE, SCREEN
from ..search.cpu import ExactIndex
from .harness import Pair

JOINT = f"{SCREEN}+{AGGREGATE}"  # a whole query: abstained, or a class
CLASSES = (2, 10)  # a contest of two; one among many, where class a rarely wins without the record
_GRID = 8  # steps of each class's votes from 0 to k


@dataclass(frozen=True)
class Poll:
    """A mechanism's vote: the k nearest of a Poisson sample, counted with noise.

    ``threshold``, ``sigma_screen``: of the noisy plurality; ``sigma_vote``: of the discrete
    Gaussian noise on each class's count, or the scale of discrete ``laplace`` noise. A scale is
    None where there is no such release. ``swap``: whether a record displaces another of a full
    sample; without it, k is the most votes that the laws tell apart.
    """

    k: int
    sigma_vote: float | None = None
    threshold: int = 0
    sigma_screen: float | None = None
    sampling_probability: float = 1.0
    laplace: bool = False
    swap: bool = True

    @property
    def parts(self) -> tuple[str, ...]:
        """Audited parts of a query: its releases, and where there are two, both jointly."""
        scales = {SCREEN: self.sigma_screen, AGGREGATE: self.sigma_vote}
        releases = tuple(name for name, scale in scales.items() if scale is not None)
        return (*releases, JOINT) if len(releases) == 2 else releases

    @property
    def full(self) -> int:
        """Number of records with which a sample is full almost surely."""
        k, gamma = self.k, self.sampling_probability
        return k if gamma == 1 else math.ceil((k + 6 * math.sqrt(k) + 20) / gamma)

    def empty(self, part: str) -> Pair:
        """No record but the added one: without it, the release is only noise.

        JOINT shows more with many classes.
        """
        return Pair(0, 0, CLASSES[-1] if part == JOINT else CLASSES[0])

    def candidates(self) -> Iterator[Pair]:
        """Pairs whose expected votes are on a grid over 0..k, and pairs with a full sample."""
        hits = sorted({round(self.k * i / _GRID) for i in range(_GRID + 1)})
        counts = [round(hit / self.sampling_probability) for hit in hits]
        for classes, allies in product(CLASSES, counts):
            yield from (Pair(allies, rivals, classes) for rivals in sorted({*counts, self.full}))

    def voters(self, pair: Pair, added: bool, queries: int) -> Voters:
        """One side of a pair with ``queries`` equal queries; the added record has id 0."""
        labels = pair.labels(added)
        ids = np.arange(len(labels)) + (not added)
        index = ExactIndex((ids > 0).astype(np.int8)[:, None], ids)  # id 0 alone is at distance 0
        return Voters(index, labels, pair.num_classes, np.zeros((queries, 1), dtype=np.int8))


def laws(poll: Poll, pair: Pair) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each part: the outcomes' probabilities without and with the record, float64 [n_outcomes].

    Outcomes of SCREEN: no, yes; of AGGREGATE: class 0, another, a; of JOINT: abstained, class 0,
    another, a. Each release draws its own sample.
    """
    absent, present = (_release_laws(poll, pair, sampled) for sampled in (False, True))
    sides = []
    for gamma in (0.0, poll.sampling_probability):
        side = {name: (1 - gamma) * absent[name] + gamma * present[name] for name in absent}
        if JOINT in poll.parts:
            side[JOINT] = np.append(side[SCREEN][0], side[SCREEN][1] * side[AGGREGATE])
        sides.append(side)
    return {part: (sides[0][part], sides[1][part]) for part in poll.parts}


def repeated(law: np.ndarray, queries: int) -> np.ndarray:
    """Probabilities, float64 [n], of all counts of outcomes in ``queries`` independent queries."""
    counts = _compositions(queries, len(law))
    log_mass = (
        gammaln(queries + 1) - gammaln(counts + 1).sum(axis=1) + xlogy(counts, law).sum(axis=1)
    )
    return np.exp(log_mass)


@lru_cache(maxsize=16)
def _compositions(total: int, parts: int) -> np.ndarray:
    """All ways to write ``total`` as a sum of ``parts`` counts, int64 [n, parts]."""
    if parts == 1:
        return np.array([[total]])
    rest = [_compositions(total - first, parts - 1) for first in range(total + 1)]
    return np.concatenate([np.insert(tail, 0, first, axis=1) for first, tail in enumerate(rest)])


def _release_laws(poll: Poll, pair: Pair, sampled: bool) -> dict[str, np.ndarray]:
    """Laws of the bit (no, yes) and of the winner (0, another, a), where released.

    ``sampled``: whether the added record is in the sample.
    """
    n_a, n_0, mass = votes(poll, pair, sampled)
    found = {}
    if poll.sigma_screen is not None:
        gaps = np.arange(poll.threshold - poll.k + 1, poll.threshold + 2)
        passes = np.exp(log_at_least(gaps, poll.sigma_screen))[::-1]  # t: P(Z > threshold - t)
        passed = float(mass @ passes[np.maximum(n_a, n_0)])
        found[SCREEN] = np.array([1 - passed, passed])
    if poll.sigma_vote is not None:
        winners = _winners(poll.k, poll.sigma_vote, pair.num_classes, poll.laplace)
        ally, rival = (float(mass @ table[n_a, n_0]) for table in winners)
        found[AGGREGATE] = np.array([rival, max(0.0, 1 - rival - ally), ally])
    return found


def votes(poll: Poll, pair: Pair, sampled: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n_a, n_0, their probability): int64, int64 and float64 [n].

    ``sampled``: whether the added record is in the sample.
    """
    from scipy.stats import binom  # takes seconds, and configurations load this file

    k, gamma = poll.k, poll.sampling_probability
    hits, chances = [], []
    for records in (pair.allies, pair.rivals):
        hits.append(np.arange(min(records, k) + 1))
        mass = binom.pmf(hits[-1], records, gamma)
        mass[-1] = binom.sf(hits[-1][-1] - 1, records, gamma)  # more than k hits count as k
        chances.append(mass)
    n_a, n_0 = (hit.ravel() for hit in np.meshgrid(*hits, indexing="ij"))
    n_a = np.minimum(n_a + sampled, k)
    return n_a, np.minimum(n_0, k - n_a) if poll.swap else n_0, np.multiply.outer(*chances).ravel()


@lru_cache(maxsize=8)
def _winners(
    k: int, sigma: float, num_classes: int, laplace: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(P(class a wins), P(class 0 wins)) by votes n_a and n_0, float64 [k + 1, k + 1] each.

    Other classes have no votes. ``sigma``: of the discrete Gaussian noise, or the scale of the
    discrete Laplace noise.
    """
    reach = math.ceil((40 if laplace else 12) * sigma) + 1
    z = np.arange(-reach, reach + k + 1)  # the winner's noisy votes
    shifted = z[None, :] - np.arange(k + 1)[:, None]  # the noise that n votes need for that
    pmf = (
        np.tanh(0.5 / sigma) * np.exp(-np.abs(shifted) / sigma)
        if laplace
        else np.exp(log_pmf(shifted, sigma))
    )
    at_most = np.cumsum(pmf, axis=1)  # [n, z]: P(n + Z <= z)
    below = at_most - pmf
    others = num_classes - 2
    return (pmf * below[0] ** others) @ below.T, (at_most @ (pmf * at_most[0] ** others).T)
