"""Noise from a seed, UNSAFE: whoever knows the seed can undo it."""

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from labelwall.teacher.noise import sampler
from labelwall.teacher.noise.entropy import BITS, Entropy

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@contextmanager
def keys_of(name: str) -> Iterator[None]:
    """The n-th key of noise is a function of ``name`` and n; a fork's are the system's."""
    system, process, numbers = sampler.fresh_key, os.getpid(), itertools.count()

    def key() -> bytes:
        if os.getpid() != process:  # it would repeat its parent's
            return system()
        return hashlib.sha256(f"{name} {next(numbers)}".encode()).digest()

    sampler.fresh_key = key
    try:
        yield
    finally:
        sampler.fresh_key = system


class SeededNoise(Entropy):
    """A draw depends only on (seed, query key, release) and on the record's id or the class.

    So an added record that is not sampled shifts no other draw. A ledger that meets this source
    certifies epsilon = infinity.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __repr__(self) -> str:
        return "SeededNoise(epsilon=inf)"

    def _uniform(self, keys: Sequence[str], release: str, ids: np.ndarray) -> np.ndarray:
        """A hash of (seed, key, release, id)."""
        mixed = _mix(self._starts(keys, release, "bits") ^ _mix(ids.astype(np.uint64)))
        return mixed >> np.uint64(64 - BITS)

    def _words(self, keys: Sequence[str], release: str, width: int) -> "_Lanes":
        """A lane for each number of each key."""
        starts = self._starts(keys, release, "noise")
        return _Lanes(_mix(starts ^ _mix(np.arange(width, dtype=np.uint64))).ravel())

    def _starts(self, keys: Sequence[str], release: str, purpose: str) -> np.ndarray:
        """uint64 [q, 1]."""
        texts = ["\0".join([str(self._seed), key, release, purpose]).encode() for key in keys]
        starts = b"".join(hashlib.sha256(text).digest()[:8] for text in texts)
        return np.frombuffer(starts, dtype="<u8").reshape(-1, 1)


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
