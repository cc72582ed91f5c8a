"""Privacy loss distributions: the certificate `pld` of a fixed list (docs/privacy.md, section 19).

The two directions of the pairs are composed apart and the larger epsilon counts. A pure epsilon-DP
release has randomised response as its pair, one with noise N_Z(0, sigma^2) and an integer shift D
of L2 norm at most Delta the better one of two:

- *continuous*: N(0, 1) against N(m, 1), m = Delta / sqrt(sigma^2 - t^2), t the scale of a rounding
  whose relative error is chosen;
- *discrete*, where t^2 is no small part of sigma^2: N_Z(0, sigma^2)^m against its shift by D with
  |D|^2 <= m, m in {1, 2, 3}: then D is a sign vector, and fewer entries are a marginal of more.
  w = sum of the signed entries is sufficient, l(w) = exp((2 w - m) / (2 sigma^2)) its likelihood
  ratio. The sampled release is dominated by ((1 - gamma) Q + gamma Q', Q) where the first data set
  has the record, by the reverse where the second has it (joint convexity).

**Discretisation goes up.** An atom of loss s between grid points e <= s <= e + h is split over both
so that its mass under both laws is kept; merging the two parts gives the atom back, so the pair is
a post-processing of the split one. Mass beyond 12 sigma is counted as infinite loss. The rounding
of the convolutions (FFT) remains; `ALLOWANCE` covers it and is subtracted from delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .conversion import gaussian_epsilon
from .curves import l2_sensitivity, pure_epsilon
from .discrete_gaussian import log_mixed_ratio, log_pmf
from .plan import Release

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf

# By which the roundings of all ``cap`` copies of a release may change a log likelihood together.
LOG_ERROR = 1e-12
# Of delta. Convolutions of a few million float64 terms err by about 1e-16 a release, 2e-11 for
# 20,000 of them.
ALLOWANCE = 1e-9
MAX_RELEASES = 200_000  # in the list, so that the allowance stays above the error
_LOST = 0.002  # share of a variance from which a discrete pair is worth its time
_LARGEST_MU = 25.0  # the width of cells is made for it
_ROUND_UP = 1 + 1e-12  # of mu: covers the rounding of sensitivities and of sigma^2 - t^2
_REACH = 12.0  # standard deviations; mass beyond counts as infinite loss
_CELLS = 4000
_GRID_POINTS = 20.0  # in a standard deviation of the narrowest release's loss
_MOST_GRID_POINTS = 400_000.0  # for the composed loss
_SHARE = 1e-7  # of an atom, moved up a step of the grid: covers losses off by 1e-7 of a step
_LONGEST_LIST = 1000  # of atoms, for which dp-accounting has a sparse form

# losses and masses under the first law, both float64 [n_atoms], and the mass of infinite loss
Atoms = tuple[np.ndarray, np.ndarray, float]
# both directions for a step of the grid; None: any atoms, to choose a step
Losses = Callable[[float | None], tuple[Atoms, Atoms]]


@dataclass(frozen=True)
class GaussianPair:
    """N(0, 1) against (1 - gamma) N(0, 1) + gamma N(mu, 1), ``cap`` times."""

    mu: float
    gamma: float
    cap: int


def pld_epsilon(releases: Sequence[Release], delta: float) -> float | None:
    """Certified epsilon at ``delta`` of the list with its caps.

    The closed formula where nothing is sampled or pure and the noise is not small. None where a
    release is neither pure nor Gaussian noise; and, where losses are convolved, for delta <= 1e-8,
    more than 200,000 releases and mu above 25, where rounding would not be small.
    """
    charged = _charged(releases)
    closed = closed_epsilon(charged, delta)
    if closed is not None and not any(map(_discrete, charged)):
        return closed
    if delta <= 10 * ALLOWANCE or (convolved := _composed(charged)) is None:
        return closed
    totals, error = convolved
    left = delta * math.exp(-error) - ALLOWANCE
    composed = max((float(each.get_epsilon_for_delta(left)) for each in totals), default=math.inf)
    composed += 2 * error
    return composed if closed is None else min(closed, composed)


def pld_deltas(releases: Sequence[Release], epsilons: np.ndarray) -> np.ndarray | None:
    """Certified deltas at all ``epsilons`` of at least 0, float64 [2, n_epsilons].

    Row 0: P(E) <= e^epsilon Q(E) + delta for every set E of transcripts, P the law with the record
    and Q the law without it. Row 1: the reverse. None as ``pld_epsilon``, where losses are
    convolved.
    """
    if (convolved := _composed(_charged(releases))) is None:
        return None
    totals, error = convolved
    deltas = [each.get_delta_for_epsilon(epsilons - 2 * error) for each in totals]
    certain = np.minimum(math.exp(error) * (np.array(deltas) + ALLOWANCE), 1.0)
    return certain if totals else np.ones((2, len(epsilons)))


def _charged(releases: Sequence[Release]) -> list[Release]:
    """The releases that cost something."""
    return [r for r in releases if r.cap > 0 and r.parameters.get("epsilon") != 0]


def closed_epsilon(releases: Sequence[Release], delta: float) -> float | None:
    """The epsilon of the closed formula; None if a release has no unsampled Gaussian pair."""
    if (pair := closed_pair(releases)) is None:
        return None
    mu, error = pair
    return gaussian_epsilon(mu, delta * math.exp(-error)) + 2 * error


def closed_pair(releases: Sequence[Release]) -> tuple[float, float] | None:
    """(mu of the one Gaussian pair that the list composes to, error of the log likelihood).

    None if a release has no unsampled Gaussian pair.
    """
    pairs = [pair for pair in map(gaussian_pair, releases) if pair is not None and pair.gamma == 1]
    if not pairs or len(pairs) < len(releases):
        return None
    return composed_mu(pairs), LOG_ERROR * len(pairs)


def gaussian_pair(release: Release) -> GaussianPair | None:
    """The continuous pair that one release post-processes; None where it has none.

    That is where no Gaussian noise is drawn, or half of its variance would be lost.
    """
    sensitivity = l2_sensitivity(release)
    if sensitivity is None:
        return None
    sigma, gamma = (float(release.parameters[name]) for name in ("sigma", "sample_rate"))
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


def composed_mu(pairs: Sequence[GaussianPair]) -> float:
    """mu of the one Gaussian pair that unsampled pairs compose to: mu^2 = sum of cap mu_i^2."""
    return math.sqrt(sum(pair.cap * pair.mu**2 for pair in pairs))


def _discrete(release: Release) -> int:
    """m of the release's discrete pair; 0 where it has none, or a continuous one is as good."""
    square = (l2_sensitivity(release) or 0.0) ** 2
    m = round(square)
    if m not in (1, 2, 3) or abs(square - m) > 1e-9:
        return 0
    lost = rounding_variance(release.cap * max(1.0, square))
    return m if lost > _LOST * float(release.parameters["sigma"]) ** 2 else 0


def _laws(releases: Sequence[Release]) -> tuple[float, list[tuple[Losses, int]] | None]:
    """(error of the log likelihood, a pair's losses and its cap for each part of the list).

    Unsampled continuous pairs are one part. None in place of a list that has no such pairs.
    """
    laws, continuous = list[tuple[Losses, int]](), list[GaussianPair]()
    for release in releases:
        pure, m, pair = pure_epsilon(release), _discrete(release), gaussian_pair(release)
        if pure is not None:
            laws.append((_fixed((_randomised_response(float(pure)),) * 2), release.cap))
        elif m:
            sigma, gamma = (release.parameters[n] for n in ("sigma", "sample_rate"))
            laws.append((_fixed(_sampled_discrete(float(sigma), m, float(gamma))), release.cap))
        elif pair is not None:
            continuous.append(pair)
        else:
            return 0.0, None
    error = LOG_ERROR * len(continuous)
    unsampled = [pair for pair in continuous if pair.gamma == 1.0]
    parts = [pair for pair in continuous if pair.gamma < 1.0]
    parts += [GaussianPair(composed_mu(unsampled), 1.0, 1)] if unsampled else []
    if any(pair.mu > _LARGEST_MU for pair in parts):
        return 0.0, None
    return error, laws + [(_cells(pair), pair.cap) for pair in parts]


def _fixed(atoms: tuple[Atoms, Atoms]) -> Losses:
    return lambda _: atoms


def _randomised_response(epsilon: float) -> Atoms:
    """The pair that dominates every epsilon-DP release, the same in both directions."""
    likely = 1 / (1 + math.exp(-epsilon))
    return np.array([epsilon, -epsilon]), np.array([likely, 1 - likely]), 0.0


def _sampled_discrete(sigma: float, m: int, gamma: float) -> tuple[Atoms, Atoms]:
    """Losses of the record's presence against its absence, and of the reverse."""
    reach = math.ceil(_REACH * sigma) + 12
    single = np.exp(log_pmf(np.arange(-reach, reach + 1), sigma))
    law = single
    for _ in range(m - 1):
        law = np.convolve(law, single)
    w = np.arange(-m * reach, m * reach + 1)
    log_r = log_mixed_ratio((2 * w - m) / (2 * sigma**2), gamma)
    law, log_r = law[law > 0], log_r[law > 0]
    tail = 8 * m * math.exp(-(11**2) / 2)  # 12 sigma less the shift, under either law
    return (log_r, law * np.exp(log_r), tail), (-log_r, law, tail)


def _cells(pair: GaussianPair) -> Losses:
    """The continuous pair's loss, one atom for each cell of the real line.

    Where a cell's losses lie between two neighbours of the grid, the split of its atom, which has
    the cell's mass under both laws, dominates the cell; so cells end where the loss is on the grid.
    Without a grid they have one width. Rounding: a and b/a - 1 (a mean of expm1 of the ratio's
    logarithm) are Gauss-Legendre sums of five nodes on cells of at most 1/80, so no tails are
    subtracted. A loss is right to 10^-14 of the pair's largest, the grid's step is at least
    1/400,000 of that, and _SHARE of each atom is moved up a step.
    """
    mu, gamma = pair.mu, pair.gamma
    nodes, weights = np.polynomial.legendre.leggauss(5)

    def losses(grid: float | None) -> tuple[Atoms, Atoms]:
        edges = np.linspace(-_REACH, _REACH + mu, _CELLS + 1)
        if grid is not None:
            ends = log_mixed_ratio(mu * (edges[[0, -1]] - mu / 2), gamma)
            at = grid * np.arange(math.floor(ends[0] / grid) + 1, math.ceil(ends[1] / grid))
            edges = np.append(edges, np.clip(_position(at, mu, gamma), edges[0], edges[-1]))
            edges = np.unique(edges)
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

    return losses


def _position(losses: np.ndarray, mu: float, gamma: float) -> np.ndarray:
    """Places at which the loss of the pair takes ``losses``, all above log(1 - gamma)."""
    near = np.log1p(np.expm1(np.maximum(losses, -0.5)) / gamma)
    with np.errstate(divide="ignore"):
        far = np.log(-np.expm1(np.log1p(-gamma) - losses)) + losses - math.log(gamma)
    return np.where(losses > -0.5, near, far) / mu + mu / 2


def _composed(releases: Sequence[Release]) -> tuple[list[PLDPmf], float] | None:
    """The losses of all copies, composed, in both directions, and the error of the log likelihood.

    No losses if all count as infinite; None for a list as ``pld_epsilon`` leaves out.
    """
    error, laws = _laws(releases)
    if laws is None or not 0 < sum(release.cap for release in releases) <= MAX_RELEASES:
        return None
    grid = _grid([(losses(None)[0], cap) for losses, cap in laws])
    if not grid:  # so little noise that every loss counts as infinite
        return [], error
    pairs = [(losses(grid), cap) for losses, cap in laws]
    totals: list[PLDPmf] = []
    for direction in (0, 1):
        total: PLDPmf | None = None
        for pair, cap in pairs:
            law = _split(pair[direction], grid)
            if not law.size:  # as above
                return [], error
            law = law.self_compose(cap)
            # Randomised response alone stays sparse, and a sparse one composes only with its like.
            total = law if total is None else total.to_dense_pmf().compose(law.to_dense_pmf())
        assert total is not None
        totals.append(total)
    return totals, error


def _grid(parts: Sequence[tuple[Atoms, int]]) -> float:
    """Grid step of the loss: a fraction of the smallest standard deviation of a release's loss.

    Not below what the widest total allows.
    """
    deviations = [math.sqrt(float((mass * loss**2).sum())) for (loss, mass, _), _ in parts]
    spans = [
        min(cap * np.ptp(loss), 40 * math.sqrt(cap) * d + np.ptp(loss))
        for ((loss, _, _), cap), d in zip(parts, deviations, strict=True)
    ]
    return max(min(deviations) / _GRID_POINTS, float(sum(spans)) / _MOST_GRID_POINTS)


def _split(atoms: Atoms, grid: float) -> PLDPmf:
    """The loss on multiples of ``grid``.

    Each atom split over its two neighbours, both laws' masses kept.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf  # takes seconds

    loss, mass, infinite = atoms
    below = np.floor(loss / grid)
    # Share of the upper point: it keeps the second law's mass, sum of mass exp(-loss). Rounded up:
    # more loss, not less.
    upper = np.clip(np.expm1(below * grid - loss) / math.expm1(-grid) + _SHARE, 0.0, 1.0)
    low = int(below.min())
    index = below.astype(np.int64) - low
    dense = np.bincount(index, mass * (1 - upper), minlength=int(index.max()) + 2)
    dense += np.bincount(index + 1, mass * upper, minlength=len(dense))
    present = np.flatnonzero(dense > 0)
    if len(present) > _LONGEST_LIST:  # a dictionary of millions would take seconds
        low, dense = low + int(present[0]), dense[present[0] : present[-1] + 1]
        return DensePLDPmf(grid, low, dense, infinite, True)
    return create_pmf({low + int(i): float(dense[i]) for i in present}, grid, infinite, True)
