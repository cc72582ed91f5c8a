"""Privacy curves against independent oracles; all contests and tie orders counted by hand."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from labelwall.teacher.accounting import curves
from labelwall.teacher.accounting.contest import argmax_log_excess, reach
from labelwall.teacher.accounting.curves import argmax_rdp, gaussian_rdp
from labelwall.teacher.accounting.plan import Release
from labelwall.wall.errors import InvalidInput
from tests.teacher.laws import gaussian

DOUBLING = np.array([2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
SCREENING = {"max_votes": 300, "threshold": 210, "sigma": 85.0, "sample_rate": 0.25}


def exact_screening(order, max_votes, threshold, sigma, gamma):
    """D_alpha in 50 digits of the worst pair of counts that differ by 1, in both directions."""
    with mpmath.workdps(50):
        alpha, g, wide = mpmath.mpf(order), mpmath.mpf(gamma), int(60 * sigma) + 60 + max_votes
        square = 2 * mpmath.mpf(sigma) ** 2
        mass = {z: mpmath.exp(-mpmath.mpf(z * z) / square) for z in range(-wide, wide + 1)}
        total, laws = sum(mass.values()), []
        for t in range(max_votes + 1):
            passes = sum(m for z, m in mass.items() if t + z > threshold)
            fails = sum(m for z, m in mass.items() if t + z <= threshold)
            laws.append((passes / total, fails / total))
        moments = []
        for old, new in [*itertools.pairwise(laws), *itertools.pairwise(laws[::-1])]:
            mixed = [(1 - g) * b + g * n for b, n in zip(old, new, strict=True)]
            for p, q in ((mixed, old), (old, mixed)):
                moments.append(sum(a**alpha * b ** (1 - alpha) for a, b in zip(p, q, strict=True)))
        return float(mpmath.log(max(moments)) / (alpha - 1))


@pytest.mark.parametrize(
    ("max_votes", "threshold", "sigma", "gamma"),
    [(3, 2, 0.5, 0.3), (3, 1, 0.5, 1.0), (5, 9, 1.0, 0.01), (8, 4, 3.0, 1e-6), (4, -3, 2.0, 0.9)],
)
def test_screening_is_the_definition_and_never_below_it(max_votes, threshold, sigma, gamma):
    orders = np.array([1.05, 1.5, 2.0, 7.0, 33.0, 256.0])
    fields = {"max_votes": max_votes, "threshold": threshold, "sigma": sigma}
    curve = curves.screening_rdp(orders, **fields, sample_rate=gamma)
    exact = np.array([exact_screening(order, **fields, gamma=gamma) for order in orders])
    assert (curve >= exact).all()
    np.testing.assert_allclose(curve, exact, rtol=1e-6)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_votes": 800, "threshold": 480, "sigma": 200.0, "sample_rate": 0.03},
        {"max_votes": 800, "threshold": 480, "sigma": 0.5, "sample_rate": 1.0},
        # p_t far below float64
        {"max_votes": 10, "threshold": 100_000, "sigma": 0.5, "sample_rate": 0.5},
        # past exact sums
        {"max_votes": 10, "threshold": 5, "sigma": 1e5, "sample_rate": 0.5},
    ],
)
def test_screening_lies_between_zero_and_the_gaussian_bound(fields):
    curve = curves.screening_rdp(curves.ORDERS, **fields)
    rest = {key: fields[key] for key in ("sigma", "sample_rate")}
    gaussian = curves.gaussian_rdp(curves.ORDERS, sensitivity=1.0, **rest)
    assert (curve > 0).all()
    assert (curve <= gaussian * (1 + 1e-7)).all()


@pytest.mark.parametrize(("multiplier", "gamma"), [(1.0, 0.1), (17.7, 0.15), (200.0, 0.001)])
def test_gaussian_is_the_binomial_sum_at_integers(multiplier, gamma):
    whole = np.array([2.0, 3.0, 16.0, 64.0, 512.0])
    curve = curves.gaussian_rdp(whole, sigma=multiplier, sensitivity=1.0, sample_rate=gamma)
    with mpmath.workdps(60):
        for order, value in zip(whole, curve, strict=True):
            n, g, s = int(order), mpmath.mpf(gamma), mpmath.mpf(multiplier)
            chances = [mpmath.binomial(n, j) * g**j * (1 - g) ** (n - j) for j in range(n + 1)]
            moments = [mpmath.exp(j * (j - 1) / (2 * s**2)) for j in range(n + 1)]
            exact = mpmath.log(mpmath.fdot(chances, moments)) / (n - 1)
            assert exact <= value <= exact * (1 + mpmath.mpf("1e-3")) + mpmath.mpf("1e-13")


@pytest.mark.parametrize(("sigma", "gamma"), [(3.0, 0.2), (0.6, 0.2), (1.0, 1.0)])
def test_gaussian_covers_the_discrete_law_between_integers(sigma, gamma):
    """Enumerated: N_Z(0, sigma^2) against its mixture with N_Z(1, sigma^2), both directions."""
    orders = np.array([1.1, 1.3, 1.5, 2.0, 2.5, 3.75, 10.5])
    curve = curves.gaussian_rdp(orders, sigma=sigma, sensitivity=1.0, sample_rate=gamma)
    z = np.arange(-60, 61)
    log_law = -(z**2) / (2 * sigma**2) - math.log(np.exp(-(z**2) / (2 * sigma**2)).sum())
    log_shifted = np.log(gamma) + (2 * z - 1) / (2 * sigma**2)
    log_ratio = np.logaddexp(math.log1p(-gamma), log_shifted) if gamma < 1 else log_shifted
    for order, value in zip(orders, curve, strict=True):
        exact = [
            np.logaddexp.reduce(log_law + t * log_ratio) / (order - 1) for t in (order, 1 - order)
        ]
        assert max(exact) <= value * (1 + 1e-9)
        # Below 2 the interpolation starts from D_1 = 0 and is loose where noise is small.
        if order >= 2:
            assert value <= 1.5 * exact[0]


def test_a_multiplier_given_as_an_integer_reaches_dp_accounting_as_a_float():
    """Inside PoissonSampled(Composed) the library drops all but one event for an int multiplier."""
    for sigma, sensitivity in ((5, 1), (5.0, 1.0), (5, 1.0)):
        curve = curves.gaussian_rdp(
            np.array([2.0, 8.0]), sigma=sigma, sensitivity=sensitivity, sample_rate=0.1
        )
        accountant = RdpAccountant(orders=[2, 8])
        accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(5.0)))
        np.testing.assert_allclose(curve, accountant.rdp, rtol=1e-6)


def test_pure_laplace_and_zcdp():
    np.testing.assert_allclose(
        curves.pure_rdp(DOUBLING, epsilon=0.1), [0.01, 0.02, 0.04, 0.08, 0.1, 0.1]
    )
    np.testing.assert_allclose(
        curves.laplace_rdp(DOUBLING, scale=20.0, sensitivity=2.0),
        curves.pure_rdp(DOUBLING, epsilon=0.1),
    )
    np.testing.assert_allclose(curves.zcdp_rdp(DOUBLING, rho=0.05), 0.05 * DOUBLING)
    # Discrete Laplace of scale 10 shifted by 1, by its definition: the pure curve covers it, the
    # continuous one does not.
    z = np.arange(-2000, 2001)
    total = np.exp(-np.abs(z) / 10.0).sum()
    moments = [
        np.exp((-a * np.abs(z) - (1 - a) * np.abs(z - 1)) / 10.0).sum() / total for a in DOUBLING
    ]
    exact = np.log(moments) / (DOUBLING - 1)
    continuous = RdpAccountant(orders=list(DOUBLING)).compose(LaplaceDpEvent(10.0)).rdp
    assert (curves.pure_rdp(DOUBLING, epsilon=0.1) >= exact).all()
    assert (continuous < exact).all()


WRONG = {
    "sigma": [0, -1.0, math.nan, math.inf, True, "85"],
    "sample_rate": [0, 1.01],
    "max_votes": [0, 300.0],
    "threshold": [None],
    "extra": [1],
}


@pytest.mark.parametrize(
    ("curve", "parameters"),
    [
        *(
            ("screening", {**SCREENING, name: value})
            for name, values in WRONG.items()
            for value in values
        ),
        ("screening", {key: value for key, value in SCREENING.items() if key != "threshold"}),
        ("screening", ["sigma"]),
        ("argmax", {"sigma": 25.0, "sample_rate": 0.15, "swap": 1}),
        ("gaussian", {"sigma": 25.0, "sample_rate": 0.15}),
        ("pure", {"epsilon": -1.0}),
        ("zcdp", {"rho": math.inf}),
        ("no_such_curve", {}),
        ("__class__", {}),
        (["screening"], SCREENING),
    ],
)
def test_unknown_means_no(curve, parameters):
    with pytest.raises(InvalidInput):
        curves.release_rdp(Release("r", curve, parameters, 1), curves.ORDERS)


@pytest.mark.parametrize("cap", [True, 1.5, "3", 10**12])
def test_a_cap_is_a_count(cap):
    release = Release("r", "zcdp", {"rho": 1.0}, 1)
    object.__setattr__(release, "cap", cap)
    with pytest.raises(InvalidInput):
        curves.release_rdp(release, curves.ORDERS)


ARGMAX = {"sigma": 25.0, "sample_rate": 0.15}


def test_argmax_reproduces_the_reference_values():
    reference = [4.6132e-05, 9.2309e-05, 1.8481e-04, 3.7043e-04, 7.4445e-04, 1.5067e-03]
    np.testing.assert_allclose(
        argmax_rdp(np.array([2.0, 4, 8, 16, 32, 64]), **ARGMAX), reference, rtol=1e-4
    )


def outcome_laws(sigma, shift, reach_of_noise, differences):
    """P(a wins), P(b wins), P(other wins) by counting points of a box: float64 [6, n, n, 3].

    Of the six tie orders and all contests (x, y) from ``differences`` squared.
    """
    z = np.arange(-reach_of_noise, reach_of_noise + 1)
    noise, laws = gaussian(sigma, reach_of_noise), []
    joint = np.outer(noise, noise)
    # Rank of a, b, other among equals: the lowest wins.
    for ranks in itertools.permutations((0, 1, 2)):
        table = np.empty((len(differences), len(differences), 3))
        for (i, x), (j, y) in itertools.product(enumerate(differences), repeat=2):
            scores = np.stack(
                np.broadcast_arrays(
                    3 * (x + shift[0] + z[:, None]), 3 * (y + shift[1] + z[None, :]), 0 * z[:, None]
                )
            )
            winner = (scores - np.array(ranks)[:, None, None]).argmax(axis=0)
            table[i, j] = np.bincount(winner.ravel(), joint.ravel(), minlength=3)
        laws.append(table)
    return np.array(laws)


def worst_divergence(base, other, gamma, order):
    """Largest D_alpha over contests, both directions, by its definition on laws [..., 3]."""
    mixed = (1 - gamma) * base + gamma * other
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [
            order * np.log(p) + (1 - order) * np.log(q) for p, q in ((mixed, base), (base, mixed))
        ]
    moments = [np.logaddexp.reduce(np.where(base > 0, log, -np.inf), axis=-1) for log in logs]
    return max(float(m.max()) for m in moments) / (order - 1)


@pytest.mark.parametrize(("sigma", "gamma"), [(0.8, 0.3), (1.2, 0.05), (1.2, 1.0)])
def test_argmax_is_the_worst_of_all_contests_with_all_tie_orders(sigma, gamma):
    orders = np.array([1.1, 1.5, 2.0, 3.0, 6.0])
    differences = range(-9, 10)
    base = outcome_laws(sigma, (0, 0), 12, differences)
    swapped, added = (outcome_laws(sigma, shift, 12, differences) for shift in ((1, -1), (1, 0)))
    for order in orders.tolist():
        exact = max(worst_divergence(base, law, gamma, order) for law in (swapped, added))
        claim = np.logaddexp(0.0, argmax_log_excess(order, sigma, gamma)) / (order - 1)
        assert exact <= claim * (1 + 1e-7)  # never below
        assert claim <= exact * (1 + 1e-4)  # and not above what is attained
        noise, one = {"sigma": sigma, "sample_rate": gamma}, np.array([order])
        alone = argmax_rdp(one, **noise, swap=False)[0]
        bound = gaussian_rdp(one, **noise, sensitivity=1.0)[0]
        without_swap = worst_divergence(base, added, gamma, order)
        assert without_swap <= alone * (1 + 1e-7)
        assert alone <= min(without_swap * (1 + 1e-4), bound)


@pytest.mark.parametrize(("sigma", "gamma"), [(0.01, 0.1), (0.5, 1.0), (0.5, 0.1), (1000.0, 0.2)])
def test_any_sigma_is_answered_and_never_above_the_gaussian_bound(sigma, gamma):
    orders = np.array([1.5, 2.0, 16.0, 512.0])
    noise, curves = {"sigma": sigma, "sample_rate": gamma}, []
    for swap in (False, True):
        curves.append(argmax_rdp(orders, **noise, swap=swap))
        assert np.isfinite(curves[-1]).all()
        gaussian = gaussian_rdp(orders, **noise, sensitivity=math.sqrt(2 if swap else 1))
        assert (curves[-1] <= gaussian).all()
    assert (curves[0] <= curves[1] * (1 + 1e-7)).all()


def test_the_tail_bound_covers_the_mass_it_stands_for():
    """Outside |u|, |v| <= L, M^t P^(1-t) sums to less than exp(-60) in both directions."""
    sigma, gamma, order = 2.0, 0.4, 5.5
    length = reach(order, sigma, gamma)
    z = np.arange(-3 * length, 3 * length + 1)
    log_mass = -(z**2) / (2 * sigma**2)
    log_mass -= np.logaddexp.reduce(log_mass)
    u, v = z[:, None], z[None, :]
    outside = (np.abs(u) > length) | (np.abs(v) > length)
    log_r = np.logaddexp(math.log(1 - gamma), math.log(gamma) + (u - v - 1) / sigma**2)
    for t in (order, 1 - order):
        assert (
            np.logaddexp.reduce((log_mass[:, None] + log_mass[None, :] + t * log_r)[outside]) < -60
        )
