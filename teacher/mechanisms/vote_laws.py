"""Neighbouring data sets on which a noisy vote leaks most, with the exact law of what is released on them.

The curves of one release are suprema over the votes of the other records (teacher/accounting/curves/rdp.py); the data sets here
put the votes where such a supremum sits. The added record is the nearest of all and has the last class, a, which loses
ties. Behind it come records of class a, then of class 0: how many of each decides where the contest n_a against n_0 and
the plurality stand, and whether the sample is full, so that the record displaces another (e_a - e_0) or just joins (e_a).
PATE is a full sample that is never thinned: k shards, of which each ally's has a record of class a, the others are empty and
vote for class 0, and the added record lies in one of these.

The laws only choose among pairs, before anything is drawn. No bound rests on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.special import gammaln, xlogy
from scipy.stats import binom

from labelwall.teacher.accounting.curves.lattice import log_at_least, log_pmf
from labelwall.teacher.mechanisms.naive_knn.mechanism import NaiveKnn
from labelwall.teacher.mechanisms.pate.mechanism import ConfidentGnmax, Gnmax, Lnmax
from labelwall.teacher.mechanisms.private_knn.mechanism import AGGREGATE, SCREEN, PrivateKnn

Pate = Lnmax | Gnmax | ConfidentGnmax
Voting = PrivateKnn | NaiveKnn | Pate  # mechanisms whose worst-case pairs are known here
JOINT = f"{SCREEN}+{AGGREGATE}"  # a whole query: abstained, or a class
PARTS = (SCREEN, AGGREGATE, JOINT)
_CLASSES = (2, 10)  # the contest alone; a crowd, out of which few win before the record comes
_GRID = 8  # places at which each class's votes may stand, from 0 to k
_PLACES = 60  # the same where one number decides both


@dataclass(frozen=True)
class Pair:
    """Neighbouring data sets around one query: ``allies`` records of the added one's class, then ``rivals`` of class 0.

    The neighbour has one record more, nearer than all of them, of the last of ``num_classes`` classes.
    """

    allies: int
    rivals: int
    num_classes: int

    def labels(self, added: bool) -> np.ndarray:
        """Classes by nearness, int64 [n], with or without the added record."""
        return np.repeat([self.num_classes - 1, 0], [self.allies + added, self.rivals])


def empty(mechanism: Voting, part: str) -> Pair:
    """Nobody but the added record: all that is released without it is noise. Whole queries show more in a crowd."""
    rivals = mechanism.teachers if isinstance(mechanism, Pate) else 0
    return Pair(0, rivals, _CLASSES[-1] if part == JOINT else _CLASSES[0])


def parts(mechanism: Voting) -> tuple[str, ...]:
    """What of a query is audited: its releases, and all of them together where there are two."""
    return PARTS if SCREEN in mechanism.stages else (AGGREGATE,)


def as_poll(mechanism: Voting) -> PrivateKnn:
    """The kNN vote with a mechanism's counts and noise, as the laws and pairs below see it; only scales where PATE has them."""
    if isinstance(mechanism, PrivateKnn):
        return mechanism
    if isinstance(mechanism, NaiveKnn):
        return PrivateKnn(
            k=mechanism.k, threshold=0, sigma_vote=mechanism.sigma_vote, sampling_probability=1.0
        )
    noise = mechanism.scale if isinstance(mechanism, Lnmax) else mechanism.sigma_vote
    poll = PrivateKnn(k=mechanism.teachers, threshold=0, sigma_vote=noise, sampling_probability=1.0)
    if isinstance(mechanism, ConfidentGnmax):
        return replace(poll, threshold=mechanism.threshold, sigma_screen=mechanism.sigma_screen)
    return poll


def candidates(mechanism: Voting) -> Iterator[Pair]:
    """Pairs whose votes stand on a grid over 0..k each, and those whose sample is full almost surely; for PATE all are full."""
    poll = as_poll(mechanism)
    if not isinstance(mechanism, Pate):
        yield from _samples(poll)
        return
    allies = sorted({round((poll.k - 1) * i / _PLACES) for i in range(_PLACES + 1)})
    yield from (Pair(n, poll.k - n, classes) for classes, n in product(_CLASSES, allies))


def _samples(mechanism: PrivateKnn) -> Iterator[Pair]:
    k, gamma = mechanism.k, mechanism.sampling_probability
    hits = sorted({round(k * i / _GRID) for i in range(_GRID + 1)})
    counts = [round(hit / gamma) for hit in hits]
    full = k if gamma == 1 else math.ceil((k + 6 * math.sqrt(k) + 20) / gamma)
    for classes, allies in product(_CLASSES, counts):
        yield from (Pair(allies, rivals, classes) for rivals in sorted({*counts, full}))


def laws(mechanism: Voting, pair: Pair) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each of the mechanism's parts: the outcomes' probabilities without and with the record, float64 [n_outcomes] each.

    Outcomes: the bit no, yes; class 0, another, a; abstained, class 0, another, a. With the record, each release samples
    it afresh.
    """
    poll, laplace = as_poll(mechanism), isinstance(mechanism, Lnmax)
    gamma = poll.sampling_probability
    absent, present = (_release_laws(poll, pair, sampled, laplace) for sampled in (False, True))
    mixed = [(1 - gamma) * a + gamma * b for a, b in zip(absent, present, strict=True)]
    sides = [
        {SCREEN: screen, AGGREGATE: vote, JOINT: np.append(screen[0], screen[1] * vote)}
        for screen, vote in (absent, mixed)
    ]
    return {part: (sides[0][part], sides[1][part]) for part in parts(mechanism)}


def repeated(law: np.ndarray, queries: int) -> np.ndarray:
    """Multinomial probabilities, float64 [n], of how often each outcome comes in ``queries`` independent ones."""
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


def _release_laws(
    mechanism: PrivateKnn, pair: Pair, sampled: bool, laplace: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Laws of the bit (no, yes) and of the winner (0, another, a) when the added record is, or is not, in the sample."""
    n_a, n_0, mass = votes(mechanism, pair, sampled)
    gaps = np.arange(mechanism.threshold - mechanism.k + 1, mechanism.threshold + 2)
    passes = np.exp(log_at_least(gaps, mechanism.sigma_screen))[
        ::-1
    ]  # entry t: P(Z >= threshold + 1 - t)
    passed = float(mass @ passes[np.maximum(n_a, n_0)])
    winners = _winners(mechanism.k, mechanism.sigma_vote, pair.num_classes, laplace)
    ally, rival = (float(mass @ table[n_a, n_0]) for table in winners)
    return np.array([1 - passed, passed]), np.array([rival, max(0.0, 1 - rival - ally), ally])


def votes(
    mechanism: PrivateKnn, pair: Pair, sampled: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n_a, n_0, their probability), int64, int64 and float64 [n], when the added record is, or is not, in the sample."""
    k, gamma = mechanism.k, mechanism.sampling_probability
    hits, chances = [], []
    for records in (pair.allies, pair.rivals):
        hits.append(np.arange(min(records, k) + 1))
        mass = binom.pmf(hits[-1], records, gamma)
        mass[-1] = binom.sf(hits[-1][-1] - 1, records, gamma)  # k hits or more: no difference
        chances.append(mass)
    n_a, n_0 = (hit.ravel() for hit in np.meshgrid(*hits, indexing="ij"))
    n_a = np.minimum(n_a + sampled, k)
    return n_a, np.minimum(n_0, k - n_a), np.multiply.outer(*chances).ravel()


@lru_cache(maxsize=8)
def _winners(
    k: int, sigma: float, num_classes: int, laplace: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(P(class a wins), P(class 0 wins)) by votes n_a and n_0, float64 [k + 1, k + 1] each; other classes have none.

    ``sigma``: of the discrete Gaussian noise, or the scale of the discrete Laplace noise.
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
    crowd = num_classes - 2
    return (pmf * below[0] ** crowd) @ below.T, (at_most @ (pmf * at_most[0] ** crowd).T)
