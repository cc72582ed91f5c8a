"""Where random words come from: AES-256 in counter mode under a key that serves one call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

KEY_BYTES = 32
WORD = 64  # bits of a word


class Words(Protocol):
    """Uniform independent words, each handed out once. A draw takes its words from one lane."""

    def take(self, lanes: np.ndarray) -> np.ndarray:
        """The next word of each lane: uint64 [m], for int64 [m] without repetitions."""
        ...


class Stream:
    """The system's words: one stream under a fresh key, whatever the lanes."""

    def __init__(self) -> None:
        self._encryptor = Cipher(algorithms.AES(fresh_key()), modes.CTR(bytes(16))).encryptor()

    def __repr__(self) -> str:
        return "Stream()"

    def take(self, lanes: np.ndarray) -> np.ndarray:
        """The next words: uint64 [m] for int64 [m]."""
        return np.frombuffer(self.read(len(lanes) * WORD // 8), dtype="<u8")

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        return self._encryptor.update(bytes(count))


def fresh_key() -> bytes:
    """256 bits of the operating system: ``os.urandom`` xor a read of /dev/urandom.

    Since glibc 2.41 the former may be served from memory of the process (vDSO getrandom), which a
    snapshot may restore; a read of the device always enters the kernel. The former waits until the
    kernel's generator is seeded; the latter may not. Raises OSError where either fails.
    """
    first = os.urandom(KEY_BYTES)
    with open("/dev/urandom", "rb", buffering=0) as device:
        second = device.read(KEY_BYTES)
    if len(second) != KEY_BYTES:
        raise OSError(f"/dev/urandom gave {len(second)} bytes of {KEY_BYTES}")
    return bytes(a ^ b for a, b in zip(first, second, strict=True))


def uniform_below(words: Words, lane: int) -> Callable[[int], int]:
    """A source of integers uniform among 0, ..., n - 1, n >= 1, from whole words of ``lane``.

    Exact: as many bits as n - 1 has, again and again until they are below n.
    """
    here = np.array([lane])

    def below(n: int) -> int:
        bits = (n - 1).bit_length()
        while True:
            value = 0
            for _ in range(-(-bits // WORD)):
                value = value << WORD | int(words.take(here)[0])
            value >>= -bits % WORD
            if value < n:
                return value

    return below
