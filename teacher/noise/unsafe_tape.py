"""UNSAFE, for tests only: entropy that repeats itself, so that two runs can be compared byte by byte."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from labelwall.teacher.noise.entropy import BITS, check_choice, check_keys, inclusion_bound

TAIL = 12.0  # the tape's noise is cut at 12 sigma; it certifies nothing, so no tail bound is owed
LAPLACE_TAIL = 40.0  # likewise, in scales


class UnsafeTape:
    """Every draw is a function of (seed, query key, release) and of the record's id or the class, and of nothing else.

    So an added record that is not sampled shifts no other draw. Whoever knows the seed can undo the noise: a ledger that
    meets this tape certifies epsilon = infinity.
    """

    unsafe = True

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __repr__(self) -> str:
        return "UnsafeTape(epsilon=inf)"

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        """bool [q, m]: a hash of (seed, key, release, id) against the bound that the system's bits use."""
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
        """int64 [q, width] by inverse distribution function from hashed uniforms in (0, 1)."""
        reach = int(np.ceil(TAIL * sigma)) + 1
        support = np.arange(-reach, reach + 1)
        return self._draw(support, np.exp(-0.5 * (support / sigma) ** 2), keys, release, width)

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """int64 [q, width], likewise."""
        reach = int(np.ceil(LAPLACE_TAIL * scale)) + 1
        support = np.arange(-reach, reach + 1)
        return self._draw(support, np.exp(-np.abs(support) / scale), keys, release, width)

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        """int64 [q], by inverse distribution function likewise."""
        check_choice(losses, rates, keys)
        chosen = []
        for row, rate, key in zip(losses, rates, keys, strict=True):
            mass = np.exp(-float(rate) * (row - row.min()))
            chosen.append(self._draw(np.arange(len(row)), mass, [key], release, 1)[0, 0])
        return np.array(chosen, dtype=np.int64)

    def _draw(
        self, support: np.ndarray, mass: np.ndarray, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        starts = np.array(
            [self._start(key, release, "noise") for key in keys], dtype=np.uint64
        ).reshape(-1, 1)
        hashed = _mix(starts ^ _mix(np.arange(width, dtype=np.uint64)))
        uniform = ((hashed >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
        return support[np.searchsorted(np.cumsum(mass / mass.sum())[:-1], uniform)].astype(np.int64)

    def _start(self, key: str, release: str, purpose: str) -> int:
        text = "\0".join([str(self._seed), key, release, purpose]).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection of uint64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
