"""The harness of the statistical audit: its bounds hold as often as they say, and come near."""

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from labelwall.teacher.audits.harness import EXPLORED, OUTCOMES, explored, sum_codes


def lower_bound(without: np.ndarray, added: np.ndarray, *, delta: float, error: float) -> float:
    """Codes, int64 [trials, queries], on the two data sets of one pair, as ``attack`` uses them."""
    cut = len(without) // EXPLORED
    event = explored(without[:cut], added[:cut], len(without) - cut, delta, error)
    return event.bound(without[cut:], added[cut:], delta, error)


def test_a_bound_is_wrong_no_more_often_than_it_says():
    """The bound's level for randomised response with epsilon = 1, by fixed pseudo-random trials."""
    rng, error = np.random.default_rng(0), 0.2
    wins = 1 / (1 + np.exp(-1.0))
    bounds = []
    for _ in range(400):
        sides = [rng.random(400) < p for p in (1 - wins, wins)]
        bounds.append(
            lower_bound(*(side[:, None].astype(np.int64) for side in sides), delta=0.0, error=error)
        )
    assert np.mean(np.array(bounds) > 1.0) <= error
    assert np.median(bounds) > 0.5


def test_composition_is_bounded_by_the_exact_epsilon_and_comes_near_it():
    """Eight randomised responses: their epsilon at delta from the binomial law."""
    n, delta, wins = 8, 0.05, 1 / (1 + np.exp(-0.5))
    p, q = (binom.pmf(np.arange(n + 1), n, rate) for rate in (wins, 1 - wins))
    exact = brentq(lambda x: np.maximum(p - np.exp(x) * q, 0).sum() - delta, 0.0, 4.0)
    rng = np.random.default_rng(1)
    drawn = [(rng.random((200000, n)) < rate).astype(np.int64) for rate in (1 - wins, wins)]
    bound = lower_bound(*drawn, delta=delta, error=0.01)
    assert 0.85 * exact < bound <= exact


def test_equal_laws_and_rare_differences_give_nothing():
    rng = np.random.default_rng(2)
    alike = [rng.integers(0, 3, (4000, 1)) for _ in range(2)]
    assert lower_bound(*alike, delta=0.01, error=0.05) == 0
    rare = np.zeros((4000, 1), dtype=np.int64)
    other = rare.copy()
    other[::400] = 1  # as often as delta = 1/400 explains
    assert lower_bound(rare, other, delta=1 / 400, error=0.05) == 0


def test_codes_of_a_sum_are_ordered_and_tell_deviations_apart():
    sums = np.arange(-5000, 5001)
    codes = sum_codes(sums, 800.0)
    assert (np.diff(codes) >= 0).all()
    assert (codes.min(), codes.max()) == (0, OUTCOMES)
    assert sum_codes(np.array([800]), 800.0) - sum_codes(np.array([0]), 800.0) == OUTCOMES // 8
