"""Budgets of single records, spent in payments, as one release."""

from __future__ import annotations

import numpy as np

from .base import ROUND_UP, Curve, check_arguments


def zcdp_rdp(orders: np.ndarray, *, rho: float) -> np.ndarray:
    """RDP of a rho-zCDP release: alpha rho; float64 [n_orders]."""
    check_arguments(orders, rho=rho)
    return orders * float(rho) * ROUND_UP


ZCDP = Curve("zcdp", zcdp_rdp)
