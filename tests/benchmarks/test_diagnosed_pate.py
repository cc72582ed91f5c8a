"""PATE's data-dependent costs against exact divergences and the published code's numbers."""

import itertools
import math

import numpy as np
import pytest
from diagnosed_pate import (
    diagnose_confident_gnmax,
    diagnose_gnmax,
    diagnose_lnmax,
    gnmax_terms,
    lnmax_terms,
    log_flip_gaussian,
)
from diagnosed_screening import BANNER
from scipy.integrate import quad
from scipy.stats import laplace, norm

from labelwall.teacher.accounting.curves import ORDERS, screening_rdp
from labelwall.wall.errors import InvalidInput

SOME = np.array([1.5, 2.0, 4.0, 8.0, 16.0])


def winner(votes, noise):
    """P(each class wins) with continuous independent ``noise`` on each count, by quadrature."""
    votes = np.asarray(votes, dtype=float)

    def density(z, c):
        return noise.pdf(z - votes[c]) * math.prod(
            noise.cdf(z - other) for k, other in enumerate(votes) if k != c
        )

    ends = (min(votes) - 60, max(votes) + 60)
    how = {"points": votes, "limit": 300, "epsabs": 1e-14}
    return np.array([quad(density, *ends, args=(c,), **how)[0] for c in range(len(votes))])


def divergence(order, p, q):
    total = sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))
    return math.log(total) / (order - 1)


def neighbours(votes):
    """One classifier changes its mind."""
    for a, b in itertools.permutations(range(len(votes)), 2):
        if votes[b] > 0:
            moved = np.array(votes)
            moved[[a, b]] += (1, -1)
            yield moved


@pytest.mark.parametrize("votes", [(12, 0), (9, 3), (6, 6), (12, 0, 0), (8, 3, 1)])
@pytest.mark.parametrize(
    ("noise", "terms"), [(norm(scale=2.0), gnmax_terms), (laplace(scale=3.0), lnmax_terms)]
)
def test_a_label_costs_at_least_its_exact_divergence_from_every_neighbour(votes, noise, terms):
    law = winner(votes, noise)
    assert law.sum() == pytest.approx(1, abs=1e-7)
    bound = terms(SOME, np.array([votes]), noise.kwds["scale"])[0]
    for moved in neighbours(votes):
        exact = [divergence(order, law, winner(moved, noise)) for order in SOME]
        assert (bound >= np.array(exact) - 1e-6).all()
    if votes == (12, 0):  # unanimous: little is learned, at low orders
        assert bound[0] < terms(SOME, np.array([(6, 6)]), noise.kwds["scale"])[0, 0] / 2


def test_the_chance_of_a_flip_is_bounded_and_exact_for_two_classes():
    for votes in [(9, 3), (8, 3, 1), (4, 4, 4)]:
        found = math.exp(log_flip_gaussian(np.array([votes]), 2.0)[0])
        exact = 1 - winner(votes, norm(scale=2.0))[0]
        assert found >= exact - 1e-7
        assert len(votes) > 2 or found == pytest.approx(exact, rel=1e-6)


def test_disagreement_costs_the_data_independent_bound():
    votes = np.array([[50, 50, 50]])
    np.testing.assert_allclose(gnmax_terms(ORDERS, votes, 20.0)[0], ORDERS / 400)
    np.testing.assert_allclose(lnmax_terms(ORDERS, votes, 20.0)[0], np.minimum(0.1, ORDERS * 0.005))


def test_queries_add_up_and_confident_gnmax_pays_for_each_screening_and_each_label():
    votes = np.array([[90, 10, 0], [60, 30, 10], [40, 35, 25]])
    answered = np.array([True, True, False])
    one, two = (diagnose_gnmax(votes[:n], sigma=20.0, delta=1e-5).epsilon for n in (1, 2))
    assert 0 < one < two < diagnose_gnmax(votes, sigma=20.0, delta=1e-5).epsilon
    noise = {"sigma_screen": 30.0, "sigma_vote": 20.0, "delta": 1e-5}
    fields = {"teachers": 100, "threshold": 60, **noise}
    found = diagnose_confident_gnmax(votes, answered, **fields)
    silent = diagnose_confident_gnmax(votes, np.zeros(3, dtype=bool), **fields)
    assert two < found.epsilon
    assert silent.epsilon < found.epsilon
    bit = screening_rdp(ORDERS, max_votes=100, threshold=60, sigma=30.0, sample_rate=1.0)
    worst = 3 * bit + 2 * ORDERS / 400
    assert found.epsilon < (worst - math.log(1e-5) / (ORDERS - 1)).min()
    assert found.releases == "3 screenings and 2 GNMAX labels"


def test_what_a_diagnosis_prints_begins_with_its_banner_and_repr_says_nothing():
    votes = np.array([[90, 10, 0]])
    gnmax = diagnose_gnmax(votes, sigma=20.0, delta=1e-5)
    for diagnosis in (gnmax, diagnose_lnmax(votes, scale=20.0, delta=1e-5)):
        assert diagnosis.render().startswith(BANNER)
        assert str(diagnosis.epsilon)[:5] not in repr(diagnosis)
    with pytest.raises(InvalidInput, match="votes"):
        diagnose_gnmax(np.array([[0.5, 0.5]]), sigma=1.0, delta=1e-5)
