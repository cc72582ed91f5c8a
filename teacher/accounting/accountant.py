"""What a plan costs: every valid certificate of its caps, and the smallest of them.

A plan is an explicit list of releases with caps, fixed before the first. Adaptive, interleaved or stopped early, what is
bought stays below the caps at every order at once, so the total of the list certifies it. The same numbers follow from an
exported ledger alone: nothing here reads a record, or needs more than curves and the plan.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.pld import PLDAccountant

from labelwall.teacher.accounting.conversion import epsilon_from_rdp, float_above, round_up
from labelwall.teacher.accounting.curves.rdp import (
    ORDERS,
    check_release,
    gaussian_rdp,
    pure_epsilon,
    release_rdp,
)
from labelwall.teacher.accounting.discrete_pld import discrete_pld_epsilon
from labelwall.teacher.accounting.plan import Plan, Release
from labelwall.wall.errors import BudgetRefused, InvalidInput
from labelwall.wall.messages import canonical_json

_REMEMBERED = (
    64  # plans whose certificates are kept: `plan`, `run` and the ledger ask about the same one
)


@dataclass(frozen=True)
class Certificate:
    """One way to bound the plan's epsilon at its delta.

    ``certified``: it holds for the mechanisms as they run; otherwise it is a diagnosis and never decides. ``order``: the
    Renyi order that attains it, None for a privacy loss distribution. ``note``: what it is, in a line.
    """

    epsilon: float
    certified: bool
    order: float | None
    note: str


def certificates(plan: Plan) -> dict[str, Certificate]:
    """Every certificate of the plan's caps, by name (stable, machine-readable).

    - ``tight``: exact curves (screening, contest with three outcomes), RDP. Certified.
    - ``screening_exact_argmax_gaussian``: exact screening, Gaussian bound for the argmax, RDP. Certified.
    - ``gaussian_rdp``: the Gaussian bound for both, RDP. Certified.
    - ``pure_added``: pure releases add up, the rest by ``tight``. Certified; absent where no release is pure.
    - ``pld_discrete``: privacy loss distribution of the discrete laws. Certified; absent where a release of the list has
      no dominating pair.
    - ``pld_continuous``: the same by dp-accounting for continuous noise, which is not what is drawn. Not certified; absent
      where a release is not a Gaussian one.

    Raises InvalidInput for an unknown curve or a parameter outside its range. Seconds, and more where an argmax curve is
    computed for the first time (curves.argmax_rdp).
    """
    bought = plan.releases()
    for release in bought:
        check_release(
            release
        )  # first, so that a parameter JSON can not hold is refused by its rule
    return dict(_certificates(canonical_json([asdict(release) for release in bought]), plan.delta))


@lru_cache(maxsize=_REMEMBERED)
def _certificates(releases: bytes, delta: float) -> tuple[tuple[str, Certificate], ...]:
    """``releases``: canonical JSON, because a Release holds a dictionary and can not be a key itself."""
    bought = [Release(**fields) for fields in json.loads(releases)]
    found = [(name, _renyi(bought, delta, bound, note)) for name, (bound, note) in _RENYI.items()]
    if any(pure_epsilon(release) is not None for release in bought if release.cap):
        found.append(("pure_added", _pure_added(bought, delta)))
    epsilon = discrete_pld_epsilon(bought, delta)
    if epsilon is not None:
        found.append(
            (
                "pld_discrete",
                Certificate(epsilon, True, None, "privacy loss distribution of the discrete laws"),
            )
        )
    epsilon = _continuous_pld_epsilon(bought, delta)
    if epsilon is not None:
        note = "privacy loss distribution of continuous noise, not certified"
        found.append(("pld_continuous", Certificate(epsilon, False, None, note)))
    return tuple(found)


def certified_epsilon(plan: Plan) -> float:
    """The smallest certified epsilon of the plan's caps at its delta; print it with ``round_up``."""
    return min(found.epsilon for found in certificates(plan).values() if found.certified)


def require_affordable(plan: Plan) -> None:
    """Raise BudgetRefused where the caps cost more than budget.epsilon, before anything is read."""
    cost = certified_epsilon(plan)
    if cost > plan.epsilon:
        raise BudgetRefused(
            f"`budget.epsilon` must be at least {round_up(cost)}, what the plan's caps cost at delta = {plan.delta}. "
            f"Found {plan.epsilon}. Lower the caps, or raise the noise."
        )


def largest_rho(epsilon: float, delta: float) -> float:
    """The zCDP budget that (epsilon, delta) buys by the best conversion, rounded down to a multiple of 1e-7.

    At (1, 1e-5): 0.03055 (0.0208 by the classic conversion). Raises BudgetRefused where not even 1e-7 is affordable.
    """
    low, high = 0, 10**12  # rho in units of 1e-7
    while high - low > 1:
        middle = (low + high) // 2
        total = _total([Release("zcdp", "zcdp", {"rho": middle / 1e7}, 1)], [1], release_rdp)
        low, high = (
            (middle, high)
            if epsilon_from_rdp(ORDERS, total, delta)[0] <= epsilon
            else (low, middle)
        )
    if low == 0:
        raise BudgetRefused(
            f"`budget.epsilon` must be large enough to buy anything at delta = {delta}. Found {epsilon}."
        )
    return low / 1e7


def reading(plan: Plan, counts: Sequence[int]) -> float:
    """Epsilon of what has been bought so far, by tight RDP: an odometer, for display only, never a guarantee.

    ``counts``: releases charged, in the order of plan.releases(). Choosing the best order after adaptive purchases is not
    covered by the composition theorem; the plan's certificate is what holds.
    """
    bought = plan.releases()
    if len(counts) != len(bought) or any(count < 0 for count in counts):
        raise InvalidInput("counts", f"{len(bought)} counts of at least 0", list(counts))
    return epsilon_from_rdp(ORDERS, _total(bought, counts, release_rdp), plan.delta)[0]


Bound = Callable[[Release, np.ndarray], np.ndarray]


def _argmax_gaussian(release: Release, orders: np.ndarray) -> np.ndarray:
    """The curve with an argmax priced as if its noisy votes were released."""
    return _gaussian(release, orders) if release.curve == "argmax" else release_rdp(release, orders)


def _all_gaussian(release: Release, orders: np.ndarray) -> np.ndarray:
    """The curve with an argmax or a screening bit priced as if what it is computed from were released."""
    return (
        _gaussian(release, orders)
        if release.curve in ("argmax", "screening")
        else release_rdp(release, orders)
    )


_RENYI: dict[str, tuple[Bound, str]] = {
    "tight": (release_rdp, "exact screening, exact argmax contest, RDP"),
    "screening_exact_argmax_gaussian": (
        _argmax_gaussian,
        "exact screening, Gaussian bound for the argmax, RDP",
    ),
    "gaussian_rdp": (_all_gaussian, "Gaussian bound for every release, RDP"),
}


def _gaussian(release: Release, orders: np.ndarray) -> np.ndarray:
    p = release.parameters
    return gaussian_rdp(
        orders,
        sigma=p["sigma"],
        sensitivity=_sensitivity(release),
        sampling_probability=p["sampling_probability"],
    )


def _sensitivity(release: Release) -> float:
    """L2 sensitivity of the noisy values behind a release: the plurality moves by 1, votes by e_a - e_b or e_a."""
    if release.curve == "gaussian":
        return float(release.parameters["sensitivity"])
    return (
        math.sqrt(2) if release.curve == "argmax" and release.parameters.get("swap", True) else 1.0
    )


def _renyi(bought: Sequence[Release], delta: float, bound: Bound, note: str) -> Certificate:
    epsilon, order = epsilon_from_rdp(ORDERS, _total(bought, [r.cap for r in bought], bound), delta)
    return Certificate(epsilon, True, order, note)


def _pure_added(bought: Sequence[Release], delta: float) -> Certificate:
    """Basic composition of the pure releases with the others' certificate, however they interleave: docs/privacy.md, section 15.

    With L = L_pure L_rest the likelihood ratio of the transcript, L_pure <= e^s almost surely for s the sum of caps times
    epsilons. So E_P[(1 - e^(s + t) / L)_+] <= E_P[(1 - e^t / L_rest)_+], and the conversion of the rest's moments bounds that.
    """
    prices = [pure_epsilon(release) for release in bought]
    rest = [release for release, price in zip(bought, prices, strict=True) if price is None]
    total = sum(
        (
            release.cap * price
            for release, price in zip(bought, prices, strict=True)
            if price is not None
        ),
        Fraction(0),
    )
    others = _renyi(rest, delta, release_rdp, "") if rest else Certificate(0.0, True, None, "")
    epsilon = float_above(total + Fraction(others.epsilon))
    return Certificate(
        epsilon, True, others.order, "pure releases add up, the rest by exact curves and RDP"
    )


def _total(bought: Sequence[Release], counts: Sequence[int], bound: Bound) -> np.ndarray:
    """RDP of ``counts`` releases of each kind, float64 [n_orders]."""
    total = np.zeros_like(ORDERS)
    for release, count in zip(bought, counts, strict=True):
        if count:
            total = total + count * bound(release, ORDERS)
    return total * (1 + 1e-14)


def _continuous_pld_epsilon(bought: Sequence[Release], delta: float) -> float | None:
    """dp-accounting's PLD with Gaussian noise for every release; None where a release is not a Gaussian one."""
    charged = [release for release in bought if release.cap > 0]
    if not charged or any(
        release.curve not in ("screening", "argmax", "gaussian") for release in charged
    ):
        return None
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE)
    for release in charged:
        noise = GaussianDpEvent(float(release.parameters["sigma"]) / _sensitivity(release))
        sampled = PoissonSampledDpEvent(float(release.parameters["sampling_probability"]), noise)
        accountant.compose(SelfComposedDpEvent(sampled, release.cap))
    return float(accountant.get_epsilon(delta))
