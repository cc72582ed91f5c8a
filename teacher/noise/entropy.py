"""Entropy of the release path: bits of a cryptographic stream, integer noise from OpenDP. Nothing here can be seeded."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from labelwall.teacher.noise.exponential_mechanism import choose
from labelwall.wall.errors import InvalidInput

BITS = 32  # a record's inclusion compares this many random bits with floor(gamma * 2^32)


class Entropy(Protocol):
    """Where randomness comes from. ``keys`` (query identities) and ``release`` name what is drawn; the system ignores them.

    ``unsafe``: True for a test tape, whose draws can be repeated; a ledger that meets one certifies epsilon = infinity.
    """

    @property
    def unsafe(self) -> bool: ...

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        """Fresh independent bits, bool [q, m]: does record ``ids[i, j]`` (int64 [q, m]) take part in query i's sample."""
        ...

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """Fresh independent N_Z(0, sigma^2) integers, int64 [q, width]."""
        ...

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """Fresh independent integers z of probability proportional to exp(-|z| / scale), int64 [q, width]."""
        ...

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        """Row i's column j, fresh and of probability proportional to exp(-rates[i] losses[i, j]) (int64 [q, m]): int64 [q]."""
        ...


class SystemEntropy:
    """Operating system entropy. It keeps no state, so neither a fork nor a restored snapshot of the process repeats a draw."""

    unsafe = False

    def __repr__(self) -> str:
        return "SystemEntropy()"

    def inclusion(
        self, probability: float, keys: Sequence[str], release: str, ids: np.ndarray
    ) -> np.ndarray:
        """Bits of probability floor(gamma * 2^32) / 2^32: at most gamma, exact at 1. bool [q, m].

        The stream is AES-256 in counter mode under a key that is drawn for this call and never used again.
        Raises InvalidInput for a probability outside (0, 1] or keys that do not fit ids.
        """
        bound = inclusion_bound(probability)
        check_keys(keys, len(ids))
        encryptor = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
        stream = encryptor.update(bytes(ids.size * BITS // 8))
        return (np.frombuffer(stream, dtype="<u4") < bound).reshape(ids.shape)

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """OpenDP's exact sampler (Canonne, Kamath, Steinke 2020, Algorithm 3), one vector for the call. int64 [q, width].

        The float ``sigma`` is a dyadic rational and OpenDP samples with exactly that rational: the scale realised is the
        one accounted. Raises InvalidInput for a sigma that is not positive and finite.
        """
        return _integers(_gaussian, "sigma", sigma, keys, width)

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        """OpenDP's exact sampler (Canonne, Kamath, Steinke 2020, Algorithm 2), with the float's own rational. int64 [q, width].

        Raises InvalidInput for a scale that is not positive and finite.
        """
        return _integers(_laplace, "scale", scale, keys, width)

    def choose(
        self, losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str], release: str
    ) -> np.ndarray:
        """The exponential mechanism, exactly (exponential_mechanism.py). int64 [q].

        Raises InvalidInput for no columns, a rate that is not positive, or other than one key and one rate a row.
        """
        check_choice(losses, rates, keys)
        return np.array(
            [choose(row, rate) for row, rate in zip(losses.tolist(), rates, strict=True)],
            dtype=np.int64,
        )


Measurement = Callable[[list[int]], Any]


def _integers(
    build: Callable[[float], Measurement], name: str, scale: float, keys: Sequence[str], width: int
) -> np.ndarray:
    """Noise on zeros, int64 [q, width]."""
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidInput(name, "positive and finite", scale)
    count = len(keys) * width
    if count == 0:
        return np.zeros((len(keys), width), dtype=np.int64)
    return np.array(build(float(scale))([0] * count), dtype=np.int64).reshape(len(keys), width)


def inclusion_bound(probability: float) -> int:
    """The integer b <= probability * 2^32 for which a uniform 32-bit u < b includes a record."""
    if not 0 < probability <= 1:
        raise InvalidInput("sampling_probability", "in (0, 1]", probability)
    return math.floor(math.ldexp(probability, BITS))  # ldexp is exact, so the floor is too


def check_choice(losses: np.ndarray, rates: Sequence[Fraction], keys: Sequence[str]) -> None:
    """Raises InvalidInput unless there is one key and one positive rate a row, and something to choose from."""
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


@lru_cache(maxsize=1024)  # Ind-KNN's labels have a scale for each noisy count
def _gaussian(sigma: float) -> Measurement:
    import opendp.prelude as dp  # a second of import that plans and help texts do not need

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=sigma)


@lru_cache(maxsize=64)
def _laplace(scale: float) -> Measurement:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return dp.m.make_laplace(*space, scale=scale)
