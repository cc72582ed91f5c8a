"""An independent oracle: OpenDP's samplers (Canonne, Kamath, Steinke 2020, Algorithms 2 and 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import opendp.prelude as dp

dp.enable_features("contrib")


def gaussian(sigma: float, count: int) -> np.ndarray:
    """N_Z(0, sigma^2), int64 [count]."""
    return np.array(measurement(sigma)([0] * count), dtype=np.int64)


def laplace(scale: float, count: int) -> np.ndarray:
    """Probability proportional to exp(-|z| / scale), int64 [count]."""
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    return np.array(dp.m.make_laplace(*space, scale=scale)([0] * count), dtype=np.int64)


def measurement(sigma: float) -> Any:
    """OpenDP's Gaussian measurement, with its own privacy map."""
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=sigma)
