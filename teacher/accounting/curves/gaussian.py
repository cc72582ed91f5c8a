"""Integers with discrete Gaussian noise, and zCDP, which budgets of single records are spent under.

The Gaussian curve also bounds whatever is computed from the noisy integers.
"""

from __future__ import annotations

import numpy as np

from .base import ROUND_UP, Curve, check_arguments


def gaussian_rdp(
    orders: np.ndarray, *, sigma: float, sensitivity: float, sampling_probability: float
) -> np.ndarray:
    """RDP of integers plus N_Z(0, sigma^2) on every entry, Poisson-subsampled; float64 [n_orders].

    ``sensitivity``: L2, of the integer-valued query. Unsampled:
    alpha sensitivity^2 / (2 sigma^2) at every order (Canonne-Kamath-Steinke 2020, Proposition 5).
    Subsampled, at integer alpha, E[((1 - gamma) + gamma l)^alpha] is a sum of
    E[l^j] = exp(j (j - 1) sensitivity^2 / (2 sigma^2)), equal for discrete and continuous noise;
    the other direction is no larger by the reflection z -> shift - z (Mironov-Talwar-Zhang 2019,
    Theorem 5). Between integers (alpha - 1) D_alpha is convex, so it is interpolated linearly.
    """
    check_arguments(
        orders, sigma=sigma, sensitivity=sensitivity, sampling_probability=sampling_probability
    )
    # Never an int: inside PoissonSampled(Composed(...)) dp-accounting takes it for the total sigma.
    multiplier, gamma = float(sigma) / float(sensitivity), float(sampling_probability)
    if gamma == 1.0:
        return orders / (2 * multiplier**2) * ROUND_UP
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent  # takes seconds
    from dp_accounting.rdp import RdpAccountant

    below, above = np.floor(orders), np.ceil(orders)
    integers = np.unique(np.concatenate([below, above]))
    integers = integers[integers > 1]
    accountant = RdpAccountant(orders=[int(order) for order in integers])
    accountant.compose(PoissonSampledDpEvent(gamma, GaussianDpEvent(multiplier)))
    # The library's sums err by at most 1e-14 per order (against 40 digits), negligible even times
    # a million.
    logs = np.asarray(accountant.rdp) * (integers - 1) * (1 + 1e-12) + 1e-14 * integers
    log_moments = {1.0: 0.0} | dict(zip(integers, logs, strict=True))
    low, high = (np.array([log_moments[order] for order in side]) for side in (below, above))
    return (low + (orders - below) * (high - low)) / (orders - 1)


def zcdp_rdp(orders: np.ndarray, *, rho: float) -> np.ndarray:
    """RDP of a rho-zCDP release: alpha rho; float64 [n_orders]."""
    check_arguments(orders, rho=rho)
    return orders * float(rho) * ROUND_UP


GAUSSIAN = Curve("gaussian", gaussian_rdp, l2_sensitivity=lambda p: float(p["sensitivity"]))
ZCDP = Curve("zcdp", zcdp_rdp)
