"""A noisy plurality compared with a threshold: the exact curve of the screening bit."""

from __future__ import annotations

import numpy as np

from .base import Curve, check_arguments
from .discrete_gaussian import (
    MAX_ENUMERABLE_SIGMA,
    log_at_least,
    log_excess,
    log_mixed_ratio,
    log_pmf,
    rdp_from_log_excess,
)
from .gaussian import gaussian_rdp


def screening_rdp(
    orders: np.ndarray, *, max_votes: int, threshold: int, sigma: float, sampling_probability: float
) -> np.ndarray:
    """RDP of the bit max_j n_j + Z > threshold on a fresh Poisson sample, float64 [n_orders].

    Z ~ N_Z(0, sigma^2). With p_t = P(t + Z > threshold) and the sample of the others fixed, the
    record moves t = max_j n_j, which lies in 0..max_votes, by at most 1. By joint quasi-convexity
    over that sample, D_alpha is at most the maximum over |t - t'| = 1 of
    D_alpha((1 - gamma) B(p_t) + gamma B(p_t') || B(p_t)), both directions: CVPR20 Theorem 7 with
    the sampling done exactly. p_{t+1} - p_t = P(Z = threshold - t), so ratios need no subtraction,
    at any depth of the tail.
    """
    check_arguments(
        orders,
        max_votes=max_votes,
        threshold=threshold,
        sigma=sigma,
        sampling_probability=sampling_probability,
    )
    if sigma > MAX_ENUMERABLE_SIGMA:
        return gaussian_rdp(
            orders, sigma=sigma, sensitivity=1.0, sampling_probability=sampling_probability
        )
    # threshold - t for t = max_votes - 1, ..., 0
    gaps = np.arange(threshold - max_votes + 1, threshold + 1)
    excess = threshold_log_excess(orders, gaps, float(sigma), float(sampling_probability))
    return rdp_from_log_excess(orders, excess)


def threshold_log_excess(
    orders: np.ndarray, gaps: np.ndarray, sigma: float, gamma: float
) -> np.ndarray:
    """log(moment - 1) of Z > z against Z >= z, worst over ``gaps`` z, float64 [n_orders].

    ``gaps``: consecutive ascending integers. Worst over both directions too: the record may raise
    the bit's probability or lower it, so either law can be the one without the record.
    """
    above = log_at_least(np.append(gaps, gaps[-1] + 1), sigma)  # P(Z >= z)
    # P(Z <= z - 1) = P(Z >= 1 - z) by symmetry
    below = log_at_least(np.append(-gaps[::-1], 1 - gaps[0]), sigma)[::-1]
    point = log_pmf(gaps, sigma)
    # of the bit, with t + 1 and with t votes
    likely, unlikely = above[:-1], above[1:]
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


SCREENING = Curve("screening", screening_rdp, l2_sensitivity=lambda _: 1.0)
