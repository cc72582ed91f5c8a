"""`plan`: what a configuration costs, by every certificate, without reading data."""

from __future__ import annotations

import math

from ...teacher.accounting.accountant import (
    certificates,
    certified_epsilon,
    require_affordable,
)
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan
from ...wall.unit import for_unit, protected
from ..config.config import Config, solved_line, solved_numbers
from ..run.console import Console
from .published_epsilons import published_for

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
    found = certificates(plan)
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
        "certificates": {name: round_up(c.epsilon) for name, c in found.items()},
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
