"""Bounds against mpmath, which shares nothing with them: every place, both sides, and close."""

from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.noise.sampler import (
    GUARD,
    TAIL_BITS,
    Law,
    cumulative,
    exp_bounds,
    weights,
)
from tests.teacher.noise.oracles import distribution, real

RATES = st.fractions(min_value=0, max_value=500, max_denominator=10**9)
SIGMAS = [5e-324, 1e-3, 0.1, 1 / 3, 0.5, 0.6, 1.0, 2.5, 17.0, 25.0, 40.1, 63.99999]


@settings(max_examples=300, deadline=None)
@given(RATES, st.sampled_from([8, 63, 127, 191, 400]))
def test_exp_is_between_its_bounds(x: Fraction, bits: int) -> None:
    low, high = exp_bounds(x, bits)
    with mpmath.workprec(bits + 200):
        exact = mpmath.exp(-real(x)) * 2**bits
    assert 0 <= low <= exact <= high <= 2**bits
    assert high - low < 1 << 16  # of GUARD bits


@pytest.mark.parametrize(
    "x", [Fraction(0), Fraction(1), Fraction(10**400), Fraction(1, 10**400), Fraction(5e-324)]
)
def test_exp_at_the_ends(x: Fraction) -> None:
    low, high = exp_bounds(x, 127)
    with mpmath.workprec(4000):
        exact = mpmath.exp(-real(x)) * 2**127
    assert low <= exact <= high
    assert high - low < 1 << 8


@pytest.mark.parametrize("power", [1, 2])
def test_weights_and_ratios(power: int) -> None:
    law = Law(power, Fraction(3, 1000), two_sided=True)
    with mpmath.workprec(400):
        exact = [mpmath.exp(-real(law.rate) * z**power) * 2**127 for z in range(80)]
        for z, (low, high, ratio) in zip(range(79), weights(law, 127), strict=False):
            assert low <= exact[z] <= high < low + (1 << 24)
            assert exact[z + 1] / exact[z] * 2**127 <= ratio


def law_of(scale: float, power: int, two_sided: bool) -> Law:
    exact = Fraction(scale)
    return Law(power, 1 / (2 * exact**2) if power == 2 else 1 / exact, two_sided)


def check(law: Law, bits: int) -> None:
    lows, highs = cumulative(law, bits)
    with mpmath.workprec(bits + 200):
        exact = [g * 2**bits for g in distribution(law, len(lows))]
        assert all(low <= g <= high for low, g, high in zip(lows, exact, highs, strict=True))
        assert 2**bits - exact[-1] <= mpmath.mpf(2) ** (1 - TAIL_BITS)
    assert max(high - low for low, high in zip(lows, highs, strict=True)) <= 2
    assert lows == sorted(lows)
    assert highs == sorted(highs)
    assert 0 < lows[-1] < highs[-1] == 2**bits


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("scale", SIGMAS)
def test_tables_place_by_place(scale: float, power: int, two_sided: bool) -> None:
    check(law_of(scale, power, two_sided), 63)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(min_value=1e-2, max_value=30),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from([10, 63, 127, 255]),
)
def test_any_table_place_by_place(scale: float, power: int, two_sided: bool, bits: int) -> None:
    check(law_of(scale, power, two_sided), bits)


def test_the_check_of_tables_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without guard bits rounding is seen: bounds still hold, and are no longer close."""
    monkeypatch.setattr("labelwall.teacher.noise.sampler.GUARD", 12)
    with pytest.raises(AssertionError):
        check(Law(2, Fraction(1, 1250), two_sided=True), 63)
    assert GUARD == 64
