"""The sampler against mpmath on the same bits, fractions, and laws. A run of this file fails
faithful draws with probability below 1e-7."""

import math
from bisect import bisect_right
from fractions import Fraction
from random import Random

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from labelwall.teacher.noise import sampler
from labelwall.teacher.noise.entropy import MAX_SCALE
from labelwall.teacher.noise.sampler import (
    BITS,
    CELL_BITS,
    GAUSSIAN,
    LAPLACE,
    MAX_PLACE,
    MAX_TABLE_SCALE,
    TAIL_BITS,
    Law,
    Stream,
    coin_cells,
    coin_table,
    cumulative,
    draw,
    exp_bounds,
    recipe,
    uniform_below,
)
from tests.teacher.noise import oracles
from tests.teacher.noise.oracles import distribution, real

WORDS = st.integers(0, 2**64 - 1)
POWERS = [GAUSSIAN, LAPLACE]
SMALL = [(GAUSSIAN, 1.0), (GAUSSIAN, 25.0), (GAUSSIAN, 0.01), (LAPLACE, 0.7), (LAPLACE, 20.0)]


class Script:
    """Given words for a single lane; one more is an error."""

    def __init__(self, *words):
        self.left = list(words)

    def take(self, lanes):
        assert lanes.tolist() == [0]
        return np.array([self.left.pop(0)], dtype=np.uint64)


def place_of(law, value, bits):
    """How many places lie below the number value / 2^bits."""
    with mpmath.workprec(bits + 100):
        number, length = mpmath.mpf(value) / mpmath.mpf(2) ** bits, 4
        while (found := distribution(law, length))[-1] <= number:
            length *= 2
        return sum(g <= number for g in found)


def gaps(made):
    """What lies between the bounds of each place; the last is the tail."""
    return [
        (int(low), int(high))
        for low, high in zip(made.table.lows, made.table.above[1:], strict=True)
    ]


def drawn_from(made, values, sign=0):
    """The one number of a table, from BITS bits of the first value and 64 of each other one."""
    script = Script(values[0] << 1 | sign, *values[1:])
    found = draw(made, script, 1)
    assert not script.left
    return int(found[0])


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(SMALL), st.integers(0, 2**63 - 1), st.booleans())
def test_a_certain_word_is_the_inverse_distribution(which, value, negative):
    made = recipe(*which)
    assume(all(not low <= value < high for low, high in gaps(made)))
    place = place_of(made.law, value, BITS)
    assert drawn_from(made, [value], int(negative)) == (-place if negative else place)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SMALL), st.integers(0, 10**6), WORDS, st.booleans())
def test_a_word_in_a_gap_reads_on(which, pick, second, negative):
    made = recipe(*which)
    values = [value for low, high in gaps(made) for value in range(low, high)]
    value = values[pick % len(values)]
    place = place_of(made.law, value << 64 | second, BITS + 64)
    assert drawn_from(made, [value, second], int(negative)) == (-place if negative else place)


@pytest.mark.parametrize("which", [(GAUSSIAN, 25.0), (LAPLACE, 20.0)])
@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("depth", [2, 4])
def test_words_that_follow_a_boundary_read_far(which, above, depth):
    """The bits of G(z) itself, to depth words and one more that lies beside them."""
    made, z, bits = recipe(*which), 17, BITS + 64 * depth
    with mpmath.workprec(bits + 100):
        boundary = int(mpmath.floor(distribution(made.law, z + 1)[z] * mpmath.mpf(2) ** bits))
    words = [boundary >> (64 * depth)] + [
        boundary >> (64 * i) & (2**64 - 1) for i in reversed(range(depth))
    ]
    words[-1] += 2**40 if above else -(2**40)
    assert 0 <= words[-1] < 2**64
    assert drawn_from(made, words) == (z + 1 if above else z)


def test_the_ends_and_the_tail():
    made = recipe(GAUSSIAN, 1.0)
    assert drawn_from(made, [0]) == 0
    assert drawn_from(made, [0], sign=1) == 0
    ones = 2**64 - 1
    far = drawn_from(made, [2**63 - 1, ones, ones, 0])
    assert far == place_of(made.law, (2 ** (63 + 128) - 1) << 64, 63 + 192)
    assert far > len(made.table.lows)
    tiny = recipe(GAUSSIAN, 5e-324)
    assert drawn_from(tiny, [2**63 - 1, ones, 5]) == 0


def test_beyond_most_places_a_number_is_cut(monkeypatch):
    monkeypatch.setattr(sampler, "MAX_PLACE", 3)
    assert drawn_from(recipe(LAPLACE, 20.0), [2**63 - 1, 5]) == 3
    assert (MAX_PLACE << recipe(GAUSSIAN, MAX_SCALE).shift) < 2**63
    assert float(mpmath.log(2 * mpmath.exp(-mpmath.mpf(MAX_PLACE) / MAX_TABLE_SCALE), 2)) < -2900


# Blocks.

MANTISSAS = st.floats(min_value=0.5, max_value=1.0, exclude_max=True)
LARGE = st.builds(math.ldexp, MANTISSAS, st.integers(7, 50))


ENDS = [64.0, 65.0, 127.99999999999999, 128.0, 129.0, 2.0**49 * 1.0000000000000002, MAX_SCALE]


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize(
    "scale", [*ENDS, *(Random(n).uniform(0.5, 1) * 2**n for n in range(7, 51))]
)
def test_a_coins_cell_holds_its_exponent(scale, power):
    """At the ends and between: x is at least 0, within two cells, and int64 held it all."""
    made, random = recipe(power, scale), Random(0)
    size, block = len(made.table.lows), 1 << made.shift
    assert made.table_rate * (size - 1) ** power < 2**63
    assert made.rate * size**power << sampler.POWER_BITS < 2**63
    places = [0, 1, size - 1, *(random.randrange(size) for _ in range(30))]
    magnitudes = [p * block + r for p in places for r in (0, 1, block - 1, random.randrange(block))]
    cells = coin_cells(made, np.repeat(places, 4), np.array(magnitudes)).tolist()
    for magnitude, cell in zip(magnitudes, cells, strict=True):
        x = (
            made.law.rate * magnitude**power
            - made.table.law.rate * (magnitude >> made.shift) ** power
        )
        assert x >= 0
        assert cell <= x * 2**CELL_BITS < cell + 2 or (cell == 2**CELL_BITS and x >= 1)


def test_in_the_tail_nothing_is_certain():
    made = recipe(GAUSSIAN, MAX_SCALE)
    lower, upper = coin_table()
    for place in (len(made.table.lows), MAX_PLACE):
        (cell,) = coin_cells(made, np.array([place]), np.array([place << made.shift]))
        assert lower[cell] == 0
        assert upper[cell] == 2**63


def test_the_coins_table_is_exp():
    lower, upper = coin_table()
    with mpmath.workprec(300):
        for cell in range(1 << CELL_BITS):
            high, low = (mpmath.exp(-mpmath.mpf(cell + i) / 2**CELL_BITS) * 2**BITS for i in (0, 2))
            assert int(lower[cell]) <= low < int(lower[cell]) + 2
            assert int(upper[cell]) - 2 < high <= int(upper[cell])


@settings(max_examples=100, deadline=None)
@given(
    LARGE,
    st.sampled_from(POWERS),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.booleans(),
)
def test_a_coin_between_its_bounds_reads_on(scale, power, first, offset, above):
    """The bits of exp(-x), to the second word, and there a little less or more: kept or not."""
    made = recipe(power, scale)
    place = bisect_right(made.table.lows.tolist(), first >> 1)
    assume(int(made.table.above[place]) <= first >> 1)
    r = offset >> (64 - made.shift)
    magnitude = (place << made.shift) | r
    x = made.law.rate * magnitude**power - made.table.law.rate * place**power
    with mpmath.workprec(400):
        boundary = int(mpmath.floor(mpmath.exp(-real(x)) * mpmath.mpf(2) ** (BITS + 64)))
    coin = boundary + (2**20 if above else -(2**20))
    assume(0 <= coin < 2 ** (BITS + 64))  # unless x is about 0
    words = [first, offset, coin >> 64 << 1, coin & (2**64 - 1)]
    rest = [2, 0, 0]  # b = 0, r = 0, not negative, a coin that is kept: the number 0
    script = Script(*words, *rest)
    found = int(draw(made, script, 1)[0])
    refused = above or (magnitude == 0 and first % 2 == 1)
    assert len(script.left) == (0 if refused else len(rest))
    assert found == (0 if refused else -magnitude if first % 2 else magnitude)


def test_zero_with_a_minus_is_drawn_again():
    made = recipe(GAUSSIAN, 1000.0)
    script = Script(1, 0, 0, 2, 2**64 - 1, 0)
    assert draw(made, script, 1).tolist() == [(1 << made.shift) - 1]
    assert not script.left


# Chance.


@pytest.mark.parametrize("scale", [2.5, 30.0, 200.0, 5000.0, 1e6])
def test_draws_are_those_of_another_exact_sampler(scale):
    n = 20_000
    for power, oracle in ((GAUSSIAN, oracles.gaussian), (LAPLACE, oracles.laplace)):
        ours, theirs = draw(recipe(power, scale), Stream(), 5 * n), oracle(scale, n)
        assert ks_2samp(ours, theirs).pvalue > 1e-9
        assert ks_2samp(ours, draw(recipe(power, 1.25 * scale), Stream(), 5 * n)).pvalue < 1e-9


def test_opendp_charges_for_the_rate_that_is_drawn_with():
    for sigma in (0.1, 25.0, 1 / 3, 1e6):
        rho = oracles.measurement(sigma).map(1.0)  # zCDP of one vote
        exact = recipe(GAUSSIAN, sigma).law.rate
        assert exact == 1 / (2 * Fraction(sigma) ** 2)
        assert (
            exact * (1 - Fraction(1, 10**15)) <= Fraction(rho) <= exact * (1 + Fraction(1, 10**12))
        )


def test_the_largest_scale_fits():
    for power in POWERS:
        drawn = draw(recipe(power, MAX_SCALE), Stream(), 20_000)
        mean = MAX_SCALE * (math.sqrt(2 / math.pi) if power == GAUSSIAN else 1)
        assert 0.9 < np.abs(drawn).mean() / mean < 1.1
        assert len(np.unique(drawn)) == 20_000


@pytest.mark.parametrize("n", [1, 2, 3, 2**64 - 1, 2**64, 2**64 + 1, 3**50])
def test_uniform_integers_drop_bits_and_begin_again(n):
    bits = (n - 1).bit_length()
    count = -(-bits // 64)
    high = [2**64 - 1] * count  # too large, unless n is a power of two
    script = Script(*high, *([0] * count))
    found = uniform_below(script, 0)(n)
    assert found == (n - 1 if n == 2**bits else 0)
    assert all(0 <= uniform_below(Stream(), 0)(n) < n for _ in range(20))


# Bounds.

RATES = st.fractions(min_value=0, max_value=500, max_denominator=10**9)
ENDS = [Fraction(10**400), Fraction(1, 10**400), Fraction(5e-324)]
SIGMAS = [5e-324, 1e-3, 0.1, 1 / 3, 0.5, 0.6, 1.0, 2.5, 17.0, 25.0, 40.1, 63.99999]


@settings(max_examples=300, deadline=None)
@given(RATES | st.sampled_from(ENDS), st.sampled_from([8, 63, 127, 191, 400]))
def test_exp_is_between_its_bounds(x, bits):
    low, high = exp_bounds(x, bits)
    with mpmath.workprec(bits + 200):
        exact = mpmath.exp(-real(x)) * 2**bits
    assert 0 <= low <= exact <= high <= 2**bits
    assert high - low < 1 << 16  # of GUARD bits


def law_of(scale, power, two_sided):
    exact = Fraction(scale)
    return Law(power, 1 / (2 * exact**2) if power == 2 else 1 / exact, two_sided)


def check(law, bits):
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
def test_tables_place_by_place(scale, power, two_sided):
    check(law_of(scale, power, two_sided), 63)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(min_value=1e-2, max_value=30),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from([10, 63, 127, 255]),
)
def test_any_table_place_by_place(scale, power, two_sided, bits):
    check(law_of(scale, power, two_sided), bits)


def test_the_check_of_tables_can_fail(monkeypatch):
    """Without guard bits rounding is seen: bounds still hold, and are no longer close."""
    monkeypatch.setattr("labelwall.teacher.noise.sampler.GUARD", 12)
    with pytest.raises(AssertionError):
        check(Law(2, Fraction(1, 1250), two_sided=True), 63)
