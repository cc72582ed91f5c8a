"""The cost of a plan: every valid certificate of its caps, the smallest of them, and why.

A plan is an explicit list of releases with caps, fixed before the first. Purchases may be adaptive,
interleaved or stopped early: they stay below the caps at every order at once, so the total of the
list certifies them. The same numbers follow from an exported ledger alone: nothing here reads a
record, or needs more than curves and the plan.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ...wall.errors import BudgetRefused, InvalidInput
from ...wall.messages import canonical_json
from .contest import SLOWEST_SIGMA
from .conversion import epsilon_from_rdp, epsilons_from_rdp, float_above, gaussian_delta, round_up
from .curves import ORDERS, ROUND_UP, check_release, pure_epsilon, release_rdp
from .plan import Plan, Release
from .pld import closed_epsilon, composed_mu, gaussian_pair, pld_epsilon

# Plans whose certificates are kept: `plan`, `run` and the ledger ask about the same one.
_CACHED_PLANS = 64
# By which the estimate at an order may exceed the smallest one: where noise decides it is within 1%
# of the exact epsilon.
NEAR = 1.012


@dataclass(frozen=True)
class Certificate:
    """One proof of an epsilon of the plan at its delta, for the mechanisms as they run.

    ``order``: the Renyi order that attains it, None for a privacy loss distribution. ``note``: one
    line for a reader.
    """

    epsilon: float
    order: float | None
    note: str


def certificates(plan: Plan) -> dict[str, Certificate]:
    """Every certificate of the plan's caps, by name (stable, machine-readable): docs/privacy.md.

    ``pure_added`` is absent where no release is pure, ``pld`` where one has neither Gaussian noise
    nor a pure epsilon.

    Raises InvalidInput for an unknown curve or a parameter outside its range. Takes about a second
    the first time, more for much noise on an argmax (contest.py).
    """
    releases = plan.releases()
    # First, so that a parameter JSON can not represent is refused by its rule.
    for release in releases:
        check_release(release)
    return dict(_certificates(canonical_json([asdict(r) for r in releases]), plan.delta))


@lru_cache(maxsize=_CACHED_PLANS)
def _certificates(serialised: bytes, delta: float) -> dict[str, Certificate]:
    """``serialised``: canonical JSON, because a Release contains a dictionary and is no key."""
    releases = [Release(**fields) for fields in json.loads(serialised)]
    exact = "exact screening, exact argmax contest, RDP"
    found = {"tight": Certificate(*smallest_by_rdp(releases, delta), exact)}
    if any(pure_epsilon(release) is not None for release in releases if release.cap):
        added = "pure releases add up, the rest by exact curves and RDP"
        found["pure_added"] = Certificate(*_pure_added(releases, delta), added)
    if (epsilon := pld_epsilon(releases, delta)) is not None:
        found["pld"] = Certificate(epsilon, None, "privacy loss distribution of dominating pairs")
    return found


def certified_epsilon(plan: Plan) -> float:
    """The smallest epsilon of the plan's caps at its delta that is proved.

    Print it with ``round_up``.
    """
    return certificates(plan)[smallest_certified(plan)].epsilon


def smallest_certified(plan: Plan) -> str:
    """The name of the certificate that ``certified_epsilon`` comes from."""
    found = certificates(plan)
    return min(found, key=lambda name: found[name].epsilon)


def require_affordable(plan: Plan) -> None:
    """Raise BudgetRefused where the caps cost more than budget.epsilon, before anything is read."""
    cost = certified_epsilon(plan)
    if cost > plan.epsilon:
        raise BudgetRefused(
            f"`budget.epsilon` must be at least {round_up(cost)}, what the plan's caps cost at "
            f"delta = {plan.delta}. Found {plan.epsilon}. Lower the caps, or leave out the "
            "noise that is given: it then follows from the budget."
        )


def odometer(plan: Plan, counts: Sequence[int]) -> float:
    """Epsilon of what has been bought so far, by tight RDP: for display only, never a guarantee.

    ``counts``: releases charged, in the order of plan.releases(). The composition theorem does not
    cover choosing the best order after adaptive purchases; the plan's certificate is the guarantee.
    """
    releases = plan.releases()
    if len(counts) != len(releases) or any(count < 0 for count in counts):
        raise InvalidInput("counts", f"{len(releases)} counts of at least 0", list(counts))
    return smallest_by_rdp(releases, plan.delta, counts)[0]


def smallest_by_rdp(
    releases: Sequence[Release], delta: float, counts: Sequence[int] | None = None
) -> tuple[float, float]:
    """The smallest epsilon of ``counts`` releases of each kind (their caps), and its order.

    Where a curve takes seconds an order, it is computed at those alone that can attain the minimum:
    first where an estimate is near its own minimum, then where it is below what was computed. Each
    order is a proof, so one that is left out costs accuracy at most; orders are a public function
    of the plan.
    """
    counts = [release.cap for release in releases] if counts is None else counts
    if not any(count and is_slow(r) for r, count in zip(releases, counts, strict=True)):
        return epsilon_from_rdp(ORDERS, total_rdp(releases, counts, ORDERS), delta)
    cheap = total_rdp([quick(release) for release in releases], counts, ORDERS)
    estimated = np.maximum(epsilons_from_rdp(ORDERS, cheap, delta), 0.0)
    left, best = np.ones(len(ORDERS), dtype=bool), (math.inf, float(ORDERS[-1]))
    while (chosen := left & (estimated <= min(best[0], NEAR * estimated.min()))).any():
        orders, left = ORDERS[chosen], left & ~chosen
        best = min(best, epsilon_from_rdp(orders, total_rdp(releases, counts, orders), delta))
        estimated = np.where(left, estimated, math.inf)
    return best


def total_rdp(releases: Sequence[Release], counts: Sequence[int], orders: np.ndarray) -> np.ndarray:
    """RDP of ``counts`` releases of each kind, float64 [n_orders]."""
    total = np.zeros_like(orders)
    for release, count in zip(releases, counts, strict=True):
        if count:
            total = total + count * release_rdp(release, orders)
    return total * ROUND_UP


def _pure_added(releases: Sequence[Release], delta: float) -> tuple[float, float | None]:
    """Basic composition of the pure releases with the others' certificate, in any interleaving.

    Proof: docs/privacy.md, section 15.
    """
    total, rest = pure_and_rest(releases)
    epsilon, order = smallest_by_rdp(rest, delta) if rest else (0.0, None)
    if math.isinf(epsilon):
        return epsilon, order
    return float_above(total + Fraction(epsilon)), order


def pure_and_rest(releases: Sequence[Release]) -> tuple[Fraction, list[Release]]:
    """The sum of the pure releases' epsilons, and the other releases."""
    costs = [(release, pure_epsilon(release)) for release in releases]
    total = sum((r.cap * cost for r, cost in costs if cost is not None), Fraction(0))
    return total, [release for release, cost in costs if cost is None]


def is_slow(release: Release) -> bool:
    """Whether the release's exact curve takes seconds."""
    return release.curve == "argmax" and release.parameters["sigma"] <= SLOWEST_SIGMA


def quick(release: Release) -> Release:
    """The release, or one of nearly the same price. No guarantee rests on it.

    A contest of two classes is nearly the bit of one count with noise of sigma / sqrt(2), within a
    percent at the orders that decide; an argmax without a swap is the bit of one count.
    """
    if not is_slow(release):
        return release
    swap = release.parameters.get("swap", True)
    sigma = float(release.parameters["sigma"]) / math.sqrt(2 if swap else 1)
    votes = math.ceil(6 * sigma) + 1  # where a threshold costs most lies within
    bit = {"max_votes": 2 * votes, "threshold": votes, "sigma": sigma}
    gamma = release.parameters["sample_rate"]
    return replace(release, curve="screening", parameters={**bit, "sample_rate": gamma})


def explain(plan: Plan) -> list[str]:
    """The lines that `audit --explain` prints. Sections are docs/privacy.md's."""
    ranked = sorted(certificates(plan).items(), key=lambda item: item[1].epsilon)
    name, best = ranked[0]
    lines = [f"the plan's releases, and epsilon at delta {plan.delta:g} by {name}:"]
    for slot, planned in enumerate(plan.slots):
        for release in planned.releases:
            lines += [f"  slot {slot}: {_named(release)}", f"    {_price(release, name, best)}"]
    lines += ["composition of all caps, adaptive and interleaved (section 6):"]
    lines += [f"  {line}" for line in _composition(plan, name, best)]
    others = ", ".join(f"{other} {c.epsilon:.6f}" for other, c in ranked[1:])
    lines += [f"the smallest of all certificates counts: {name} {best.epsilon:.6f}"]
    return [*lines, f"  the others: {others}"] if others else lines


def _named(release: Release) -> str:
    parameters = ", ".join(f"{key} {value:.6g}" for key, value in release.parameters.items())
    return f"{release.cap} x {release.name}, curve {release.curve} ({parameters})"


def _price(release: Release, name: str, best: Certificate) -> str:
    """The price of one release, by the certificate that counts."""
    pure, pair = pure_epsilon(release), gaussian_pair(release)
    if pure is not None and (best.order is None or name == "pure_added"):
        return f"pure: at most {float(pure):.6g}"
    if best.order is not None:
        price = _divergence(release, best.order)
        return f"Renyi divergence of order {best.order:g}, at most {price:.6g}"
    if pair is None:
        return "a function of the discrete Gaussian against its shift, on a Poisson sample if any"
    against = f"N({pair.mu:.9f}, 1)"
    if pair.gamma < 1:
        against = f"{1 - pair.gamma:g} N(0, 1) + {pair.gamma:g} {against}"
    return f"a function of N(0, 1) against {against}"


def _composition(plan: Plan, name: str, best: Certificate) -> list[str]:
    releases = [release for release in plan.releases() if release.cap]
    if best.order is not None:
        return _arithmetic(plan.delta, releases, name, best.order)
    if name == "pld" and closed_epsilon(releases, plan.delta) == best.epsilon:
        pairs = [pair for pair in map(gaussian_pair, releases) if pair is not None]
        mu = composed_mu(pairs)
        delta = gaussian_delta(mu, best.epsilon)
        terms = " + ".join(f"{pair.cap} x {pair.mu:.9f}^2" for pair in pairs)
        return [
            f"mu^2 = {terms} = {mu**2:.9f}, mu = {mu:.9f} (section 19)",
            f"Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) = {delta:.7g} at e = {best.epsilon:.6f}",
        ]
    return [
        "the losses of all copies are convolved (section 19): "
        f"delta is {plan.delta:g} at epsilon {best.epsilon:.6f}"
    ]


def _arithmetic(delta: float, releases: list[Release], name: str, order: float) -> list[str]:
    """The sum at one order and its conversion; by ``pure_added`` pure releases add up apart."""
    lines = []
    if name == "pure_added":
        added, releases = pure_and_rest(releases)
        lines += [f"pure releases add up to {float(added):.6f} (section 15)"]
    if not releases:
        return lines
    rest = [(release.cap, _divergence(release, order)) for release in releases]
    total = sum(cap * price for cap, price in rest)
    terms = " + ".join(f"{cap} x {price:.6g}" for cap, price in rest)
    epsilon = total + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    return [
        *lines,
        f"R({order:g}) = {terms} = {total:.6f}",
        f"R + log(({order:g}-1)/{order:g}) - (log {delta:g} + log {order:g})/({order:g}-1) "
        f"= {epsilon:.6f}",
    ]


def _divergence(release: Release, order: float) -> float:
    return float(release_rdp(release, np.array([order]))[0])
