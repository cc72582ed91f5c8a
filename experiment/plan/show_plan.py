"""`plan`: what a configuration costs, by every certificate, without reading data.

Beside it stands the epsilon that a paper prints, where a plan has the paper's parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ...teacher.accounting.accountant import (
    certificates,
    certified_epsilon,
    require_affordable,
)
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan, Release, Slot
from ...teacher.mechanisms.attributes import GnmaxAttributes, PrivateKnnAttributes
from ...teacher.mechanisms.registry import AnyMechanism
from ...teacher.mechanisms.votes import PrivateKnn
from ...wall.unit import for_unit, protected
from ..config.config import Config, solved_line, solved_numbers
from ..run.console import Console

WEAK = 10.0  # epsilon above which a guarantee means little


def price_line(plan: Plan) -> str:
    """What a plan costs, in one line. Raises BudgetRefused for more than its budget."""
    require_affordable(plan)
    epsilon = f"epsilon {round_up(certified_epsilon(plan))} of {plan.epsilon:g}"
    caps = ", ".join(f"{release.cap} x {release.name}" for release in plan.releases())
    unit = for_unit(plan.unit)
    return f"price: {epsilon} at delta {plan.delta:g}{unit}, for at most {caps}"


def weak(epsilon: float) -> str | None:
    """What an epsilon above WEAK means, in a line; None for others."""
    if epsilon <= WEAK:
        return None
    factor = f"{math.exp(epsilon):,.0f}" if epsilon < 50 else f"10^{epsilon / math.log(10):.0f}"
    return (
        f"warning: epsilon {round_up(epsilon):g} promises little: what is released may be {factor} "
        "times as likely with a record as without it (e^epsilon)."
    )


def announce(config: Config, known: Config, console: Console) -> None:
    """Say what the plan costs, and the numbers that the budget decided.

    ``known``: ``config`` with the numbers that a run records, if there is one. Raises BudgetRefused
    for more than the budget.
    """
    solved = known.solved(console.progress)
    console.say(price_line(solved.plan()))
    if warning := weak(certified_epsilon(solved.plan())):
        console.say(warning)
    if line := solved_line(solved_numbers(config, solved)):
        console.say(line)


def describe_plan(config: Config) -> dict[str, object]:
    """What `plan --json` prints.

    epsilon, delta, budget, certificates (name -> epsilon), rounds with caps and with the numbers
    that the budget decided; and the epsilon that a paper prints for the same parameters, where
    there is one.
    """
    plan, slots, solved = config.plan(), config.slots(), solved_numbers(config)
    known = certificates(plan)
    rounds = [
        {
            "queries": r.queries,
            "slot": slot,
            "mechanism": plan.slots[slot].mechanism,
            "solved": solved[slot],
            "caps": {release.name: release.cap for release in plan.slots[slot].releases},
        }
        for r, slot in zip(config.rounds, slots, strict=True)
    ]
    row = published_for(plan)
    printed = row and {"where": f"{row.table}, {row.name}", "epsilon": row.epsilon}
    return {
        "printed": printed,
        "epsilon": round_up(certified_epsilon(plan)),
        "delta": plan.delta,
        "budget": plan.epsilon,
        "unit": plan.unit,
        "certificates": {name: round_up(c.epsilon) for name, c in known.items()},
        "rounds": rounds,
    }


def render_plan(shown: dict) -> str:
    """The result of ``describe_plan`` as text."""
    neighbours = f"add or remove {protected(shown['unit'])}"
    guarantee = f"of {shown['budget']:g} at delta {shown['delta']:g} ({neighbours})"
    lines = [f"epsilon {shown['epsilon']:.3f} {guarantee}", ""]
    for name, epsilon in sorted(shown["certificates"].items(), key=lambda item: item[1]):
        lines.append(f"  {name:36} {epsilon:8.3f}")
    if printed := shown["printed"]:
        note = "   as the paper prints it, for these parameters"
        lines.append(f"  {printed['where']:36} {printed['epsilon']:8.3f}{note}")
    lines.append("")
    for number, entry in enumerate(shown["rounds"], start=1):
        caps = ", ".join(f"{name} {cap}" for name, cap in entry["caps"].items())
        asked = f"{entry['queries']} queries" if entry["queries"] else "all public rows"
        lines.append(
            f"  round {number}: {asked}, slot {entry['slot']} (caps over all its rounds: {caps})"
        )
    slots = {entry["slot"]: entry["solved"] for entry in shown["rounds"]}
    if line := solved_line([slots[slot] for slot in sorted(slots)]):
        lines += ["", f"  {line}"]
    if warning := weak(shown["epsilon"]):
        lines += ["", f"  {warning}"]
    return "\n".join(lines)


@dataclass(frozen=True)
class PublishedEpsilon:
    """One row of a paper's table.

    ``asked``, ``answered``: queries as the paper counts them; ``epsilon``: as printed, at
    ``delta``.
    """

    table: str
    name: str
    mechanism: AnyMechanism
    asked: int
    answered: int
    delta: float
    epsilon: float

    def plan(self) -> Plan:
        """The row as a plan, whose budget is the printed epsilon."""
        slot = Slot(self.mechanism.fields(), self.mechanism.releases(self.asked, self.answered))
        return Plan(self.epsilon, self.delta, (slot,))


def _attributes(
    name: str, teachers: int, sigma: float, gamma: float, queries: int, delta: float, epsilon: float
) -> PublishedEpsilon:
    """A row of Table 3: GNMAX where ``gamma``, the sampling probability, is 1."""
    mechanism: AnyMechanism
    if gamma == 1:
        mechanism = GnmaxAttributes(tau=TAU, teachers=teachers, sigma_vote=sigma)
    else:
        mechanism = PrivateKnnAttributes(
            tau=TAU, k=teachers, sigma_vote=sigma, sampling_probability=gamma
        )
    return PublishedEpsilon("CVPR20 Table 3", name, mechanism, queries, queries, delta, epsilon)


def _knn(
    name: str, votes: PrivateKnn, asked: int, answered: int, delta: float, epsilon: float
) -> PublishedEpsilon:
    return PublishedEpsilon("CVPR20 Table 1", name, votes, asked, answered, delta, epsilon)


TAU = 10
TOLERANCE = 0.01  # of the noise
_MNIST = PrivateKnn(k=300, threshold=180, sigma_screen=75, sigma_vote=25)
_SVHN = PrivateKnn(k=800, threshold=480, sigma_screen=200, sigma_vote=60, sampling_probability=0.03)
_CIFAR = PrivateKnn(k=300, threshold=210, sigma_screen=85, sigma_vote=20, sampling_probability=0.2)
TABLE_1 = (
    _knn("MNIST", _MNIST, 1000, 735, 1e-5, 0.47),
    _knn("SVHN", _SVHN, 6000, 2939, 1e-6, 0.49),
    _knn("CIFAR-10", _CIFAR, 18000, 3877, 1e-5, 2.92),
)
TABLE_3 = (
    _attributes("CelebA, T = 300", 300, 150.0, 1, 600, 1e-6, 7.72),
    _attributes("CelebA, T = 800", 800, 300.0, 1, 500, 1e-6, 3.31),
    _attributes("CelebA, gamma = 0.05", 800, 50.0, 0.05, 800, 1e-6, 1.24),
    _attributes("CelebA, gamma = 0.10", 800, 100.0, 0.10, 800, 1e-6, 1.20),
    _attributes("Market1501, sigma = 100", 300, 100.0, 1, 800, 1e-5, 13.41),
    _attributes("Market1501, sigma = 250", 300, 250.0, 1, 80, 1e-5, 1.41),
    _attributes("Market1501, gamma = 0.05", 300, 100.0, 0.05, 1200, 1e-5, 0.67),
    _attributes("Market1501, gamma = 0.10", 300, 100.0, 0.10, 1200, 1e-5, 1.38),
)


def published_for(plan: Plan) -> PublishedEpsilon | None:
    """The row with the releases and delta of ``plan``, noise within 1%; None if there is none."""
    return next((row for row in (*TABLE_1, *TABLE_3) if _same(row.plan(), plan)), None)


def _same(known: Plan, plan: Plan) -> bool:
    """Whether both plans have one mechanism kind, the same priced releases and the same delta.

    Parameters without a price, such as some thresholds, may differ, and noise by 1%: a budget
    decides it to four digits.
    """
    kinds = [slot.mechanism["kind"] for entry in (known, plan) for slot in entry.slots]
    releases, others = known.releases(), plan.releases()
    return (
        known.delta == plan.delta
        and len(set(kinds)) == 1
        and len(releases) == len(others)
        and all(_close(*pair) for pair in zip(releases, others, strict=True))
    )


def _close(known: Release, release: Release) -> bool:
    noise, other = known.parameters["sigma"], release.parameters["sigma"]
    same = replace(release, parameters={**release.parameters, "sigma": noise})
    return known == same and math.isclose(noise, other, rel_tol=TOLERANCE)
