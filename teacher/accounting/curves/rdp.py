"""Renyi DP of ONE release of each kind, under add/remove of one record: D_alpha at every order of a grid.

Pure functions of numpy arrays. A curve is an upper bound in both directions, sums are exact over the discrete Gaussian,
and rounding goes up. Sampling probabilities: the sampler uses a rational number <= gamma, and every divergence here is
convex in gamma and zero at gamma = 0, hence larger at gamma itself. dp-accounting is given float noise multipliers only
(an int inside PoissonSampled(Composed(...)) it takes for the sigma of the whole).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from inspect import Parameter as Argument
from inspect import signature

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from labelwall.teacher.accounting.curves.argmax import argmax_log_excess, reach
from labelwall.teacher.accounting.curves.cache import cached
from labelwall.teacher.accounting.curves.lattice import (
    log_at_least,
    log_excess,
    log_mixed_ratio,
    log_pmf,
    rdp_from_log_excess,
)
from labelwall.teacher.accounting.plan import Release
from labelwall.wall.errors import InvalidInput

_FINE = [
    1.05,
    1.1,
    1.2,
    1.35,
    1.5,
    1.75,
    2.0,
    2.25,
    2.5,
    2.75,
    3.0,
    3.5,
    4.0,
    4.5,
    5.0,
    5.5,
    6.0,
    6.5,
]
_WHOLE = [
    *range(7, 17),
    *range(18, 33, 2),
    *range(36, 65, 4),
    72,
    80,
    96,
    112,
    128,
    144,
    160,
    192,
    224,
    256,
]
ORDERS = np.array([*_FINE, *_WHOLE, 320, 384, 448, 512, 640, 768, 1024], dtype=np.float64)
ORDERS.flags.writeable = False

CACHE_VERSION = 2  # raise when a cached curve would come out differently
LARGEST_CAP = 10**9
_PIECES = (
    1024  # of a range of log ratios; the bound is above the supremum by about 2 / _PIECES of it
)
_ENUMERABLE = 1e4  # sigma above which the Gaussian bound replaces an exact sum


def screening_rdp(
    orders: np.ndarray, *, max_votes: int, threshold: int, sigma: float, sampling_probability: float
) -> np.ndarray:
    """The bit max_j n_j + Z > threshold, Z ~ N_Z(0, sigma^2), votes from a fresh Poisson sample; float64 [n_orders].

    With p_t = P(t + Z > threshold) and the sample of the others fixed, the record moves t = max_j n_j, which lies in
    0..max_votes, by at most 1. By joint quasi-convexity over that sample, D_alpha is at most the maximum over |t - t'| = 1
    of D_alpha((1 - gamma) B(p_t) + gamma B(p_t') || B(p_t)), both directions: CVPR20 Theorem 7 with the sampling done
    exactly. p_{t+1} - p_t = P(Z = threshold - t), so ratios need no subtraction, at any depth of the tail.
    """
    _check(
        orders,
        max_votes=max_votes,
        threshold=threshold,
        sigma=sigma,
        sampling_probability=sampling_probability,
    )
    if sigma > _ENUMERABLE:
        return gaussian_rdp(
            orders, sigma=sigma, sensitivity=1.0, sampling_probability=sampling_probability
        )
    gaps = np.arange(
        threshold - max_votes + 1, threshold + 1
    )  # threshold - t for t = max_votes - 1 .. 0
    return rdp_from_log_excess(
        orders, _threshold_log_excess(orders, gaps, float(sigma), float(sampling_probability))
    )


def argmax_rdp(
    orders: np.ndarray, *, sigma: float, sampling_probability: float, swap: bool = True
) -> np.ndarray:
    """argmax_j (n_j + Z_j), Z_j ~ N_Z(0, sigma^2), ties to the lowest class, from a Poisson sample; float64 [n_orders].

    ``swap``: a record moves the votes by e_a - e_b or e_a (k nearest of a sample); False: by e_a alone (radius votes).
    The smaller of the contest with three outcomes (teacher/accounting/curves/argmax.py: proof, time) and the Gaussian bound.

    Without a swap, fix the noise of every class but a: what is left is P(Z >= z) against P(Z >= z - 1) for an integer z,
    the screening bit with any threshold. For |z| > L, L the contest's reach, both outcomes but one lie outside the
    event |Z| <= L, whose moment is below the contest's tail exp(-60). About 0.64 of the Gaussian bound either way.
    Kept on disk once computed (curve_cache.py); the first time takes seconds at sigma = 25.
    """
    _check(orders, sigma=sigma, sampling_probability=sampling_probability, swap=swap)
    sigma, gamma = float(sigma), float(sampling_probability)
    gaussian = gaussian_rdp(
        orders, sigma=sigma, sensitivity=math.sqrt(2 if swap else 1), sampling_probability=gamma
    )
    if swap:
        key = {
            "curve": "argmax",
            "version": CACHE_VERSION,
            "sigma": sigma.hex(),
            "gamma": gamma.hex(),
        }
        key["orders"] = [float(order).hex() for order in orders]
        excess = cached(
            key, len(orders), lambda: argmax_log_excess(orders, sigma=sigma, gamma=gamma)
        )
    elif sigma <= _ENUMERABLE:
        longest = max(reach(float(order), sigma, gamma) for order in orders)
        excess = _threshold_log_excess(orders, np.arange(-longest, longest + 1), sigma, gamma)
        excess = np.logaddexp(excess, -55.0)
    else:
        return gaussian
    return np.minimum(rdp_from_log_excess(orders, excess), gaussian)


def gaussian_rdp(
    orders: np.ndarray, *, sigma: float, sensitivity: float, sampling_probability: float
) -> np.ndarray:
    """Integer-valued query of L2 ``sensitivity`` plus N_Z(0, sigma^2) on every entry, Poisson-subsampled; float64 [n_orders].

    Unsampled: alpha sensitivity^2 / (2 sigma^2) at every order (Canonne-Kamath-Steinke 2020, Proposition 5). Subsampled, at
    integer alpha, E[((1 - gamma) + gamma l)^alpha] is a sum of E[l^j] = exp(j (j - 1) sensitivity^2 / (2 sigma^2)), equal for
    discrete and continuous noise; the other direction is no larger by the reflection z -> shift - z (Mironov-Talwar-
    Zhang 2019, Theorem 5). Between integers (alpha - 1) D_alpha is convex, so it is interpolated linearly.
    """
    _check(orders, sigma=sigma, sensitivity=sensitivity, sampling_probability=sampling_probability)
    multiplier, gamma = float(sigma) / float(sensitivity), float(sampling_probability)
    if gamma == 1.0:
        return orders / (2 * multiplier**2) * (1 + 1e-14)
    below, above = np.floor(orders), np.ceil(orders)
    whole = np.unique(np.concatenate([below, above]))
    whole = whole[whole > 1]
    accountant = RdpAccountant(orders=[int(order) for order in whole])
    accountant.compose(PoissonSampledDpEvent(gamma, GaussianDpEvent(multiplier)))
    # log moments; the library's sums are within 1e-14 per order (against 40 digits), negligible even times a million
    moments = dict(
        zip(
            whole,
            np.asarray(accountant.rdp) * (whole - 1) * (1 + 1e-12) + 1e-14 * whole,
            strict=True,
        )
    )
    moments[1.0] = 0.0
    low, high = (np.array([moments[order] for order in side]) for side in (below, above))
    return (low + (orders - below) * (high - low)) / (orders - 1)


def pure_rdp(orders: np.ndarray, *, epsilon: float) -> np.ndarray:
    """An epsilon-DP release: min(epsilon, alpha epsilon^2 / 2) (Bun-Steinke 2016, Proposition 3.3); float64 [n_orders]."""
    _check(orders, epsilon=epsilon)
    return np.minimum(float(epsilon), orders * float(epsilon) ** 2 / 2) * (1 + 1e-14)


def bounded_range_rdp(
    orders: np.ndarray, *, epsilon: float, sampling_probability: float
) -> np.ndarray:
    """A release whose log probabilities a record moves within an interval of length ``epsilon``, sampled; float64 [n_orders].

    The exponential mechanism with rate r and losses that move by at most 1 has epsilon = 2r. With the others' bits fixed and P, Q
    the laws with and without the record, P/Q lies in [e^(t - epsilon), e^t] for a t in 0..epsilon, and E_Q[P/Q] = 1. A moment
    of (1 - gamma) + gamma P/Q is the mean of a convex function, in both directions, so it is largest where P/Q takes the ends
    alone (Dong, Durfee, Rogers 2020; without sampling at most alpha epsilon^2 / 8, Cesar and Rogers 2021). The supremum over t is
    bounded piece by piece: [e^(t - epsilon), e^(t + h)] holds every interval of a piece of length h.
    """
    _check(orders, epsilon=epsilon, sampling_probability=sampling_probability)
    if epsilon == 0:
        return np.zeros_like(orders)
    step = float(epsilon) / _PIECES
    high = step * np.arange(1, _PIECES + 1)
    low = high - step - float(epsilon)
    # log probabilities of both ends, float64 [2, pieces], from (e^high - 1) : (1 - e^low)
    ends = np.stack([high + np.log(-np.expm1(-high)), np.log(-np.expm1(low))])
    log_p = ends - np.logaddexp(*ends)
    log_ratio = log_mixed_ratio(np.stack([low, high]), float(sampling_probability))
    both = [(float(order), 1.0 - float(order)) for order in orders]
    excess = np.array([max(log_excess(t, log_p, log_ratio).max() for t in pair) for pair in both])
    return rdp_from_log_excess(orders, excess)


def laplace_rdp(orders: np.ndarray, *, scale: float, sensitivity: float) -> np.ndarray:
    """Discrete Laplace noise of ``scale`` at L1 ``sensitivity``: pure DP at their ratio; float64 [n_orders].

    The curve of continuous Laplace noise is not valid here: on integers, a shift of 1 leaves losses of +-1/scale only
    (randomised response, the worst of all pure mechanisms), where continuous noise has smaller ones in between.
    """
    _check(orders, scale=scale, sensitivity=sensitivity)
    return pure_rdp(orders, epsilon=float(sensitivity) / float(scale))


def zcdp_rdp(orders: np.ndarray, *, rho: float) -> np.ndarray:
    """A rho-zCDP release: alpha rho; float64 [n_orders]."""
    _check(orders, rho=rho)
    return orders * float(rho) * (1 + 1e-14)


Curve = Callable[..., np.ndarray]

CURVES: dict[str, Curve] = {
    "screening": screening_rdp,
    "argmax": argmax_rdp,
    "gaussian": gaussian_rdp,
    "pure": pure_rdp,
    "bounded_range": bounded_range_rdp,
    "laplace": laplace_rdp,
    "zcdp": zcdp_rdp,
}


def release_rdp(release: Release, orders: np.ndarray) -> np.ndarray:
    """The curve of one release (its cap does not enter), float64 [n_orders]. Raises as ``check_release`` does."""
    check_release(release)
    return CURVES[release.curve](orders, **release.parameters)


def pure_epsilon(release: Release) -> Fraction | None:
    """What one release costs under pure DP, exactly; None where its curve is not that of a pure mechanism."""
    p = release.parameters
    if release.curve == "pure":
        return Fraction(p["epsilon"])
    return Fraction(p["sensitivity"]) / Fraction(p["scale"]) if release.curve == "laplace" else None


def check_release(release: Release) -> None:
    """Fail closed: InvalidInput for an unknown curve, a missing or unknown parameter, a value of the wrong type or range.

    A release may come from a ledger that somebody else wrote, so nothing about its fields is assumed.
    """
    if not isinstance(release.curve, str) or release.curve not in CURVES:
        raise InvalidInput(f"{release.name}.curve", f"one of {sorted(CURVES)}", release.curve)
    if not _integer(release.cap) or not 0 <= release.cap <= LARGEST_CAP:
        raise InvalidInput(
            f"{release.name}.cap", f"an integer between 0 and {LARGEST_CAP}", release.cap
        )
    arguments = [
        a
        for a in signature(CURVES[release.curve]).parameters.values()
        if a.kind is Argument.KEYWORD_ONLY
    ]
    required = {a.name for a in arguments if a.default is Argument.empty}
    found = set(release.parameters) if isinstance(release.parameters, dict) else set()
    if not required <= found or not found <= {a.name for a in arguments}:
        raise InvalidInput(
            f"{release.name}.parameters", f"{[a.name for a in arguments]}", sorted(map(str, found))
        )
    _check(ORDERS, **release.parameters)


def _threshold_log_excess(
    orders: np.ndarray, gaps: np.ndarray, sigma: float, gamma: float
) -> np.ndarray:
    """log(moment - 1) of the bit Z > z against Z >= z, the worst over ``gaps`` z and directions, float64 [n_orders].

    ``gaps``: consecutive ascending integers. The record may raise the bit's probability or lower it, so either law can
    be the one without the record.
    """
    above = log_at_least(np.append(gaps, gaps[-1] + 1), sigma)  # P(Z >= z)
    below = log_at_least(np.append(-gaps[::-1], 1 - gaps[0]), sigma)[
        ::-1
    ]  # P(Z <= z - 1), by symmetry P(Z >= 1 - z)
    point = log_pmf(gaps, sigma)
    likely, unlikely = above[:-1], above[1:]  # of the bit, with t + 1 and with t votes
    not_likely, not_unlikely = below[:-1], below[1:]
    gain, loss = np.logaddexp(0.0, point - unlikely), np.logaddexp(0.0, point - not_likely)
    raised = np.stack([unlikely, not_unlikely]), log_mixed_ratio(np.stack([gain, -loss]), gamma)
    lowered = np.stack([likely, not_likely]), log_mixed_ratio(np.stack([-gain, loss]), gamma)
    exponents = [(float(order), 1.0 - float(order)) for order in orders]
    return np.array(
        [
            max(log_excess(t, *pair).max() for t in both for pair in (raised, lowered))
            for both in exponents
        ]
    )


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Ranges keep squares and sums inside float64 and enumerations inside memory.
_SIZE = "a number between 1e-3 and 1e9"
_RULES: dict[str, tuple[str, Callable[..., bool]]] = {
    "max_votes": ("an integer between 1 and 1000000", lambda v: _integer(v) and 1 <= v <= 10**6),
    "threshold": (
        "an integer between -1000000 and 1000000",
        lambda v: _integer(v) and abs(v) <= 10**6,
    ),
    "sigma": (_SIZE, lambda v: _number(v) and 1e-3 <= v <= 1e9),
    "scale": (_SIZE, lambda v: _number(v) and 1e-3 <= v <= 1e9),
    "sensitivity": (_SIZE, lambda v: _number(v) and 1e-3 <= v <= 1e9),
    "sampling_probability": ("a number in (0, 1]", lambda v: _number(v) and 0 < v <= 1),
    "epsilon": ("a number between 0 and 1e6", lambda v: _number(v) and 0 <= v <= 1e6),
    "rho": ("a number between 0 and 1e6", lambda v: _number(v) and 0 <= v <= 1e6),
    "swap": ("true or false", lambda v: isinstance(v, bool)),
}


def _check(orders: np.ndarray, **parameters: object) -> None:
    """Raise InvalidInput for orders not above 1 or a parameter outside its range."""
    if (
        orders.ndim != 1
        or orders.dtype != np.float64
        or not (np.isfinite(orders).all() and (orders > 1).all())
    ):
        raise InvalidInput(
            "orders",
            "float64 [n_orders], finite and above 1",
            f"{orders.dtype} {list(orders.shape)}",
        )
    for name, value in parameters.items():
        rule, holds = _RULES[name]
        if not holds(value):
            raise InvalidInput(name, rule, value)
