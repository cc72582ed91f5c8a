"""Gaussian pairs for discrete Gaussian noise: docs/privacy.md, section 19 (proofs, constants).

N_Z(mu, sigma^2) with an integer mu is, but for a relative error that is chosen, what rounding at
scale t makes of a continuous N(mu, sigma^2 - t^2). So each release with noise N_Z(0, sigma^2) and
L2 sensitivity D post-processes the continuous pair N(0, 1), N(m, 1) with m = D / sqrt(sigma^2 -
t^2), whatever the number of entries and the shape of the shift, also after Poisson sampling.
Unsampled pairs compose to one of m^2 = sum of cap m^2, with a closed formula; sampled ones by their
privacy loss distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .conversion import gaussian_epsilon
from .curves import l2_sensitivity, pure_epsilon
from .curves.discrete_gaussian import log_mixed_ratio
from .discrete_pld import (
    ALLOWANCE,
    MAX_RELEASES,
    Atoms,
    composed_epsilon,
    loss_grid,
    randomised_response,
)
from .plan import Release

# By which the roundings of all ``cap`` copies of a release may change a log likelihood together.
LOG_ERROR = 1e-12
_LARGEST_MU = 25.0  # in a privacy loss distribution: the width of cells is made for it
_ROUND_UP = 1 + 1e-12  # of mu: covers the rounding of sensitivities and of sigma^2 - t^2
_REACH = 12.0  # standard deviations; mass beyond counts as infinite loss
_CELLS = 4000
_GRID_POINTS = 400_000.0  # at most, for the composed loss
# Of an atom, moved up a step of the grid: covers losses off by 1e-7 of a step.
_SHARE = 1e-7


@dataclass(frozen=True)
class GaussianPair:
    """N(0, 1) against (1 - gamma) N(0, 1) + gamma N(mu, 1), ``cap`` times."""

    mu: float
    gamma: float
    cap: int


def gaussian_pair(release: Release) -> GaussianPair | None:
    """The continuous pair that one release post-processes; None where it has none.

    That is where no Gaussian noise is drawn, or half of its variance would be lost.
    """
    sensitivity = l2_sensitivity(release)
    if sensitivity is None:
        return None
    sigma, gamma = (float(release.parameters[name]) for name in ("sigma", "sampling_probability"))
    lost = rounding_variance(release.cap * max(1.0, sensitivity**2))
    if sigma**2 < 2 * lost:
        return None
    return GaussianPair(_ROUND_UP * sensitivity / math.sqrt(sigma**2 - lost), gamma, release.cap)


def rounding_variance(entries: float) -> float:
    """t^2 at which so many rounded entries together err by a factor within e^(+-LOG_ERROR).

    ``entries``: at least 1. An integer shift of length D moves at most D^2 of them. One errs by at
    most 4.1 exp(-2 pi^2 t^2).
    """
    return math.log(4.1 * entries / LOG_ERROR) / (2 * math.pi**2) * _ROUND_UP


def smoothed_epsilon(releases: Sequence[Release], delta: float) -> float | None:
    """Certified epsilon at ``delta`` of the list with its caps, by continuous Gaussian pairs.

    Milliseconds where nothing is sampled or pure, else about a second. None where a release is
    neither pure nor Gaussian noise; and, where a privacy loss distribution is needed, for
    delta <= 1e-8, more than 200,000 releases and mu above 25, where rounding would not be small.
    """
    charged = [r for r in releases if r.cap > 0 and r.parameters.get("epsilon") != 0]
    pure = [(cost, r.cap) for r in charged if (cost := pure_epsilon(r)) is not None]
    pairs = [pair for pair in map(gaussian_pair, charged) if pair is not None]
    if not charged or len(pure) + len(pairs) < len(charged):
        return None
    error = LOG_ERROR * len(pairs)
    unsampled = [pair for pair in pairs if pair.gamma == 1.0]
    sampled = [pair for pair in pairs if pair.gamma < 1.0]
    whole = composed_mu(unsampled)
    if not sampled and not pure:
        return gaussian_epsilon(whole, delta * math.exp(-error)) + 2 * error
    if delta <= 10 * ALLOWANCE or sum(release.cap for release in charged) > MAX_RELEASES:
        return None
    if unsampled:
        sampled.append(GaussianPair(whole, 1.0, 1))
    if any(pair.mu > _LARGEST_MU for pair in sampled):
        return None
    return _by_distribution(sampled, pure, delta * math.exp(-error)) + 2 * error


def composed_mu(pairs: Sequence[GaussianPair]) -> float:
    """mu of the one Gaussian pair that unsampled pairs compose to: mu^2 = sum of cap mu_i^2."""
    return math.sqrt(sum(pair.cap * pair.mu**2 for pair in pairs))


def _by_distribution(
    pairs: Sequence[GaussianPair], pure: Sequence[tuple[Fraction, int]], delta: float
) -> float:
    """Epsilon of the pairs, and of (epsilon, cap) of pure releases, by their loss distribution."""
    caps = [*(pair.cap for pair in pairs), *(cap for _, cap in pure)]
    responses = [(randomised_response(float(cost)),) * 2 for cost, _ in pure]
    grid = loss_grid([*(_cells(pair, None) for pair in pairs), *responses], caps, _GRID_POINTS)
    parts = [*(_cells(pair, grid) for pair in pairs), *responses]
    return composed_epsilon(parts, caps, grid, delta, _SHARE)


def _cells(pair: GaussianPair, grid: float | None) -> tuple[Atoms, Atoms]:
    """The pair's loss in both directions, one atom for each cell of the real line.

    Where a cell's losses lie between two neighbours of ``grid``, the split of its atom, which has
    the cell's mass under both laws, dominates the cell. None: cells of one width, to choose a grid.
    Rounding: a and b/a - 1 (a mean of expm1 of the ratio's logarithm) are Gauss-Legendre sums of
    five nodes on cells of at most 1/80, so no tails are subtracted. A loss is right to 10^-14 of
    the pair's largest, the grid's step is at least 1/400,000 of that, and _SHARE of each atom is
    moved up a step.
    """
    mu, gamma = pair.mu, pair.gamma
    edges = np.linspace(-_REACH, _REACH + mu, _CELLS + 1)
    if grid is not None:
        ends = log_mixed_ratio(mu * (edges[[0, -1]] - mu / 2), gamma)
        losses = grid * np.arange(math.floor(ends[0] / grid) + 1, math.ceil(ends[1] / grid))
        inner = np.clip(_position(losses, mu, gamma), edges[0], edges[-1])
        edges = np.unique(np.concatenate([edges, inner]))
    nodes, weights = np.polynomial.legendre.leggauss(5)
    half = np.diff(edges)[:, None] / 2
    x = (edges[:-1, None] + half) + half * nodes
    density = half * weights * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    absent = density.sum(axis=1)
    log_ratio = mu * (x - mu / 2)
    less_1 = (density * np.expm1(log_ratio)).sum(axis=1) / absent
    ratio = (density * np.exp(log_ratio)).sum(axis=1) / absent
    loss = np.where(
        gamma * less_1 > -0.5,
        np.log1p(np.maximum(gamma * less_1, -0.5)),
        np.log((1 - gamma) + gamma * ratio),
    )
    tail = math.erfc(_REACH / math.sqrt(2))
    return (loss, absent * np.exp(loss), tail), (-loss, absent, tail)


def _position(losses: np.ndarray, mu: float, gamma: float) -> np.ndarray:
    """Where the loss of the pair takes each of ``losses``, all above log(1 - gamma)."""
    near = np.log1p(np.expm1(np.maximum(losses, -0.5)) / gamma)
    with np.errstate(divide="ignore"):
        far = np.log(-np.expm1(np.log1p(-gamma) - losses)) + losses - math.log(gamma)
    return np.where(losses > -0.5, near, far) / mu + mu / 2
