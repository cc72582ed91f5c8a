"""Oracles of the distributions of the privacy loss, without anything of the accounting's.

``exact_epsilon`` enumerates the discrete laws. ``smoothed`` computes the certificate `pld` of
continuous pairs (docs/privacy.md, section 19) by another way: noise in cells of one width, whose
losses are spread over a fine grid with their mean kept, and one Fourier transform for all copies.
It is no bound; it is within a percent of the exact value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

LOG_ERROR = 1e-12
_POINTS = 1 << 18
_CELLS = 1 << 14

Release = Mapping[str, Any]  # curve, parameters, cap
Losses = tuple[np.ndarray, np.ndarray]  # values, and chances under the first law


def smoothed(releases: Sequence[Release], delta: float) -> float:
    """Epsilon of a list of Gaussian and pure releases."""
    pairs = [_pair(r["curve"], r["parameters"], r["cap"]) for r in releases]
    if all(m > 0 and gamma == 1 for m, gamma in pairs):
        mu = math.sqrt(sum(r["cap"] * m**2 for r, (m, _) in zip(releases, pairs, strict=True)))
        return _solve(lambda epsilon: _closed(mu, epsilon), delta)
    found = []
    for sign in (1, -1):
        copies = [(_losses(*pair, sign), r["cap"]) for r, pair in zip(releases, pairs, strict=True)]
        losses, chances = _composed(copies)
        found.append(_solve(lambda e, p=chances, s=losses: _hockey_stick(p, s, e), delta))
    return max(found)


def _pair(curve: str, p: Mapping[str, Any], cap: int) -> tuple[float, float]:
    """(mu, gamma) of the continuous pair; (0, epsilon) of a pure release."""
    if curve == "pure":
        return 0.0, p["epsilon"]
    square = p["sensitivity"] ** 2
    lost = math.log(4.1 * cap * max(1.0, square) / LOG_ERROR) / (2 * math.pi**2)
    return math.sqrt(square / (p["sigma"] ** 2 - lost)), p["sample_rate"]


def _closed(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018, equation 6."""

    def below(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    second = below(-mu / 2 - epsilon / mu)
    return below(mu / 2 - epsilon / mu) - (math.exp(epsilon + math.log(second)) if second else 0)


def _losses(mu: float, gamma: float, sign: int) -> Losses:
    """Losses of one release, with the record against without (sign 1) or the reverse."""
    if mu == 0:
        epsilon, likely = gamma, 1 / (1 + math.exp(-gamma))
        return np.array([epsilon, -epsilon]), np.array([likely, 1 - likely])
    x = np.linspace(-9, 9 + mu, _CELLS)
    absent = np.exp(-(x**2) / 2)
    absent /= absent.sum()
    ratio = (1 - gamma) + gamma * np.exp(mu * (x - mu / 2))
    present = absent * ratio
    return sign * np.log(ratio), present / present.sum() if sign > 0 else absent


def _composed(copies: Sequence[tuple[Losses, int]]) -> Losses:
    """The law of the sum of all copies' losses, on a grid about its mean."""
    means = [float(s @ p) for (s, p), _ in copies]
    variances = [float((s - m) ** 2 @ p) for ((s, p), _), m in zip(copies, means, strict=True)]
    times = [cap for _, cap in copies]
    deviation = math.sqrt(sum(n * v for n, v in zip(times, variances, strict=True)))
    reach = 12 * deviation + max(float(np.abs(s).max()) for (s, _), _ in copies)
    step = 2 * reach / _POINTS
    transform = np.ones(_POINTS // 2 + 1, dtype=complex)
    for ((s, p), n), mean in zip(copies, means, strict=True):
        place = (s - mean) / step  # the mean comes back below: it would leave the grid
        low = np.floor(place)
        index = low.astype(np.int64)
        grid = np.bincount(index % _POINTS, p * (1 - (place - low)), minlength=_POINTS)
        grid += np.bincount((index + 1) % _POINTS, p * (place - low), minlength=_POINTS)
        transform *= np.fft.rfft(grid) ** n
    chances = np.fft.fftshift(np.fft.irfft(transform, _POINTS))
    total = sum(n * mean for n, mean in zip(times, means, strict=True))
    return total + step * (np.arange(_POINTS) - _POINTS // 2), chances


def _hockey_stick(chances: np.ndarray, losses: np.ndarray, epsilon: float) -> float:
    start = int(np.searchsorted(losses, epsilon))
    return float(chances[start:] @ -np.expm1(epsilon - losses[start:]))


def _solve(delta_of: Any, delta: float) -> float:
    """The epsilon at which a falling function of it comes down to ``delta``."""
    low, high = 0.0, 1.0
    if delta_of(0.0) <= delta:
        return 0.0
    while delta_of(high) > delta:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
    return high


def exact_epsilon(delta, *releases):
    """Smallest epsilon of releases (shift, sigma, gamma, times), by their laws.

    Each is N_Z(0, sigma^2)^m against the sampled shift. Losses are binned nowhere: every atom is
    kept.
    """
    base, ratios = np.ones(1), np.ones(1)
    for shift, sigma, gamma, times in releases:
        q, ratio = _exact_law(shift, sigma, gamma)
        for _ in range(times):
            base, ratios = np.outer(base, q).ravel(), np.outer(ratios, ratio).ravel()

    def delta_of(epsilon):
        return max(
            (base * np.maximum(ratios - math.exp(epsilon), 0)).sum(),
            (base * np.maximum(1 - math.exp(epsilon) * ratios, 0)).sum(),
        )

    return _solve(delta_of, delta)


def _exact_law(shift, sigma, gamma):
    """(chances without the record, likelihood ratios) of w = <shift, z>, which is sufficient."""
    z = np.arange(-14 * math.ceil(sigma), 14 * math.ceil(sigma) + 1)
    single = np.exp(-(z**2) / (2 * sigma**2))
    single /= single.sum()
    law = {0: 1.0}
    for step in shift:
        merged = {}
        for value, chance in law.items():
            for noise, weight in zip(z.tolist(), single.tolist(), strict=True):
                key = value + step * noise
                merged[key] = merged.get(key, 0.0) + chance * weight
        law = merged
    w, q = np.array(list(law)), np.array(list(law.values()))
    square = sum(step**2 for step in shift)
    return q, (1 - gamma) + gamma * np.exp((2 * w - square) / (2 * sigma**2))
