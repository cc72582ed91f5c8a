"""Exact output laws of every neighbouring pair of tiny data sets, and their Renyi divergence.

Nothing here comes from the curves but the claims under test. The mechanism is written from its
definition: each record enters a Poisson sample, the first min(k, sample) by (distance, id) vote,
noise is added, and either the bit "noisy plurality exceeds T" or the argmax (ties to the lowest
class) leaves. Where k exceeds all records, none displaces another: votes in a ball.
"""

import itertools
import math
from functools import cache

import numpy as np
import pytest

from labelwall.teacher.accounting.curves import argmax_rdp, gaussian_rdp, screening_rdp
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN, Lnmax, PrivateRadius
from tests.teacher import laws

ORDERS = np.array([1.05, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0, 100.0])
CLASSES = 3
MAX_OTHERS = 4  # with the record that comes or goes: five
NOISE = 40  # |Z| <= 40 is enumerated; at sigma <= 2 the rest weighs less than 1e-80


def neighbours():
    """All (others, record) of records (distance, id, label); some distances are shared."""
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
def screening_law(votes, threshold, sigma):
    """(P(pass), P(fail)): each summed by itself, so that neither is 1 minus a rounding error."""
    passes = np.arange(-NOISE, NOISE + 1) + max(votes) > threshold
    noise = laws.gaussian(sigma, NOISE)
    return np.array([noise[passes].sum(), noise[~passes].sum()])


@cache
def argmax_law(votes, sigma):
    return laws.winner(votes, laws.gaussian(sigma, NOISE))


def worst_pair(k, gamma, output_law):
    """Largest divergence over all neighbouring pairs and both directions, float64 [n_orders]."""
    worst = np.zeros_like(ORDERS)
    for others, record in neighbours():
        p, q = (
            sum(chance * output_law(v) for v, chance in law.items())
            for law in vote_laws(others, record, k, gamma)
        )
        worst = np.maximum(worst, laws.divergence(ORDERS, p, q))
    return worst


SETTINGS = [(1, 1.0, 1.0), (2, 0.6, 0.25), (3, 1.5, 0.25), (3, 2.0, 1.0)]  # k, sigma, gamma


@pytest.mark.parametrize(("k", "sigma", "gamma"), SETTINGS)
def test_no_pair_exceeds_the_screening_curve(k, sigma, gamma):
    threshold = k - 1
    worst = worst_pair(k, gamma, lambda votes: screening_law(votes, threshold, sigma))
    fields = {"max_votes": k, "threshold": threshold, "sample_rate": gamma}
    claim = screening_rdp(ORDERS, sigma=sigma, **fields)
    assert (worst <= claim * (1 + 1e-9) + 1e-12).all()
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


@pytest.mark.parametrize("gamma", [0.3, 1.0])
def test_no_pair_exceeds_the_prices_of_votes_in_a_ball(gamma):
    """Of the argmax less is attained: the noise that the proof fixes hides the record too."""
    mechanism = PrivateRadius(threshold=1, sigma_screen=1.3, sigma_vote=1.3, sample_rate=gamma)
    screen, aggregate = mechanism.releases(1, 1)
    assert (screen.name, aggregate.name) == (SCREEN, AGGREGATE)
    cut = mechanism.max_votes

    def bit(votes):
        return screening_law((min(max(votes), cut),), 1, 1.3)

    for law, curve, release, share in (
        (bit, screening_rdp, screen, 0.6),
        (lambda votes: argmax_law(votes, 1.3), argmax_rdp, aggregate, 0.25),
    ):
        worst, claim = worst_pair(99, gamma, law), curve(ORDERS, **release.parameters)
        assert (worst <= claim * (1 + 1e-9) + 1e-12).all()
        assert (worst[:7] >= share * claim[:7]).all()


def test_lnmax_is_pure():
    """All neighbouring votes of few classifiers: one of them changes sides."""
    scale, worst = 3.0, 0.0
    noise = laws.laplace(scale, 100)
    for a, b, c in itertools.product(range(0, 6, 2), repeat=3):
        p, q = (laws.winner(votes, noise) for votes in ((a, b + 1, c), (a + 1, b, c)))
        worst = max(worst, float(np.abs(np.log(p / q)).max()))
    (release,) = Lnmax(scale=scale).releases(1, 1)
    claim = release.parameters["sensitivity"] / release.parameters["scale"]
    assert 0.5 * claim < worst <= claim * (1 + 1e-6)
