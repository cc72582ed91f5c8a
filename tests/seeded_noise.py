"""Noise from a seed, so that two runs can be compared byte by byte.

UNSAFE, for tests only: whoever knows the seed can undo it.
"""

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from labelwall.teacher.noise.entropy import BITS, check_choice, check_keys, choices, inclusion_bound
from labelwall.teacher.noise.sampler import GAUSSIAN, LAPLACE, draw, recipe
from labelwall.teacher.noise.scales import check_scale

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


class SeededNoise:
    """A draw depends only on (seed, query key, release) and on the record's id or the class.

    So an added record that is not sampled shifts no other draw. A ledger that meets this source
    certifies epsilon = infinity.
    """

    unsafe = True

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __repr__(self) -> str:
        return "SeededNoise(epsilon=inf)"

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        """bool [q, m].

        A hash of (seed, key, release, id) against the bound that the system's bits use.
        """
        bound = inclusion_bound(probability)
        check_keys(keys, len(ids))
        starts = np.array([self._start(key, release, "bits") for key in keys], dtype=np.uint64)[
            :, None
        ]
        return (_mix(starts ^ _mix(ids.astype(np.uint64))) >> np.uint64(64 - BITS)) < np.uint64(
            bound
        )

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """int64 [q, width] by the system's sampler, from words of the tape."""
        check_scale("sigma", sigma)
        return self._integers(GAUSSIAN, sigma, keys, release, width)

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """int64 [q, width], likewise."""
        check_scale("scale", scale)
        return self._integers(LAPLACE, scale, keys, release, width)

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        """int64 [q], likewise."""
        check_choice(losses, rates, keys)
        return choices(losses, rates, self._words(keys, release, 1))

    def _integers(
        self, power: int, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        drawn = draw(
            recipe(power, float(scale)), self._words(keys, release, width), len(keys) * width
        )
        return drawn.reshape(len(keys), width)

    def _words(self, keys: Sequence[str], release: str, width: int) -> "_Lanes":
        """A lane for each number of each key."""
        starts = np.array(
            [self._start(key, release, "noise") for key in keys], dtype=np.uint64
        ).reshape(-1, 1)
        return _Lanes(_mix(starts ^ _mix(np.arange(width, dtype=np.uint64))).ravel())

    def _start(self, key: str, release: str, purpose: str) -> int:
        text = "\0".join([str(self._seed), key, release, purpose]).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


class _Lanes:
    """Words that repeat: splitmix64 from each lane's start, uint64 [n]."""

    def __init__(self, starts: np.ndarray) -> None:
        self._at = starts

    def take(self, lanes: np.ndarray) -> np.ndarray:
        """uint64 [m] for int64 [m]."""
        words = _mix(self._at[lanes])
        self._at[lanes] += GOLDEN_GAMMA
        return words


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection of uint64."""
    x = x + GOLDEN_GAMMA
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
