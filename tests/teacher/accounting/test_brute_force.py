"""Exact output laws of every neighbouring pair of tiny data sets, and their Renyi divergence.

Nothing here comes from the curves but the claims under test. The mechanism is written from its
definition: each record enters a Poisson sample, the first min(k, sample) by (distance, id) vote,
discrete Gaussian noise is added, and either the bit "noisy plurality exceeds T" or the argmax (ties
to the lowest class) leaves.
"""

import itertools
import math
from functools import cache

import numpy as np
import pytest

from labelwall.teacher.accounting.curves import argmax_rdp, gaussian_rdp, screening_rdp

ORDERS = np.array([1.05, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0, 100.0])
CLASSES = 3
MAX_OTHERS = 4  # with the record that comes or goes: five
NOISE = 40  # |Z| <= 40 is enumerated; at sigma <= 2 the rest weighs less than 1e-80


def neighbours():
    """All (others, record).

    Records are (distance, id, label), distances 0 and 1 shared by some, any label and place.
    """
    for n in range(MAX_OTHERS + 1):
        for labels in itertools.product(range(CLASSES), repeat=n):
            others = [(place // 2, 2 * place + 1, label) for place, label in enumerate(labels)]
            for place, label in itertools.product(range(n + 1), range(CLASSES)):
                # Its id puts it before the other of equal distance.
                yield others, (place // 2, 2 * place, label)


def vote_laws(others, record, k, gamma):
    """{votes: probability} without the record and with it, over all Poisson samples."""
    without, present = {}, {}
    for size in range(len(others) + 1):
        for sample in itertools.combinations(others, size):
            chance = gamma**size * (1 - gamma) ** (len(others) - size)
            for law, drawn in ((without, sample), (present, (*sample, record))):
                labels = [label for _, _, label in sorted(drawn)[:k]]
                votes = tuple(labels.count(c) for c in range(CLASSES))
                law[votes] = law.get(votes, 0.0) + chance
    mixed = {
        votes: gamma * present.get(votes, 0.0) + (1 - gamma) * without.get(votes, 0.0)
        for votes in {*without, *present}
    }
    return without, mixed


@cache
def noise(sigma):
    z = np.arange(-NOISE, NOISE + 1)
    mass = np.exp(-(z**2) / (2.0 * sigma**2))
    return mass / mass.sum()


@cache
def screening_law(votes, threshold, sigma):
    """(P(pass), P(fail)): each summed by itself, so that neither is 1 minus a rounding error."""
    passes = np.arange(-NOISE, NOISE + 1) + max(votes) > threshold
    return np.array([noise(sigma)[passes].sum(), noise(sigma)[~passes].sum()])


@cache
def argmax_law(votes, sigma):
    """P(class j wins) for each j.

    Its noisy count exceeds those of lower classes and is not below those of higher ones.
    """
    values = np.arange(-2 * NOISE, 2 * NOISE + 1)
    points = np.zeros((CLASSES, len(values)))
    for j, count in enumerate(votes):
        points[j, NOISE + count : 3 * NOISE + 1 + count] = noise(sigma)
    at_most = np.cumsum(points, axis=1)
    below = at_most - points
    wins = []
    for j in range(CLASSES):
        rivals = [below[i] if i < j else at_most[i] for i in range(CLASSES) if i != j]
        wins.append(float((points[j] * np.prod(rivals, axis=0)).sum()))
    return np.array(wins)


def divergence(p, q):
    """D_alpha(p || q) at ORDERS, by its definition, in logarithms."""
    return np.logaddexp.reduce(
        ORDERS[:, None] * np.log(p) + (1 - ORDERS[:, None]) * np.log(q), axis=1
    ) / (ORDERS - 1)


def worst_pair(k, gamma, output_law):
    """Largest divergence over all neighbouring pairs and both directions, float64 [n_orders]."""
    worst = np.zeros_like(ORDERS)
    for others, record in neighbours():
        p, q = (
            sum(chance * output_law(v) for v, chance in law.items())
            for law in vote_laws(others, record, k, gamma)
        )
        worst = np.maximum(worst, np.maximum(divergence(p, q), divergence(q, p)))
    return worst


SETTINGS = [(1, 1.0, 1.0), (2, 0.6, 0.25), (3, 1.5, 0.25), (3, 2.0, 1.0)]  # k, sigma, gamma


@pytest.mark.parametrize(("k", "sigma", "gamma"), SETTINGS)
def test_no_pair_exceeds_the_screening_curve(k, sigma, gamma):
    threshold = k - 1
    worst = worst_pair(k, gamma, lambda votes: screening_law(votes, threshold, sigma))
    fields = {"max_votes": k, "threshold": threshold, "sample_rate": gamma}
    claim = screening_rdp(ORDERS, sigma=sigma, **fields)
    assert (worst <= claim * (1 + 1e-9) + 1e-12).all()
    # Not vacuous: an attained share of the claim, and a claim for a third more noise than is drawn
    # is refuted.
    assert (worst >= 0.75 * claim).all()
    assert (worst > screening_rdp(ORDERS, sigma=1.35 * sigma, **fields)).any()


@pytest.mark.parametrize(("k", "sigma", "gamma"), SETTINGS)
def test_no_pair_exceeds_the_argmax_curve(k, sigma, gamma):
    worst = worst_pair(k, gamma, lambda votes: argmax_law(votes, sigma))
    claim = argmax_rdp(ORDERS, sigma=sigma, sample_rate=gamma)
    assert (worst <= claim * (1 + 1e-9) + 1e-12).all()
    assert (worst >= 0.1 * claim).any()
    assert (worst > argmax_rdp(ORDERS, sigma=2 * sigma, sample_rate=gamma)).any()
    assert (
        claim <= gaussian_rdp(ORDERS, sigma=sigma, sensitivity=math.sqrt(2), sample_rate=gamma)
    ).all()


def test_the_oracle_counts_what_it_should():
    """Its own checks.

    Laws sum to one, and some pair moves the votes by e_a - e_b, some by e_a, some by nothing.
    """
    moves = set()
    for others, record in neighbours():
        without, present = vote_laws(others, record, 2, 1.0)
        (before,), (after,) = (
            [votes for votes, chance in law.items() if chance > 0] for law in (without, present)
        )
        moves.add(tuple(sorted(b - a for a, b in zip(before, after, strict=True))))
    assert moves == {(0, 0, 0), (0, 0, 1), (-1, 0, 1)}
    assert abs(argmax_law((2, 1, 0), 1.5).sum() - 1) < 1e-12
    assert argmax_law((1, 1, 0), 1.5)[0] > argmax_law((1, 1, 0), 1.5)[1]  # ties to the lowest class
    assert len(list(neighbours())) == sum(3**n * (n + 1) * 3 for n in range(5))
