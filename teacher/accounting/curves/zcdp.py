"""Budgets of single records, spent in payments, as one release."""

from __future__ import annotations

import math

import numpy as np

from .base import ROUND_UP, Curve, Parameters, check_arguments


def zcdp_rdp(orders: np.ndarray, *, rho: float) -> np.ndarray:
    """RDP of a rho-zCDP release: alpha rho; float64 [n_orders]."""
    check_arguments(orders, rho=rho)
    return orders * float(rho) * ROUND_UP


# t^2 of the rounding of all payments of a budget: 4e18 of them at most, in 1e9 pooled copies.
# docs/privacy.md, section 20.
_LOST = 4.7


def gdp_rdp(orders: np.ndarray, *, rho: float, sigma: float) -> np.ndarray:
    """RDP of the same budget, whose payments are for noise of at least ``sigma``: alpha rho."""
    check_arguments(orders, rho=rho, sigma=sigma)
    return zcdp_rdp(orders, rho=rho)


def gdp_mu(parameters: Parameters) -> float | None:
    """mu of the Gaussian pair that the whole budget's answers post-process.

    None where rounding would cost half of the variance of the noise.
    """
    variance = float(parameters["sigma"]) ** 2
    if variance < 2 * _LOST:
        return None
    return math.sqrt(2 * parameters["rho"] * variance / (variance - _LOST))


def renyi_rdp(orders: np.ndarray, *, rho: float, order: int) -> np.ndarray:
    """RDP of a budget that is spent at one order: order rho up to it, nothing above it."""
    check_arguments(orders, rho=rho, order=order)
    return np.where(orders <= order, zcdp_rdp(np.full(len(orders), float(order)), rho=rho), np.inf)


ZCDP = Curve("zcdp", zcdp_rdp)
GDP = Curve("gdp", gdp_rdp, mu=gdp_mu)
RENYI = Curve("renyi", renyi_rdp)
