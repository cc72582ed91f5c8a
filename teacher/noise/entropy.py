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

import numpy as np

from ...wall.errors import InvalidInput
from ..accounting.discrete_gaussian import MAX_SCALE
from .sampler import GAUSSIAN, LAPLACE, Stream, Words, draw, recipe, uniform_below

Uniform = Callable[[int], int]  # uniform among 0, ..., n - 1, fresh in each call
BITS = 32  # a record's inclusion compares this many random bits with floor(gamma * 2^32)


class Entropy:
    """A source of randomness. Every draw is fresh and independent.

    ``keys`` (query identities) and ``release`` name what is drawn; the system ignores them. All
    methods raise InvalidInput for arguments out of range, and unless there is one key a row.
    ``unsafe``: True where draws can be repeated, as in tests; a ledger that meets such a source
    certifies epsilon = infinity.
    """

    unsafe = True

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        """Whether record ``ids[i, j]`` takes part in query i's sample, for int64 [q, m].

        bool [q, m], of probability floor(gamma * 2^32) / 2^32: at most gamma <= 1, exact at 1.
        """
        bound = inclusion_bound(probability)
        _check_keys(keys, len(ids))
        return self._uniform(keys, release, ids) < bound

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """N_Z(0, sigma^2) integers, int64 [q, width].

        The float ``sigma``, in (0, 2^50], is a dyadic rational, and exactly that rational is drawn
        with: the scale realised is the one accounted.
        """
        return self._integers(GAUSSIAN, sigma, keys, release, width)

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """z with P(z) proportional to exp(-|z| / scale), int64 [q, width]; else as the Gaussian."""
        return self._integers(LAPLACE, scale, keys, release, width)

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        """A column j for each row i of int64 [q, m], m > 0: int64 [q].

        P(j) is proportional to exp(-rates[i] losses[i, j]); there is one positive rate a row.
        """
        _check_keys(keys, len(losses))
        if losses.dtype != np.int64 or losses.ndim != 2 or losses.shape[1] == 0:
            rule = "int64 [q, m] with m > 0"
            raise InvalidInput("losses", rule, f"{losses.dtype} {list(losses.shape)}")
        if len(rates) != len(losses) or not all(rate > 0 for rate in rates):
            raise InvalidInput("rates", f"one for each of {len(losses)} rows, positive", len(rates))
        words, columns = self._words(keys, release, 1), np.empty(len(losses), dtype=np.int64)
        for lane, (row, rate) in enumerate(zip(losses.tolist(), rates, strict=True)):
            columns[lane] = _choice(row, rate, uniform_below(words, lane))
        return columns

    def _integers(
        self, power: int, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """Noise, int64 [q, width]. Without queries no entropy is taken."""
        if not 0 < scale <= MAX_SCALE:
            name = "sigma" if power == GAUSSIAN else "scale"
            raise InvalidInput(name, "positive and at most 2^50", scale)
        shape = len(keys), width
        if 0 in shape:
            return np.zeros(shape, dtype=np.int64)
        words = self._words(keys, release, width)
        return draw(recipe(power, float(scale)), words, math.prod(shape)).reshape(shape)

    def _words(self, keys: Sequence[str], release: str, width: int) -> Words:
        """Words with ``width`` lanes for each key."""
        raise NotImplementedError

    def _uniform(self, keys: Sequence[str], release: str, ids: np.ndarray) -> np.ndarray:
        """Uniform numbers below 2^BITS, unsigned, of the shape of ``ids``."""
        raise NotImplementedError


class SystemEntropy(Entropy):
    """Operating system entropy without state: neither a fork nor a restored process repeats a draw.

    Each call draws a key of its own (``sampler.fresh_key``) and takes all of its words from AES-256
    in counter mode under it. The key is never used again. Raises OSError, before anything is
    drawn, where the system gives no entropy.
    """

    unsafe = False

    def _words(self, keys: Sequence[str], release: str, width: int) -> Words:
        return Stream()

    def _uniform(self, keys: Sequence[str], release: str, ids: np.ndarray) -> np.ndarray:
        return np.frombuffer(Stream().read(ids.size * BITS // 8), dtype="<u4").reshape(ids.shape)


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


def _check_keys(keys: Sequence[str], rows: int) -> None:
    """Raises InvalidInput unless there is one key a row."""
    if len(keys) != rows:
        raise InvalidInput("keys", f"one for each of {rows} queries", len(keys))
