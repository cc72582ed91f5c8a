"""The exact exponential mechanism: its law by enumeration of its coins, and the law of many draws.

The draws depend on chance. With n draws and a tolerance of t, Hoeffding's inequality bounds a miss
of one frequency by 2 exp(-2 n t^2); n = 10,000 and t = 0.032 make that 2.6e-9, and there are fewer
than 30 frequencies in all.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from labelwall.teacher.noise.entropy import SystemEntropy, bernoulli_exp
from labelwall.wall.errors import InvalidInput
from tests.seeded_noise import SeededNoise

DRAWS, TOLERANCE = 10_000, 0.032
CASES = [
    ([0, 1, 2], Fraction(1, 2)),
    ([3, 0], Fraction(1, 3)),
    ([0, 0, 0, 40], Fraction(1, 4)),
    ([5, 7, 6], Fraction(0.1)),
    ([9], Fraction(1)),
]


def law(losses: list[int], rate: Fraction) -> np.ndarray:
    mass = np.exp(-float(rate) * np.array(losses))
    return mass / mass.sum()


@pytest.mark.parametrize(("losses", "rate"), CASES)
def test_the_law_of_many_draws(losses: list[int], rate: Fraction) -> None:
    rows = np.tile(np.array(losses, dtype=np.int64), (DRAWS, 1))
    for entropy in (SystemEntropy(), SeededNoise(1)):
        drawn = entropy.choose(rows, [rate] * DRAWS, [str(i) for i in range(DRAWS)], "r")
        frequencies = np.bincount(drawn, minlength=len(losses)) / DRAWS
        assert np.abs(frequencies - law(losses, rate)).max() < TOLERANCE


def tree(x: Fraction, depth: int) -> tuple[Fraction, Fraction]:
    """(P(True), P(undecided)) over all outcomes of the first ``depth`` coins, exact."""
    total = {True: Fraction(0), None: Fraction(0)}

    class Undecided(Exception):
        pass

    def outcomes(path: tuple[bool, ...]) -> Iterator[None]:
        coins, weight = iter(path), [Fraction(1)]

        class Coin:
            """What randbelow returns: compared once, and then it is one of the path's outcomes."""

            def __init__(self, below: int) -> None:
                self.below = below

            def __lt__(self, bound: int) -> bool:
                chance = min(Fraction(bound, self.below), Fraction(1))
                try:
                    side = next(coins)
                except StopIteration:
                    raise Undecided from None
                weight[0] *= chance if side else 1 - chance
                return side

        try:
            if bernoulli_exp(x, Coin) and next(coins, None) is None:
                total[True] += weight[0]
        except Undecided:
            if len(path) == depth:
                total[None] += weight[0]
            else:
                for side in (True, False):
                    yield from outcomes((*path, side))

    list(outcomes(()))
    return total[True], total[None]


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_the_coins_probability_is_the_exponential_by_enumeration(x: Fraction) -> None:
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
def test_bad_arguments_are_refused(
    losses: np.ndarray, rates: list[Fraction], keys: list[str]
) -> None:
    with pytest.raises(InvalidInput):
        SystemEntropy().choose(losses, rates, keys, "r")
