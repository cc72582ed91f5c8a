"""The harness of the statistical audit: its bounds hold as often as they say, and come near."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, norm

from labelwall.teacher.audits.harness import (
    OUTCOMES,
    fresh_keys,
    lower_bound,
    normal_law,
    sum_codes,
)


def test_a_bound_is_wrong_no_more_often_than_it_says() -> None:
    """The bound's level for randomised response with epsilon = 1, by fixed pseudo-random trials."""
    rng, error = np.random.default_rng(0), 0.2
    wins = 1 / (1 + np.exp(-1.0))
    bounds = []
    for _ in range(400):
        sides = [rng.random(400) < p for p in (1 - wins, wins)]
        bounds.append(
            lower_bound(
                *(np.stack([~s, s], axis=1).astype(np.int64) for s in sides), delta=0.0, error=error
            )
        )
    assert np.mean(np.array(bounds) > 1.0) <= error
    assert np.median(bounds) > 0.5


def test_composition_is_bounded_by_the_exact_epsilon_and_comes_near_it() -> None:
    """Eight randomised responses: their epsilon at delta from the binomial law, by bisection."""
    n, delta, wins = 8, 0.05, 1 / (1 + np.exp(-0.5))
    heads = np.arange(n + 1)
    p, q = binom.pmf(heads, n, wins), binom.pmf(heads, n, 1 - wins)
    low, high = 0.0, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.maximum(p - np.exp(middle) * q, 0).sum() > delta else (low, middle)
        )
    rng = np.random.default_rng(1)
    drawn = [rng.binomial(n, probability, 200000) for probability in (1 - wins, wins)]
    bound = lower_bound(
        *(np.stack([n - heads, heads], axis=1) for heads in drawn), delta=delta, error=0.01
    )
    assert 0.85 * low < bound <= low


def test_equal_laws_and_rare_differences_give_nothing() -> None:
    rng = np.random.default_rng(2)
    alike = [np.eye(3, dtype=np.int64)[rng.integers(0, 3, 4000)] for _ in range(2)]
    assert lower_bound(*alike, delta=0.01, error=0.05) == 0
    rare = np.zeros((4000, 2), dtype=np.int64)
    rare[:, 0] = 1
    other = rare.copy()
    other[::400] = [0, 1]  # as often as delta = 1/400 explains
    assert lower_bound(rare, other, delta=1 / 400, error=0.05) == 0


def test_codes_of_a_sum_follow_the_normal_law() -> None:
    """Rounded normal sums around two means: frequencies within eight standard deviations."""
    n, deviation = 40000, 800.0
    for shift, law in zip((0.0, 1.5), normal_law(np.array([0.0, 1.5])), strict=True):
        assert law.sum() == pytest.approx(1)
        drawn = norm.rvs(shift * deviation, deviation, n, random_state=0)
        seen = np.bincount(sum_codes(np.rint(drawn).astype(np.int64), deviation), minlength=65)
        assert len(seen) == len(law) == OUTCOMES + 1
        assert (np.abs(seen - n * law) < 8 * np.sqrt(n * law) + 8).all()


def test_no_identity_comes_twice() -> None:
    first, again = (list(fresh_keys(10, 4)) for _ in range(2))
    assert [len(keys) for keys in first] == [4, 4, 2]
    assert len({key for keys in first + again for key in keys}) == 20
