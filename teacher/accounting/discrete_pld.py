"""Privacy loss distributions of the discrete laws: a certificate for a fixed list of releases.

**Dominating pairs.** A noisy count or argmax, with the sample of the other records fixed, is a
post-processing of N_Z(0, sigma^2)^m against N_Z(D, sigma^2)^m for an integer shift D with
|D|^2 <= m, m in {1, 2, 3}: then D is a sign vector, and fewer entries are a marginal of more.
w = sum of the signed entries is sufficient, its likelihood ratio is
l(w) = exp((2 w - m) / (2 sigma^2)). Hockey-stick divergences are jointly convex, so the sampled
release is dominated by

    ((1 - gamma) Q + gamma Q',  Q)  where the first data set has the record,

and by the reverse where the second has it. Each release post-processes its pair, so any
interleaving of the list post-processes the product (adaptive composition); the two directions are
composed apart and the larger epsilon counts. A pure epsilon-DP release is dominated by randomised
response. For m >= 4 several shapes of D share a norm, none dominating: such a release has no pair
here.

**Discretisation goes up.** An atom of loss s between grid points e <= s <= e + h is split over both
so that its mass under both laws is kept; merging the two parts gives the atom back, so the pair is
a post-processing of the split one. Mass beyond 12 sigma is counted as infinite loss. The rounding
of the convolutions (FFT) remains; `ALLOWANCE` covers it and is subtracted from delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .curves import l2_sensitivity, pure_epsilon
from .curves.discrete_gaussian import log_mixed_ratio, log_pmf
from .plan import Release

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf

# Of delta. Convolutions of a few million float64 terms err by about 1e-16 a release, 2e-11 for
# 20,000 of them.
ALLOWANCE = 1e-9
MAX_RELEASES = 200_000  # in the list, so that the allowance stays above the error
_GRID_POINTS = 20.0  # in a standard deviation of the narrowest release's loss
_MAX_SIGMA = 2000.0  # the law of w is a direct convolution
_LONGEST_LIST = 1000  # of atoms, for which dp-accounting has a sparse form
_MAX_GRID_POINTS = 2_000_000.0  # that the composed loss may need

# losses and masses under the first law, both float64 [n_atoms], and the mass of infinite loss
Atoms = tuple[np.ndarray, np.ndarray, float]


def discrete_pld_epsilon(releases: Sequence[Release], delta: float) -> float | None:
    """Certified epsilon at ``delta`` of the list with its caps; None without dominating pairs.

    None where a release has no such pair, for delta <= 1e-8 and for more than 200,000 releases,
    where rounding would not be small. Takes seconds.
    """
    charged = [r for r in releases if r.cap > 0 and r.parameters.get("epsilon") != 0]
    pairs = [pair for pair in map(_pair, charged) if pair is not None]
    too_many = sum(release.cap for release in charged) > MAX_RELEASES
    if delta <= 10 * ALLOWANCE or too_many or not charged or len(pairs) < len(charged):
        return None
    caps = [release.cap for release in charged]
    return composed_epsilon(pairs, caps, loss_grid(pairs, caps), delta)


def composed_epsilon(
    pairs: Sequence[tuple[Atoms, Atoms]],
    caps: Sequence[int],
    grid: float,
    delta: float,
    share: float = 1e-9,
) -> float:
    """Epsilon at ``delta`` of ``caps`` copies of each pair, the larger of both directions.

    ``grid``: step of the loss. ``share``: of an atom, moved up to cover the rounding of its loss,
    which must be below ``share * grid``. ``ALLOWANCE`` of delta is kept for the convolutions.
    """
    epsilons = []
    for direction in (0, 1):
        total: PLDPmf | None = None
        for pair, cap in zip(pairs, caps, strict=True):
            part = _split(pair[direction], grid, share).self_compose(cap)
            # Randomised response alone stays sparse, and a sparse one composes only with its like.
            total = part if total is None else total.to_dense_pmf().compose(part.to_dense_pmf())
        assert total is not None
        epsilons.append(float(total.get_epsilon_for_delta(delta - ALLOWANCE)))
    return max(epsilons)


def _pair(release: Release) -> tuple[Atoms, Atoms] | None:
    """The dominating pair of one release as losses in both directions; None where none is known."""
    epsilon = pure_epsilon(release)
    if epsilon is not None:
        return (randomised_response(float(epsilon)),) * 2
    p, m = release.parameters, (l2_sensitivity(release) or 0.0) ** 2
    if round(m) not in (1, 2, 3) or abs(m - round(m)) > 1e-9 or p["sigma"] > _MAX_SIGMA:
        return None
    return _sampled_gaussian(float(p["sigma"]), round(m), float(p["sampling_probability"]))


def randomised_response(epsilon: float) -> Atoms:
    """The pair that dominates every epsilon-DP release, the same in both directions."""
    likely = 1 / (1 + math.exp(-epsilon))
    return np.array([epsilon, -epsilon]), np.array([likely, 1 - likely]), 0.0


def _sampled_gaussian(sigma: float, m: int, gamma: float) -> tuple[Atoms, Atoms]:
    """Losses of the record's presence against its absence, and of the reverse."""
    reach = math.ceil(12 * sigma) + 12
    single = np.exp(log_pmf(np.arange(-reach, reach + 1), sigma))
    law = single
    for _ in range(m - 1):
        law = np.convolve(law, single)
    w = np.arange(-m * reach, m * reach + 1)
    log_r = log_mixed_ratio((2 * w - m) / (2 * sigma**2), gamma)
    law, log_r = law[law > 0], log_r[law > 0]
    tail = 8 * m * math.exp(-(11**2) / 2)  # 12 sigma less the shift, under either law
    return (log_r, law * np.exp(log_r), tail), (-log_r, law, tail)


def loss_grid(
    pairs: Sequence[tuple[Atoms, Atoms]], caps: Sequence[int], points: float = _MAX_GRID_POINTS
) -> float:
    """Grid step of the loss: a fraction of the smallest standard deviation of a release's loss.

    Not below what the widest total allows, where about ``points`` are to hold it.
    """
    deviations = [math.sqrt(float((mass * loss**2).sum())) for (loss, mass, _), _ in pairs]
    spans = [
        min(cap * np.ptp(loss), 40 * math.sqrt(cap) * d + np.ptp(loss))
        for ((loss, _, _), _), d, cap in zip(pairs, deviations, caps, strict=True)
    ]
    return max(min(deviations) / _GRID_POINTS, float(sum(spans)) / points)


def _split(atoms: Atoms, grid: float, share: float) -> PLDPmf:
    """The loss on multiples of ``grid``.

    Each atom split over its two neighbours, both laws' masses kept.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf  # takes seconds

    loss, mass, infinite = atoms
    below = np.floor(loss / grid)
    # Share of the upper point: it keeps the second law's mass, sum of mass exp(-loss). Rounded up:
    # more loss, not less.
    upper = np.clip(np.expm1(below * grid - loss) / math.expm1(-grid) + share, 0.0, 1.0)
    low = int(below.min())
    index = below.astype(np.int64) - low
    dense = np.bincount(index, mass * (1 - upper), minlength=int(index.max()) + 2)
    dense += np.bincount(index + 1, mass * upper, minlength=len(dense))
    present = np.flatnonzero(dense > 0)
    if len(present) > _LONGEST_LIST:  # a dictionary of millions would take seconds
        low, dense = low + int(present[0]), dense[present[0] : present[-1] + 1]
        return DensePLDPmf(grid, low, dense, infinite, True)
    return create_pmf({low + int(i): float(dense[i]) for i in present}, grid, infinite, True)
