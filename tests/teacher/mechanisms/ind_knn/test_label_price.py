"""What a label alone costs at one order: exact laws, another optimisation, and worst callers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from labelwall.teacher.accounting.accountant import certificates, certified_epsilon
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.ind_knn.label_price import LOST, label_prices, price, table
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.reverse_knn.mechanism import ReverseKnn
from labelwall.teacher.mechanisms.solve import solve
from labelwall.teacher.search.kernels import GRID
from labelwall.wall.errors import InvalidInput
from tests.teacher.mechanisms.ind_knn.test_mechanism import plan

ORDER = 18


def divergence(order: int, p: np.ndarray, q: np.ndarray) -> float:
    """The larger direction of D_A between two laws, float64 [outcomes]."""
    moments = [(a**order * b ** (1.0 - order)).sum() for a, b in ((p, q), (q, p))]
    return math.log(max(moments)) / (order - 1)


def by_search(order: int, m: float) -> float:
    """price_A(m) from logarithms: thresholds on a grid, then a search next to the best."""

    def at(z: np.ndarray | float, sign: int) -> np.ndarray | float:
        p, q = (log_ndtr(-z), log_ndtr(z)), (log_ndtr(m - z), log_ndtr(z - m))
        p, q = (p, q) if sign > 0 else (q, p)
        terms = [order * a + (1 - order) * b for a, b in zip(p, q, strict=True)]
        return np.logaddexp(*terms) / (order - 1)

    found = []
    for sign in (1, -1):
        grid = np.linspace(-6 - order * m, 6 + order * m, 2001)
        best = grid[np.argmax(at(grid, sign))]
        near = (best - 0.1, best + 0.1)
        searched = minimize_scalar(
            lambda z, s: -at(z, s), bounds=near, args=(sign,), method="bounded"
        )
        found.append(-searched.fun)
    return max(found)


@pytest.mark.parametrize("order", [2, 5, 18, 128])
def test_a_price_is_that_of_another_optimisation_and_never_below_it(order: int) -> None:
    for m in (1e-4, 1e-3, 0.02, 0.3 / order, 2 / order, 6 / order, 11.9 / (order + 4)):
        exact, gaussian = by_search(order, m), order * m * m / 2
        assert exact <= price(order, m) <= 1.003 * exact
        assert 0.636 * gaussian < exact <= gaussian * (1 + 1e-6)


def test_a_table_bounds_every_shift_below_its_entry() -> None:
    shifts, prices = table(ORDER)
    assert (np.diff(prices) >= 0).all()
    for i in range(1, len(shifts), 97):
        for m in np.linspace(shifts[i - 1], shifts[i], 3):
            assert by_search(ORDER, m) <= ORDER * prices[i] <= 1.03 * by_search(ORDER, m)
    weights, scale = np.arange(GRID + 1), 400
    found = label_prices(scale, weights, ORDER)
    exact = [price(ORDER, w / math.sqrt(scale**2 - LOST)) for w in (1, 10, GRID)]
    np.testing.assert_array_less(exact, ORDER * found[[1, 10, GRID]] * (1 + 1e-9))
    assert (ORDER * found[[1, 10, GRID]] < 1.03 * np.array(exact)).all()
    assert np.isinf(label_prices(3, weights, ORDER)).all()  # too little noise for section 19
    assert np.isinf(label_prices(20, weights[-1:], ORDER)).all()  # beyond the table


def label_law(sums: tuple[int, ...], s: int) -> np.ndarray:
    """Exact law of the class with the largest of sums + N_Z(0, s^2), ties to the lowest."""
    z = np.arange(-13 * s, 13 * s + 1)
    mass = np.exp(-(z**2) / (2 * s * s))
    mass /= mass.sum()
    below = np.concatenate([[0.0], np.cumsum(mass)])  # P(Z < z)
    law = []
    for own, mine in enumerate(sums):
        wins = mass.copy()
        for other, theirs in enumerate(sums):
            if other != own:  # the others' noise is below z + mine - theirs, or equal
                place = z + mine - theirs + (own < other) + 13 * s
                wins = wins * below[np.clip(place, 0, len(z))]
        law.append(wins.sum())
    return np.array(law)


def test_exact_laws_of_labels_are_below_the_price_and_above_that_of_half_the_weight() -> None:
    for s, order in itertools.product((4, 6), (2, 5, 18)):
        for w in (1, 2, s // 2):
            m, worst = w / math.sqrt(s * s - LOST), 0.0
            bound = min(price(order, m), order * w * w / (2 * s * s))
            for first, second in itertools.product(range(-3 * s, 3 * s + 1, s // 2), repeat=2):
                for own in range(3):
                    sums = (0, first, second)
                    more = tuple(v + w * (c == own) for c, v in enumerate(sums))
                    worst = max(worst, divergence(order, label_law(sums, s), label_law(more, s)))
            assert worst <= bound
            assert worst > price(order, m / 2)


def worst_moment(mechanism: IndKnn, queries: int, prices: np.ndarray, scale: int) -> float:
    """log E[(P/Q)^A] / (A - 1) of the worst adaptive caller, over A: what a budget must cover.

    The caller picks each weight and threshold, knowing what is left, for the larger direction;
    labels alone, each the bit that is left when the others' noise is known. Exact laws.
    """
    order = int(mechanism.number("order"))
    z = np.arange(-14 * scale, 14 * scale + 1)
    mass = np.exp(-(z**2) / (2 * scale**2))
    mass /= mass.sum()
    below = np.concatenate([[0.0], np.cumsum(mass)])  # P(Z < z)
    above = np.concatenate([np.cumsum(mass[::-1])[::-1], [0.0]])
    thresholds = np.arange(8 * scale, 20 * scale, max(1, scale // 8))

    @cache
    def moments(weight: int, sign: int) -> float:
        laws = [(above[t], below[t]) for t in (thresholds, thresholds - weight)]
        (p, p0), (q, q0) = laws[::sign]
        return float((p**order * q ** (1.0 - order) + p0**order * q0 ** (1.0 - order)).max())

    @cache
    def worst(left: int, depth: int, sign: int) -> float:
        if depth == 0:
            return 1.0
        most = int(np.searchsorted(prices, left, side="right")) - 1
        tried = sorted({0, most // 4, most // 2, most})
        return max(moments(w, sign) * worst(left - int(prices[w]), depth - 1, sign) for w in tried)

    both = [math.log(worst(FULL, queries, sign)) for sign in (1, -1)]
    return max(both) / (order - 1) / order


def test_the_worst_adaptive_caller_stays_within_the_budget() -> None:
    mechanism = IndKnn(sigma_label=1.0, sigma_count=40.0, rho=0.02, filter="renyi", order=ORDER)
    scale = mechanism._noise(0)
    prices = mechanism._prices(scale)
    found = worst_moment(mechanism, 4, prices, scale)
    assert 0.9 * 0.02 < found <= 0.02
    halved = prices[np.arange(GRID + 1) // 2]  # a planted fault: the price of half the weight
    assert worst_moment(mechanism, 4, halved, scale) > 1.5 * 0.02


def test_payments_are_cheaper_than_of_the_sums_and_never_below_the_price() -> None:
    sums = IndKnn(sigma_label=0.3, sigma_count=40.0, rho=0.03)
    labels = replace(sums, filter="renyi", order=ORDER)
    for neighbours in (0, 200, 4000):
        scale = labels._noise(neighbours)
        units, of_sums = labels._prices(scale), sums._prices(scale)
        assert (np.diff(units) >= 0).all()
        assert (units <= of_sums).all()
        assert units[0] == 0
        for w in (1, 13, 50):
            paid = int(units[w]) * 0.03 / FULL
            assert ORDER * paid >= price(ORDER, w / math.sqrt(scale**2 - LOST)) * (1 - 1e-12)
    assert units[13] < 0.66 * of_sums[13]
    assert labels._count_units() == sums._count_units()


def test_the_budget_decides_the_order() -> None:
    for epsilon, order, rho in ((1.0, 18, 0.0305527), (0.5, 32, 0.0085050)):
        (found,) = solve([Priced(IndKnn(filter="renyi"), 1000, 1000)], epsilon, 1e-5)
        assert (found.order, found.rho) == (order, pytest.approx(rho, abs=1e-7))
        assert set(certificates(plan(found))) == {"tight"}
        assert certificates(plan(found))["tight"].order == order
        assert 0.999 * epsilon < certified_epsilon(plan(found)) <= epsilon
    entries = [Priced(IndKnn(filter="renyi"), 500, 500), Priced(ReverseKnn(), 1, 1)]
    shared, other = solve(entries, 1.0, 1e-5)
    assert shared.order == ORDER
    assert shared.rho == pytest.approx(0.0153, rel=0.02)
    assert other.sigma == pytest.approx(5.72, rel=0.02)


def test_an_order_belongs_to_its_filter_and_to_the_grid() -> None:
    assert "order" not in IndKnn().fields()
    assert IndKnn(filter="renyi", order=18).fields()["order"] == 18
    (release,) = IndKnn(filter="renyi", order=18, rho=0.1, sigma_count=9.0).releases(1, 1)
    assert (release.curve, release.parameters) == ("renyi", {"rho": 0.1, "order": 18})
    with pytest.raises(InvalidInput, match=r"mechanism\.order` must be null"):
        IndKnn(order=18)
    for wrong in (17, 1, 18.0, True, 2048):
        with pytest.raises(InvalidInput, match="order"):
            IndKnn(filter="renyi", order=wrong)
    with pytest.raises(InvalidInput, match="solved from the budget"):
        IndKnn(filter="renyi", rho=0.1, sigma_count=9.0).releases(1, 1)
