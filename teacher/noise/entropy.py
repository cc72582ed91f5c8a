"""Entropy of the release path: bits, integers and choices from fresh keys, never seeded.

Choices are the exponential mechanism without floats: exact draws proportional to exp(-rate * loss)
for integer losses. Rejection: take a column uniformly and accept it with probability
exp(-rate * (loss - smallest loss)), else begin again. The accepted column has exactly that law, and
the best column is always accepted, so m columns take at most m rounds on average. The coin is that
of Canonne, Kamath, Steinke 2020, Algorithm 1, on fractions. How long a draw takes depends on the
losses: timing is outside the guarantee.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol

import numpy as np

from ...wall.errors import InvalidInput
from .sampler import GAUSSIAN, LAPLACE, Stream, Words, draw, recipe, uniform_below
from .scales import check_scale

Uniform = Callable[[int], int]  # uniform among 0, ..., n - 1, fresh in each call
BITS = 32  # a record's inclusion compares this many random bits with floor(gamma * 2^32)


class Entropy(Protocol):
    """A source of randomness. Every draw is fresh and independent.

    ``keys`` (query identities) and ``release`` name what is drawn; the system ignores them.
    ``unsafe``: True where draws can be repeated, as in tests; a ledger that meets such a source
    certifies epsilon = infinity.
    """

    @property
    def unsafe(self) -> bool: ...

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        """Whether record ``ids[i, j]`` takes part in query i's sample, for int64 [q, m].

        bool [q, m], of probability floor(gamma * 2^32) / 2^32: at most gamma, exact at 1. Raises
        InvalidInput for a probability outside (0, 1] or keys that do not fit ids.
        """
        ...

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """N_Z(0, sigma^2) integers, int64 [q, width].

        The float ``sigma`` is a dyadic rational, and exactly that rational is drawn with: the scale
        realised is the one accounted. Raises InvalidInput unless it is positive and at most 2^50.
        """
        ...

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """z with P(z) proportional to exp(-|z| / scale), int64 [q, width]; else as the Gaussian."""
        ...

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        """A column j for each row i of int64 [q, m], P(j) proportional to exp(-rates[i] losses[i,
        j]): int64 [q].

        Raises InvalidInput for no columns, a rate that is not positive, or other than one key and
        one rate a row.
        """
        ...


class SystemEntropy:
    """Operating system entropy without state: neither a fork nor a restored process repeats a draw.

    Each call draws a key of its own (``sampler.fresh_key``) and takes all of its words from AES-256
    in counter mode under it. The key is never used again. Raises OSError, before anything is
    drawn, where the system gives no entropy.
    """

    unsafe = False

    def __repr__(self) -> str:
        return "SystemEntropy()"

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        bound = inclusion_bound(probability)
        check_keys(keys, len(ids))
        stream = Stream().read(ids.size * BITS // 8)
        return (np.frombuffer(stream, dtype="<u4") < bound).reshape(ids.shape)

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        check_scale("sigma", sigma)
        return _integers(GAUSSIAN, sigma, keys, width)

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        check_scale("scale", scale)
        return _integers(LAPLACE, scale, keys, width)

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        check_choice(losses, rates, keys)
        return choices(losses, rates, Stream())


def _integers(power: int, scale: float, keys: Sequence[str], width: int) -> np.ndarray:
    """Noise, int64 [q, width]. Without queries no entropy is taken."""
    shape = len(keys), width
    if 0 in shape:
        return np.zeros(shape, dtype=np.int64)
    return draw(recipe(power, float(scale)), Stream(), math.prod(shape)).reshape(shape)


def choices(losses: np.ndarray, rates: Sequence[Fraction], words: Words) -> np.ndarray:
    """Row i's column, from the words of lane i: int64 [q]."""
    rows = enumerate(zip(losses.tolist(), rates, strict=True))
    return np.array(
        [_choice(row, rate, uniform_below(words, i)) for i, (row, rate) in rows], dtype=np.int64
    )


def _choice(losses: Sequence[int], rate: Fraction, below: Uniform) -> int:
    """A column j with probability proportional to exp(-rate losses[j])."""
    smallest = min(losses)
    while True:
        column = below(len(losses))
        if bernoulli_exp(rate * (losses[column] - smallest), below):
            return column


def bernoulli_exp(x: Fraction, below: Uniform) -> bool:
    """True with probability exp(-x), x >= 0: whole steps of exp(-1), then the rest.

    exp(-x) for x <= 1: the first k with a failure of Bernoulli(x / k) is odd.
    """
    while True:
        step, k = min(x, Fraction(1)), 1
        while below(step.denominator * k) < step.numerator:
            k += 1
        if k % 2 == 0:
            return False
        if x <= 1:
            return True
        x -= 1


def inclusion_bound(probability: float) -> int:
    """The integer b <= probability * 2^32 for which a uniform 32-bit u < b includes a record."""
    if not 0 < probability <= 1:
        raise InvalidInput("sample_rate", "in (0, 1]", probability)
    return math.floor(math.ldexp(probability, BITS))  # ldexp is exact, so the floor is too


def check_choice(losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str]) -> None:
    """Raises InvalidInput unless there is a column, and one key and one positive rate a row."""
    check_keys(keys, len(losses))
    if losses.dtype != np.int64 or losses.ndim != 2 or losses.shape[1] == 0:
        raise InvalidInput(
            "losses", "int64 [q, m] with m > 0", f"{losses.dtype} {list(losses.shape)}"
        )
    if len(rates) != len(losses) or not all(rate > 0 for rate in rates):
        raise InvalidInput("rates", f"one for each of {len(losses)} rows, positive", len(rates))


def check_keys(keys: Sequence[str], rows: int) -> None:
    """Raises InvalidInput unless there is one key a row."""
    if len(keys) != rows:
        raise InvalidInput("keys", f"one for each of {rows} queries", len(keys))
