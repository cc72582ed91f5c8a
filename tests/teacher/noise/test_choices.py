"""The exact exponential mechanism: its law by enumeration of its coins, and of many draws. Each of
30 frequencies is missed with a probability of 2 exp(-2 n t^2) = 2.6e-9 (Hoeffding)."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from labelwall.teacher.noise.entropy import SystemEntropy, bernoulli_exp
from labelwall.wall.errors import InvalidInput
from tests.seeded_noise import SeededNoise
from tests.teacher.laws import choice

DRAWS, TOLERANCE = 10_000, 0.032
CASES = [
    ([0, 1, 2], Fraction(1, 2)),
    ([3, 0], Fraction(1, 3)),
    ([0, 0, 0, 40], Fraction(1, 4)),
    ([5, 7, 6], Fraction(0.1)),
    ([9], Fraction(1)),
]


@pytest.mark.parametrize(("losses", "rate"), CASES)
def test_the_law_of_many_draws(losses, rate):
    rows = np.tile(np.array(losses, dtype=np.int64), (DRAWS, 1))
    for entropy in (SystemEntropy(), SeededNoise(1)):
        drawn = entropy.choose(rows, [rate] * DRAWS, [str(i) for i in range(DRAWS)], "r")
        frequencies = np.bincount(drawn, minlength=len(losses)) / DRAWS
        assert np.abs(frequencies - choice(losses, float(rate))).max() < TOLERANCE


def tree(x, depth):
    """(P(True), P(undecided)) over all outcomes of the first ``depth`` coins, exact."""
    totals = {True: Fraction(0), False: Fraction(0), None: Fraction(0)}
    for path in itertools.product((True, False), repeat=depth):
        coins, weight = list(path), [Fraction(1)]

        class Coin:
            """What randbelow returns: compared once, and then it is the next of the path."""

            def __init__(self, below):
                self.below = below

            def __lt__(self, bound, coins=coins, weight=weight):
                chance, side = min(Fraction(bound, self.below), Fraction(1)), coins.pop()
                weight[0] *= chance if side else 1 - chance
                return side

        try:
            outcome = bernoulli_exp(x, Coin)
        except IndexError:  # no coin is left
            outcome = None
        totals[outcome] += weight[0] / 2 ** len(coins)  # of all paths with these coins
    return totals[True], totals[None]


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_the_coins_probability_is_the_exponential_by_enumeration(x):
    yes, open_ = tree(x, 14)
    assert float(yes) <= math.exp(-x) + 1e-15
    assert math.exp(-x) <= float(yes + open_) + 1e-15
    assert float(open_) < 1e-3


@pytest.mark.parametrize(
    ("losses", "rates", "keys"),
    [
        (np.zeros((2, 0), dtype=np.int64), [Fraction(1)] * 2, ["a", "b"]),
        (np.zeros((2, 3)), [Fraction(1)] * 2, ["a", "b"]),
        (np.zeros((2, 3), dtype=np.int64), [Fraction(1), Fraction(0)], ["a", "b"]),
        (np.zeros((2, 3), dtype=np.int64), [Fraction(1)], ["a", "b"]),
        (np.zeros((2, 3), dtype=np.int64), [Fraction(1)] * 2, ["a"]),
    ],
)
def test_bad_arguments_are_refused(losses, rates, keys):
    with pytest.raises(InvalidInput):
        SystemEntropy().choose(losses, rates, keys, "r")
