"""Pure DP: any epsilon-DP release, discrete Laplace noise, the exponential mechanism."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from .base import ROUND_UP, Curve, check_arguments
from .discrete_gaussian import (
    log_excess,
    log_mixed_ratio,
    rdp_from_log_excess,
)

# Pieces of a range of log ratios; the bound is above the supremum by about 2 / _PIECES of it.
_PIECES = 1024


def pure_rdp(orders: np.ndarray, *, epsilon: float) -> np.ndarray:
    """RDP of an epsilon-DP release, float64 [n_orders].

    min(epsilon, alpha epsilon^2 / 2): Bun-Steinke 2016, Proposition 3.3.
    """
    check_arguments(orders, epsilon=epsilon)
    return np.minimum(float(epsilon), orders * float(epsilon) ** 2 / 2) * ROUND_UP


def laplace_rdp(orders: np.ndarray, *, scale: float, sensitivity: float) -> np.ndarray:
    """RDP of discrete Laplace noise of ``scale`` at L1 ``sensitivity``, float64 [n_orders].

    Pure DP at their ratio. The curve of continuous Laplace noise is not valid here: on integers, a
    shift of 1 leaves losses of +-1/scale only (randomised response, the worst of all pure
    mechanisms), where continuous noise has smaller ones in between.
    """
    check_arguments(orders, scale=scale, sensitivity=sensitivity)
    return pure_rdp(orders, epsilon=float(sensitivity) / float(scale))


def bounded_range_rdp(
    orders: np.ndarray, *, epsilon: float, sampling_probability: float
) -> np.ndarray:
    """RDP of a Poisson-sampled release of bounded range ``epsilon``, float64 [n_orders].

    A record moves the release's log probabilities within an interval of length ``epsilon``. The
    exponential mechanism with rate r and losses that move by at most 1 has epsilon = 2r. With the
    others' bits fixed and P, Q the laws with and without the record, P/Q lies in
    [e^(t - epsilon), e^t] for a t in 0..epsilon, and E_Q[P/Q] = 1. A moment of
    (1 - gamma) + gamma P/Q is the mean of a convex function, in both directions, so it is largest
    where P/Q takes the ends alone (Dong, Durfee, Rogers 2020; without sampling at most
    alpha epsilon^2 / 8, Cesar and Rogers 2021). The supremum over t is bounded piece by piece:
    [e^(t - epsilon), e^(t + h)] holds every interval of a piece of length h.
    """
    check_arguments(orders, epsilon=epsilon, sampling_probability=sampling_probability)
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


PURE = Curve("pure", pure_rdp, pure_epsilon=lambda p: Fraction(p["epsilon"]))
LAPLACE = Curve(
    "laplace", laplace_rdp, pure_epsilon=lambda p: Fraction(p["sensitivity"]) / Fraction(p["scale"])
)
BOUNDED_RANGE = Curve("bounded_range", bounded_range_rdp)
