"""What a plan's guarantee means for a person: the best attack, and how far a guess can rise.

An attack says of one record, by all that is released, whether it was used. P and Q are the laws of
what is released with the record and without it. If it says "used" on the set E of outcomes, its
false positive rate is Q(E) and its true positive rate P(E). Whatever is known of P and Q bounds
P(E), and the smallest bound counts (docs/privacy.md, section 23).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...wall.guarantee import Unit
from .accountant import certified_epsilon, is_slow, quick, total_rdp
from .conversion import round_up
from .curves import ORDERS
from .plan import Plan, Release
from .pld import closed_pair, pld_deltas

RATES = (0.001, 0.01)  # false positive rates
PRIORS = (0.5, 0.1, 0.01)  # that a record was used, before an attack
BOUNDS = {
    "gaussian": "the one Gaussian that all releases compose to",
    "pld": "the privacy loss distribution",
    "tight": "the Renyi divergences",
    "pair": "epsilon and delta alone",
}
_LINES = 5000  # epsilons whose deltas are computed
_LARGEST = 700.0  # epsilon; beyond it nothing is bounded, and e^epsilon overflows
_ROUND_UP = 1 + 1e-9  # covers the rounding of closed formulas
_HALVINGS = 100  # of an interval of rates


@dataclass(frozen=True)
class Risk:
    """What holds for every attack whose false positive rate is at most ``false_positive_rate``.

    ``true_positive_rate``: at most this. ``guesses``: at most so sure that the record was used, if
    the attack says so, is who was as sure as PRIORS before; in their order. Rounded up. ``by``: a
    key of BOUNDS.
    """

    false_positive_rate: float
    true_positive_rate: float
    guesses: list[float]
    by: str


def risks(plan: Plan, rates: Sequence[float] = RATES) -> list[Risk]:
    """The smallest proved bounds for the plan's caps, at each false positive rate."""
    releases = [release for release in plan.releases() if release.cap]
    certified, allowed = np.array([certified_epsilon(plan)]), np.full((2, 1), plan.delta)
    epsilons = np.linspace(0, -math.log(min(rates)), _LINES)  # a larger one bounds nothing below 1
    deltas, gaussian = pld_deltas(releases, epsilons), closed_pair(releases)
    found = list[Risk]()
    for rate in rates:
        orders, rdp = _curve(releases, rate)
        bounds = {
            "pair": by_deltas(rate, certified, allowed),
            "tight": by_renyi(rate, orders, rdp),
        }
        if deltas is not None:
            bounds["pld"] = by_deltas(rate, epsilons, deltas)
        if gaussian is not None:
            mu, error = gaussian
            bounds["gaussian"] = by_gaussian(rate, mu, error)
        name = min(bounds, key=bounds.__getitem__)
        true = min(bounds[name], 1.0)
        guesses = [p * true / (p * true + (1 - p) * rate) for p in PRIORS]
        found.append(Risk(rate, round_up(true, 5), [round_up(g, 5) for g in guesses], name))
    return found


def by_deltas(rate: float, epsilons: np.ndarray, deltas: np.ndarray) -> float:
    """The largest P(E) at Q(E) = ``rate``, by certified deltas [2, n] as of ``pld_deltas``."""
    above = np.exp(np.minimum(epsilons, _LARGEST)) * rate + deltas[0]
    below = 1 - np.exp(-epsilons) * (1 - rate - deltas[1])
    return float(min(above.min(), below.min())) * _ROUND_UP


def by_gaussian(rate: float, mu: float, error: float) -> float:
    """By N(0, 1) against N(mu, 1), whose likelihoods err by a factor within e^(+-error)."""
    from scipy.special import ndtr, ndtri  # as in conversion.py

    return float(ndtr(ndtri(rate * math.exp(error)) + mu)) * math.exp(error) * _ROUND_UP


def by_renyi(rate: float, orders: np.ndarray, rdp: np.ndarray) -> float:
    """By Renyi divergences: those of the answer "used" are no larger, in both directions."""

    def allowed(true: float) -> bool:
        laws = np.log([[true, 1 - true], [rate, 1 - rate]])
        for p, q in (laws, laws[::-1]):
            moment = np.logaddexp(*(orders * p[:, None] + (1 - orders) * q[:, None]))
            if (moment > (orders - 1) * rdp * _ROUND_UP + 1e-14).any():
                return False
        return True

    low, high = rate, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if middle < 1 and allowed(middle) else (low, middle)
    return high


def _curve(releases: Sequence[Release], rate: float) -> tuple[np.ndarray, np.ndarray]:
    """(orders, the list's divergences there): one order where each takes seconds.

    Every order is a proof. The one is the best by an estimate.
    """
    orders, caps = ORDERS, [release.cap for release in releases]
    if any(map(is_slow, releases)):
        quick_rdp = total_rdp([quick(release) for release in releases], caps, ORDERS)
        bounds = [by_renyi(rate, ORDERS[[i]], quick_rdp[[i]]) for i in range(len(ORDERS))]
        orders = ORDERS[[int(np.argmin(bounds))]]
    return orders, total_rdp(releases, caps, orders)


def meaning(unit: Unit) -> str:
    """The sentence above a table of risks."""
    used = "one record was used" if unit == "row" else "one person's rows were used"
    return f"Whoever knows everything except whether {used} can do no better than this:"


def table(found: Sequence[Risk], unit: Unit) -> list[str]:
    """The risks as lines of text."""
    priors = " ".join(f"{prior:>9.0%}" for prior in PRIORS)
    lines = [meaning(unit), f"  false alarms     found   a guess of {priors} rises to"]
    for risk in found:
        rises = " ".join(f"{share(rise):>9}" for rise in risk.guesses)
        rates = f"{risk.false_positive_rate:>12.1%} {share(risk.true_positive_rate):>9}"
        lines.append(f"  {rates}              {rises}")
    return [*lines, f"  by {', '.join(dict.fromkeys(BOUNDS[risk.by] for risk in found))}"]


def share(value: float) -> str:
    """A share in percent, rounded up."""
    digits = 5 if value < 0.1 else 3
    return f"{100 * round_up(value, digits):.{digits - 2}f}%"
