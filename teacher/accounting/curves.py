"""Renyi DP of one release of each kind, under add/remove of one record.

``CURVES`` maps a name to its curve. Curves are pure functions of numpy arrays: an upper bound in
both directions, with sums exact over the discrete Gaussian N_Z and rounding upwards. The sampler
uses a rational number <= gamma as its sampling probability, and every divergence here is convex in
gamma and zero at gamma = 0, hence larger at gamma itself.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from inspect import Parameter, signature

import numpy as np

from ...wall.errors import InvalidInput
from .contest import argmax_log_excess, reach
from .discrete_gaussian import (
    log_at_least,
    log_excess,
    log_mixed_ratio,
    log_pmf,
    rdp_from_log_excess,
)
from .plan import Release

ORDERS = np.array(
    [
        *(1.05, 1.1, 1.2, 1.35, 1.5, 1.75),
        *np.arange(2, 3, 0.25),
        *np.arange(3, 7, 0.5),
        *range(7, 17),
        *range(18, 33, 2),
        *range(36, 65, 4),
        *(72, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 1024),
    ],
    dtype=np.float64,
)
ORDERS.flags.writeable = False
ROUND_UP = 1 + 1e-14  # covers the rounding of a closed formula, so that it stays an upper bound
MAX_CAP = 10**9
MAX_ENUMERABLE_SIGMA = 1e4  # above, the Gaussian bound replaces an exact sum
# Pieces of a range of log ratios; the bound is above the supremum by about 2 / _PIECES of it.
_PIECES = 1024

Parameters = Mapping[str, float | int | bool]

# Type and range of each parameter: squares stay inside float64, enumerations inside memory.
_RANGES: dict[str, tuple[type, float, float]] = {
    "max_votes": (int, 1, 10**6),
    "threshold": (int, -(10**6), 10**6),
    "sigma": (float, 1e-3, 1e9),
    "scale": (float, 1e-3, 1e9),
    "sensitivity": (float, 1e-3, 1e9),
    "sample_rate": (float, math.ulp(0.0), 1),  # above 0
    "epsilon": (float, 0, 1e6),
    "rho": (float, 0, 1e6),
    "swap": (bool, False, True),
}


def _check_number(name: str, value: object, kind: type, low: float, high: float) -> None:
    """Raise InvalidInput unless ``value`` is of the type (floats may be ints) and in range."""
    typed = isinstance(value, int | float if kind is float else kind)
    if not (typed and isinstance(value, bool) == (kind is bool) and low <= value <= high):  # type: ignore[operator]
        raise InvalidInput(name, f"{kind.__name__} from {low:g} to {high:g}", value)


def screening_rdp(
    orders: np.ndarray, *, max_votes: int, threshold: int, sigma: float, sample_rate: float
) -> np.ndarray:
    """RDP of the bit max_j n_j + Z > threshold on a fresh Poisson sample, float64 [n_orders].

    Z ~ N_Z(0, sigma^2); one record moves max_j n_j, which lies in 0..max_votes, by at most 1.
    CVPR20 Theorem 7 with the sampling done exactly (docs/privacy.md, section 4). The probabilities
    at t and t + 1 votes differ by P(Z = threshold - t), so ratios need no subtraction, at any depth
    of the tail.
    """
    if sigma > MAX_ENUMERABLE_SIGMA:
        return gaussian_rdp(orders, sigma=sigma, sensitivity=1.0, sample_rate=sample_rate)
    # threshold - t for t = max_votes - 1, ..., 0
    gaps = np.arange(threshold - max_votes + 1, threshold + 1)
    excess = _threshold_log_excess(orders, gaps, float(sigma), float(sample_rate))
    return rdp_from_log_excess(orders, excess)


def _threshold_log_excess(
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
    return _worst(orders, raised, lowered)


def _worst(orders: np.ndarray, *laws: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The largest log(moment - 1) of laws (log p, log r), in both directions: [n_orders]."""
    exponents = [(float(order), 1.0 - float(order)) for order in orders]
    return np.array(
        [max(log_excess(t, *law).max() for t in both for law in laws) for both in exponents]
    )


def argmax_rdp(
    orders: np.ndarray, *, sigma: float, sample_rate: float, swap: bool = True
) -> np.ndarray:
    """RDP of argmax_j (n_j + Z_j) on a Poisson sample, float64 [n_orders].

    Z_j ~ N_Z(0, sigma^2); ties go to the lowest class. ``swap``: a record moves the votes by
    e_a - e_b or e_a (k nearest of a sample); False: by e_a alone (radius votes). The smaller of the
    contest with three outcomes (contest.py: proof, time) and the Gaussian bound.

    Without a swap it is a screening bit with any threshold z; those with |z| > L, L the contest's
    reach, add exp(-55) (docs/privacy.md, section 5). About 0.64 of the Gaussian bound either way.
    """
    sigma, gamma = float(sigma), float(sample_rate)
    moved = _moved_by({"swap": swap})
    gaussian = gaussian_rdp(orders, sigma=sigma, sensitivity=moved, sample_rate=gamma)
    if swap:
        excess = np.array([argmax_log_excess(float(order), sigma, gamma) for order in orders])
    elif sigma <= MAX_ENUMERABLE_SIGMA:
        longest = max(reach(float(order), sigma, gamma) for order in orders)
        gaps = np.arange(-longest, longest + 1)
        excess = np.logaddexp(_threshold_log_excess(orders, gaps, sigma, gamma), -55.0)
    else:
        return gaussian
    return np.minimum(rdp_from_log_excess(orders, excess), gaussian)


def _moved_by(parameters: Parameters) -> float:
    """L2 norm of votes that a record moves by e_a - e_b with a swap, by e_a without."""
    return math.sqrt(2 if parameters.get("swap", True) else 1)


def gaussian_rdp(
    orders: np.ndarray, *, sigma: float, sensitivity: float, sample_rate: float
) -> np.ndarray:
    """RDP of integers plus N_Z(0, sigma^2) on every entry, Poisson-subsampled; float64 [n_orders].

    It also bounds whatever is computed from the noisy integers. ``sensitivity``: L2, of the
    integer-valued query. Unsampled: alpha sensitivity^2 / (2 sigma^2) at every order
    (Canonne-Kamath-Steinke 2020, Proposition 5). Subsampled: at integer alpha as of continuous
    noise, linear between (docs/privacy.md, section 6); the other direction is no larger by the
    reflection z -> shift - z (Mironov-Talwar-Zhang 2019, Theorem 5).
    """
    # Never an int: inside PoissonSampled(Composed(...)) dp-accounting takes it for the total sigma.
    multiplier, gamma = float(sigma) / float(sensitivity), float(sample_rate)
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


def pure_rdp(orders: np.ndarray, *, epsilon: float) -> np.ndarray:
    """RDP of an epsilon-DP release, float64 [n_orders].

    min(epsilon, alpha epsilon^2 / 2): Bun-Steinke 2016, Proposition 3.3.
    """
    return np.minimum(float(epsilon), orders * float(epsilon) ** 2 / 2) * ROUND_UP


def laplace_rdp(orders: np.ndarray, *, scale: float, sensitivity: float) -> np.ndarray:
    """RDP of discrete Laplace noise of ``scale`` at L1 ``sensitivity``, float64 [n_orders].

    Pure DP at their ratio. The curve of continuous Laplace noise is not valid here: on integers, a
    shift of 1 leaves losses of +-1/scale only (randomised response, the worst of all pure
    mechanisms), where continuous noise has smaller ones in between.
    """
    return pure_rdp(orders, epsilon=float(sensitivity) / float(scale))


def bounded_range_rdp(orders: np.ndarray, *, epsilon: float, sample_rate: float) -> np.ndarray:
    """RDP of a Poisson-sampled release of bounded range ``epsilon``, float64 [n_orders].

    A record moves the release's log probabilities within an interval of length ``epsilon``. The
    exponential mechanism with rate r and losses that move by at most 1 has epsilon = 2r. A moment
    is largest where P/Q takes the ends of an interval [e^(t - epsilon), e^t] alone
    (docs/privacy.md, section 17; Dong, Durfee, Rogers 2020; without sampling at most
    alpha epsilon^2 / 8, Cesar and Rogers 2021). The supremum over t is bounded piece by piece:
    [e^(t - epsilon), e^(t + h)] holds every interval of a piece of length h.
    """
    if epsilon == 0:
        return np.zeros_like(orders)
    step = float(epsilon) / _PIECES
    high = step * np.arange(1, _PIECES + 1)
    low = high - step - float(epsilon)
    # log probabilities of both ends, float64 [2, pieces], from (e^high - 1) : (1 - e^low)
    ends = np.stack([high + np.log(-np.expm1(-high)), np.log(-np.expm1(low))])
    log_ratio = log_mixed_ratio(np.stack([low, high]), float(sample_rate))
    excess = _worst(orders, (ends - np.logaddexp(*ends), log_ratio))
    return rdp_from_log_excess(orders, excess)


def zcdp_rdp(orders: np.ndarray, *, rho: float) -> np.ndarray:
    """RDP of a rho-zCDP release (budgets of single records): alpha rho; float64 [n_orders]."""
    return orders * float(rho) * ROUND_UP


@dataclass(frozen=True)
class Curve:
    """Renyi DP of ONE release of a kind, under add/remove of one record.

    ``rdp(orders, **parameters)``: an upper bound of D_alpha in both directions at every order,
    float64 [n_orders]. ``pure_epsilon``: exact cost under pure DP, from the release's parameters;
    None where the release is not pure. ``l2_sensitivity``: of the values with Gaussian noise that
    the release post-processes; None where it does not post-process any.
    """

    rdp: Callable[..., np.ndarray]
    pure_epsilon: Callable[[Parameters], Fraction] | None = None
    l2_sensitivity: Callable[[Parameters], float] | None = None

    def parameters(self) -> dict[str, bool]:
        """Names of the parameters of ``rdp``, in its order, and whether each is required."""
        arguments = signature(self.rdp).parameters.values()
        keywords = [a for a in arguments if a.kind is Parameter.KEYWORD_ONLY]
        return {a.name: a.default is Parameter.empty for a in keywords}


CURVES: dict[str, Curve] = {
    "screening": Curve(screening_rdp, l2_sensitivity=lambda _: 1.0),
    "argmax": Curve(argmax_rdp, l2_sensitivity=_moved_by),
    "gaussian": Curve(gaussian_rdp, l2_sensitivity=lambda p: float(p["sensitivity"])),
    "pure": Curve(pure_rdp, lambda p: Fraction(p["epsilon"])),
    "bounded_range": Curve(bounded_range_rdp),
    "laplace": Curve(laplace_rdp, lambda p: Fraction(p["sensitivity"]) / Fraction(p["scale"])),
    "zcdp": Curve(zcdp_rdp),
}


def release_rdp(release: Release, orders: np.ndarray) -> np.ndarray:
    """RDP of one release, whatever its cap: float64 [n_orders]. Raises as ``check_release``."""
    check_release(release)
    return CURVES[release.curve].rdp(orders, **release.parameters)


def pure_epsilon(release: Release) -> Fraction | None:
    """Exact cost of one release under pure DP; None where its curve is not of a pure mechanism."""
    cost = CURVES[release.curve].pure_epsilon
    return None if cost is None else cost(release.parameters)


def l2_sensitivity(release: Release) -> float | None:
    """L2 sensitivity of the values with Gaussian noise behind a release; None where there are none.

    A screening bit's plurality moves by 1, an argmax's votes by e_a - e_b or e_a.
    """
    sensitivity = CURVES[release.curve].l2_sensitivity
    return None if sensitivity is None else sensitivity(release.parameters)


def check_release(release: Release) -> None:
    """Raise InvalidInput unless the curve is known and its parameters and the cap are valid.

    Parameters: none missing, none unknown, each of the right type and in its range. A release may
    come from a ledger that somebody else wrote, so nothing about its fields is assumed.
    """
    name = release.name
    if not isinstance(release.curve, str) or release.curve not in CURVES:
        raise InvalidInput(f"{name}.curve", f"one of {sorted(CURVES)}", release.curve)
    _check_number(f"{name}.cap", release.cap, int, 0, MAX_CAP)
    parameters = CURVES[release.curve].parameters()
    required = {parameter for parameter, needed in parameters.items() if needed}
    given = set(release.parameters) if isinstance(release.parameters, dict) else set()
    if not required <= given <= set(parameters):
        raise InvalidInput(f"{name}.parameters", f"{list(parameters)}", sorted(map(str, given)))
    for parameter, value in release.parameters.items():
        _check_number(parameter, value, *_RANGES[parameter])
