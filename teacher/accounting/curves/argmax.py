"""The class with the most noisy votes: the exact curve of a noisy argmax."""

from __future__ import annotations

import math

import numpy as np

from .base import Curve, Parameters, check_arguments
from .cache import cached_each
from .contest import argmax_log_excess, groups, reach
from .discrete_gaussian import MAX_ENUMERABLE_SIGMA, rdp_from_log_excess
from .gaussian import gaussian_rdp
from .screening import threshold_log_excess

CACHE_VERSION = 3  # raise when a cached curve would come out differently


def argmax_rdp(
    orders: np.ndarray, *, sigma: float, sampling_probability: float, swap: bool = True
) -> np.ndarray:
    """RDP of argmax_j (n_j + Z_j) on a Poisson sample, float64 [n_orders].

    Z_j ~ N_Z(0, sigma^2); ties go to the lowest class. ``swap``: a record moves the votes by
    e_a - e_b or e_a (k nearest of a sample); False: by e_a alone (radius votes). The smaller of the
    contest with three outcomes (teacher/accounting/curves/contest.py: proof, time) and the Gaussian
    bound.

    Without a swap, fix the noise of every class but a: what is left is P(Z >= z) against
    P(Z >= z - 1) for an integer z, the screening bit with any threshold. For |z| > L, L the
    contest's reach, both outcomes but one lie outside the event |Z| <= L, whose moment is below the
    contest's tail exp(-60). About 0.64 of the Gaussian bound either way.
    Kept on disk once computed (curves/cache.py); the first time takes seconds at sigma = 25.
    """
    check_arguments(orders, sigma=sigma, sampling_probability=sampling_probability, swap=swap)
    sigma, gamma = float(sigma), float(sampling_probability)
    sensitivity = _l2_sensitivity({"swap": swap})
    gaussian = gaussian_rdp(
        orders, sigma=sigma, sensitivity=sensitivity, sampling_probability=gamma
    )
    if swap:
        key = {
            "curve": "argmax",
            "version": CACHE_VERSION,
            "sigma": sigma.hex(),
            "gamma": gamma.hex(),
        }
        excess = cached_each(
            [{**key, "order": float(order).hex()} for order in orders],
            lambda new: argmax_log_excess(orders[new], sigma=sigma, gamma=gamma),
        )
    elif sigma <= MAX_ENUMERABLE_SIGMA:
        reaches = np.array([reach(float(order), sigma, gamma) for order in orders])
        excess = np.empty(len(orders))
        for longest, chosen in groups(reaches):
            gaps = np.arange(-longest, longest + 1)
            excess[chosen] = threshold_log_excess(orders[chosen], gaps, sigma, gamma)
        excess = np.logaddexp(excess, -55.0)
    else:
        return gaussian
    return np.minimum(rdp_from_log_excess(orders, excess), gaussian)


def _l2_sensitivity(parameters: Parameters) -> float:
    """Of the votes, which a record moves by e_a - e_b with a swap, by e_a without."""
    return math.sqrt(2 if parameters.get("swap", True) else 1)


ARGMAX = Curve("argmax", argmax_rdp, l2_sensitivity=_l2_sensitivity)
