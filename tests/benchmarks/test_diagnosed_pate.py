"""PATE's data-dependent costs against exact divergences and the published code's numbers."""

import itertools
import math

import diagnosed_smooth as smooth
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
    return np.array(
        [
            quad(density, *ends, args=(c,), points=votes, limit=300, epsabs=1e-14)[0]
            for c in range(len(votes))
        ]
    )


def divergence(order, p, q):
    return math.log(sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (
        order - 1
    )


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
    fields = {
        "teachers": 100,
        "threshold": 60,
        "sigma_screen": 30.0,
        "sigma_vote": 20.0,
        "delta": 1e-5,
    }
    found = diagnose_confident_gnmax(votes, answered, **fields)
    silent = diagnose_confident_gnmax(votes, np.zeros(3, dtype=bool), **fields)
    assert two < found.epsilon
    assert silent.epsilon < found.epsilon
    worst = (
        3 * screening_rdp(ORDERS, max_votes=100, threshold=60, sigma=30.0, sampling_probability=1.0)
        + 2 * ORDERS / 400
    )
    assert found.epsilon < (worst - math.log(1e-5) / (ORDERS - 1)).min()
    assert found.releases == "3 screenings and 2 GNMAX labels"


def test_what_a_diagnosis_prints_begins_with_its_banner_and_repr_says_nothing():
    votes = np.array([[90, 10, 0]])
    shown = [
        diagnose_gnmax(votes, sigma=20.0, delta=1e-5),
        diagnose_lnmax(votes, scale=20.0, delta=1e-5),
    ]
    measured = smooth.measure(votes, teachers=100, sigma=30.0, order=20.0)
    shown += [measured.sanitised(delta=1e-5, beta=0.02, sigma_ss=10.0)]
    assert str(measured.rdp)[:5] not in repr(measured)
    for diagnosis in shown:
        assert diagnosis.render().startswith(BANNER)
        assert str(diagnosis.epsilon)[:5] not in repr(diagnosis)
    with pytest.raises(InvalidInput, match="votes"):
        diagnose_gnmax(np.array([[0.5, 0.5]]), sigma=1.0, delta=1e-5)


def test_local_sensitivity_is_that_of_the_published_code():
    """tensorflow/privacy, research/pate_2018/smooth_sensitivity_test.py.

    Both directions of the path.
    """
    right = smooth.local_sensitivity(np.array([10, 0, 0]), 10, 0.5, 1.5)
    np.testing.assert_allclose(
        right, [0, 1.60178280e-08, 5.90681786e-03] + [5.99981308] * 7, rtol=1e-7, atol=1e-16
    )
    left = smooth.local_sensitivity(np.array([1000, 500, 300, 200, 0]), 2000, 250.0, 10.0)
    np.testing.assert_allclose(left[:298], 0, atol=1e-12)
    np.testing.assert_allclose(left[298:300], [2.77693450548e-7, 2.10853979548e-6], rtol=1e-6)
    np.testing.assert_allclose(left[300:], 2.73113623988e-6, rtol=1e-6)


def test_conditions_are_those_of_the_published_code():
    assert smooth.conditions(20.0, 10, 25.0) == (True, False)
    assert smooth.conditions(30.0, 10, 25.0) == (True, True)


@pytest.mark.parametrize(("sigma", "order"), [(2.0, 2.0), (3.0, 3.0), (1.5, 2.0)])
def test_local_sensitivity_bounds_every_change_within_each_distance(sigma, order):
    """Brute force.

    All votes of 12 classifiers on three classes, and how far they are from one another.
    """
    teachers = 12
    assert all(smooth.conditions(sigma, 3, order))
    everything = np.array(
        [v for v in itertools.product(range(teachers + 1), repeat=3) if sum(v) == teachers]
    )
    cost = smooth._rdp(log_flip_gaussian(everything, sigma), sigma, order)
    distance = np.abs(everything[:, None] - everything[None]).sum(axis=2) // 2
    change = np.where(distance == 1, np.abs(cost[:, None] - cost[None]), 0).max(axis=1)
    assert change.max() > 0
    for row, votes in enumerate(everything):
        bound = smooth.local_sensitivity(votes, teachers, sigma, order)
        for d in range(teachers):
            assert change[distance[row] <= d].max() <= bound[: d + 1].max() * (1 + 1e-9)


@pytest.mark.parametrize(
    ("order", "beta", "sigma"), [(5.0, 0.05, 2.0), (20.0, 0.02, 8.0), (10.0, 1e-4, 3.0)]
)
def test_the_noise_of_a_smooth_scale_costs_the_divergence_of_two_gaussians(order, beta, sigma):
    """By quadrature. The published formula for it is smaller than one of these."""
    found = []
    for ratio in (math.exp(-beta), 1.0, math.exp(beta)):
        p, q = norm(0, sigma), norm(min(1, ratio), ratio * sigma)
        wide = 60 * sigma * math.sqrt(order)
        moment, _ = quad(
            lambda x, p=p, q=q: math.exp(order * p.logpdf(x) + (1 - order) * q.logpdf(x)),
            *(-wide, wide),
            points=np.linspace(-wide, wide, 61)[1:-1],
            limit=2000,
        )
        found.append(math.log(moment) / (order - 1))
    bound = smooth.gaussian_smooth_rdp(order, beta, sigma)
    assert max(found) * (1 - 1e-7) <= bound <= max(found) * 1.05
    published = order * math.exp(2 * beta) / sigma**2 + (
        beta * order - math.log(1 - 2 * order * beta) / 2
    ) / (order - 1)
    if order == 20:
        assert published < 0.6 * found[0]


def test_sanitising_adds_its_price_and_unproved_settings_are_refused():
    votes = np.tile([[230, 12, 8] + [0] * 7, [0] * 7 + [8, 12, 230]], (20, 1))  # classes are alike
    measured = smooth.measure(votes, teachers=250, sigma=40.0, order=20.0)
    assert measured.rdp == pytest.approx(gnmax_terms(np.array([20.0]), votes, 40.0).sum())
    np.testing.assert_allclose(
        measured.sensitivity, 40 * smooth.local_sensitivity(votes[0], 250, 40.0, 20.0)
    )
    found, twice = (measured.sanitised(delta=1e-5, beta=0.02, sigma_ss=s) for s in (20.0, 40.0))
    assert found.epsilon == pytest.approx(
        measured.rdp + math.log(1e5) / 19 + smooth.gaussian_smooth_rdp(20.0, 0.02, 20.0)
    )
    assert found.deviation == pytest.approx(
        20 * (np.exp(-0.02 * np.arange(250)) * measured.sensitivity).max()
    )
    assert twice.deviation == pytest.approx(2 * found.deviation)
    assert twice.epsilon < found.epsilon
    with pytest.raises(InvalidInput, match="order"):
        measured.sanitised(delta=1e-5, beta=0.03, sigma_ss=20.0)
    with pytest.raises(InvalidInput, match="conditions"):
        smooth.measure(votes, teachers=250, sigma=20.0, order=25.0)
