"""Estimates of prices whose exact curves take seconds. No guarantee rests on them.

They steer searches, and tell at which orders an exact curve is worth its time: a certificate is a
minimum over orders, each of which is a proof, so that any of them may be left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .conversion import epsilons_from_rdp
from .curves import ORDERS, release_rdp
from .plan import Release

SLOWEST_SIGMA = 400.0  # beyond it the argmax curve is the Gaussian bound
# By which the estimate at an order may exceed the smallest one: where noise decides it is within 1%
# of the exact epsilon.
NEAR = 1.012


def is_slow(release: Release) -> bool:
    """Whether the release's exact curve takes seconds."""
    return release.curve == "argmax" and release.parameters["sigma"] <= SLOWEST_SIGMA


def quick(release: Release) -> Release:
    """The release, or one of nearly the same price.

    A contest of two classes is nearly the bit of one count with noise of sigma / sqrt(2), within a
    percent at the orders that decide; an argmax without a swap is the bit of one count.
    """
    if not is_slow(release):
        return release
    swap = release.parameters.get("swap", True)
    sigma = float(release.parameters["sigma"]) / math.sqrt(2 if swap else 1)
    votes = math.ceil(6 * sigma) + 1  # where a threshold costs most lies within
    bit = {"max_votes": 2 * votes, "threshold": votes, "sigma": sigma}
    gamma = release.parameters["sampling_probability"]
    return replace(release, curve="screening", parameters={**bit, "sampling_probability": gamma})


def estimates(releases: Sequence[Release], counts: Sequence[int], delta: float) -> np.ndarray:
    """Nearly the epsilon of ``counts`` releases of each kind by each order: float64 [n_orders]."""
    total = np.zeros_like(ORDERS)
    for release, count in zip(releases, counts, strict=True):
        if count:
            total = total + count * release_rdp(quick(release), ORDERS)
    return epsilons_from_rdp(ORDERS, total, delta)
