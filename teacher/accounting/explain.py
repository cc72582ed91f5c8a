"""From a plan to its epsilon in plain steps: releases, pairs, composition, arithmetic."""

from __future__ import annotations

import math

import numpy as np

from .accountant import Certificate, certificates
from .conversion import gaussian_delta
from .curves import pure_epsilon, release_rdp
from .plan import Plan, Release
from .pld import closed_epsilon, composed_mu, gaussian_pair


def explain(plan: Plan) -> list[str]:
    """The lines that `audit --explain` prints. Sections are docs/privacy.md's."""
    ranked = sorted(certificates(plan).items(), key=lambda item: item[1].epsilon)
    name, best = ranked[0]
    lines = [f"the plan's releases, and epsilon at delta {plan.delta:g} by {name}:"]
    for slot, planned in enumerate(plan.slots):
        for release in planned.releases:
            lines += [f"  slot {slot}: {_release(release)}", f"    {_price(release, name, best)}"]
    lines += ["composition of all caps, adaptive and interleaved (section 6):"]
    lines += [f"  {line}" for line in _composition(plan, name, best)]
    others = ", ".join(f"{other} {c.epsilon:.6f}" for other, c in ranked[1:])
    lines += [f"the smallest of all certificates counts: {name} {best.epsilon:.6f}"]
    return [*lines, f"  the others: {others}"] if others else lines


def _release(release: Release) -> str:
    parameters = ", ".join(f"{key} {value:.6g}" for key, value in release.parameters.items())
    return f"{release.cap} x {release.name}, curve {release.curve} ({parameters})"


def _price(release: Release, name: str, best: Certificate) -> str:
    """What one release is priced as, by the certificate that counts."""
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
        return _renyi(plan.delta, releases, name, best.order)
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


def _renyi(delta: float, releases: list[Release], name: str, order: float) -> list[str]:
    """The sum at one order and its conversion; by ``pure_added`` pure releases add up apart."""
    costs = [pure_epsilon(release) if name == "pure_added" else None for release in releases]
    priced = list(zip(releases, costs, strict=True))
    added = float(sum(r.cap * cost for r, cost in priced if cost is not None))
    rest = [(r.cap, _divergence(r, order)) for r, cost in priced if cost is None]
    total = sum(cap * price for cap, price in rest)
    terms = " + ".join(f"{cap} x {price:.6g}" for cap, price in rest)
    lines = [f"pure releases add up to {added:.6f} (section 15)"] if name == "pure_added" else []
    if not rest:
        return lines
    epsilon = total + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    return [
        *lines,
        f"R({order:g}) = {terms} = {total:.6f}",
        f"R + log(({order:g}-1)/{order:g}) - (log {delta:g} + log {order:g})/({order:g}-1) "
        f"= {epsilon:.6f}",
    ]


def _divergence(release: Release, order: float) -> float:
    return float(release_rdp(release, np.array([order]))[0])
