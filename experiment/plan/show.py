"""What a configuration costs, and what a search came to: as lines, tables and JSON."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...teacher.accounting.accountant import certificates, certified_epsilon, require_affordable
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan
from ...teacher.accounting.risk import Risk, risks, table
from ...teacher.custody.schedule import Schedule
from ...teacher.custody.solver import solved, solved_line, solved_numbers
from ...wall.console import Console
from ...wall.datasets import readers
from ...wall.datasets.data_config import DataConfig
from ...wall.datasets.sources import facts
from ...wall.errors import MissingData, listed
from ...wall.guarantee import for_unit, protected
from ...wall.progress import Progress, no_progress
from .planner import Choice, Optimum

WEAK = 10.0  # epsilon above which a guarantee means little
TABLE_WIDTH = 112  # columns of characters
SHOWN = 10  # choices in a table
# What a plan pays for by release, and what proves its epsilon, in words
RELEASED = {
    "sum": "noisy sum",
    "histogram": "noisy histogram",
    "screen": "noisy screening",
    "aggregate": "noisy answer",
}
PROOFS = {
    "pld": "by privacy loss distributions",
    "tight": "by Renyi divergences",
    "pure_added": "by adding pure epsilons",
}


def price_line(plan: Plan) -> str:
    """What a plan costs, in one line. Raises BudgetRefused for more than its budget."""
    require_affordable(plan)
    epsilon = f"epsilon {round_up(certified_epsilon(plan))} of {plan.epsilon:g}"
    caps = ", ".join(released(r.name, r.cap) for r in plan.up_to(1).releases())
    caps += f", in each of {plan.periods} periods" if plan.periods > 1 else ""
    unit = for_unit(plan.unit)
    return f"price: {epsilon} at delta {plan.delta:g}{unit}, for at most {caps}"


def released(name: str, count: int) -> str:
    """So many releases of a name, for a reader."""
    word = RELEASED.get(name, f"noisy {name}")
    plural = "es" if word[-1] == "s" else "s"
    return f"{count:,} {word}{plural if count != 1 else ''}"


def weak(epsilon: float) -> str | None:
    """What an epsilon above WEAK means, in a line; None for others."""
    if epsilon <= WEAK:
        return None
    factor = f"{math.exp(epsilon):,.0f}" if epsilon < 50 else f"10^{epsilon / math.log(10):.0f}"
    return (
        f"warning: epsilon {round_up(epsilon):g} promises little: what is released may be {factor} "
        "times as likely with a record as without it (e^epsilon)."
    )


def tell_columns(data: DataConfig, needed: bool, console: Console) -> None:
    """Say how the PUBLIC rows are read, column by column.

    Raises MissingData if rows are missing that are ``needed``: a price needs none.
    """
    with suppress(*() if needed else (MissingData,)):
        for line in facts(data):
            console.say(line)


def announce(data: DataConfig, given: Schedule, known: Schedule, console: Console) -> None:
    """Say what the plan costs, and the numbers that the budget decided.

    ``known``: the ``given`` schedule with the numbers that a run records, if there is one. Raises
    BudgetRefused for more than the budget.
    """
    known = solved(known, console.progress)
    plan = known.plan()
    console.say(price_line(plan))
    if warning := weak(certified_epsilon(plan)):
        console.say(warning)
    if line := solved_line(solved_numbers(given, known)):
        console.say(line)
    if data.white is not None:
        console.say(f"greys of more than 8 bits: {data.white:g} is white (data.white)")
    elif data.source == "folder" and not data.draws and Path(data.public or "").is_dir():
        shown = readers.modes(Path(data.public or ""))
        if shown and set(shown) <= readers.GREYS and not any(map(readers.is_deep, shown)):
            console.say(
                "the public images are greys of 8 bits. If private images have more, 65535 is "
                "taken for white (in DICOM files the file's own limit). For 12 bits give "
                "`--data.white 4095`."
            )


def describe_plan(given: Schedule, progress: Progress = no_progress) -> dict[str, Any]:
    """What `plan --json` prints.

    epsilon, delta, budget, certificates (name -> epsilon), rounds with caps and with the numbers
    that the budget decided, and in the same form the scores, one a period; periods: epsilon of the
    plan up to each; custodians: how many; risks: what it means for a person.
    """
    schedule = solved(given, progress)
    plan, decided = schedule.plan(), [[*numbers] for numbers in solved_numbers(given, schedule)]
    known = certificates(plan)
    scores = [schedule.asked_score(period) for period in range(1, plan.periods + 1)]

    def entry(slot: int) -> dict[str, object]:
        mechanism = plan.slots[slot].mechanism
        return {
            "slot": slot,
            "period": plan.period_of(slot),
            "mechanism": mechanism,
            "solved": {name: mechanism[name] for name in decided[slot % len(decided)]},
            "caps": {release.name: release.cap for release in plan.slots[slot].releases},
        }

    rounds = [{"queries": r.queries, **entry(r.slot)} for r in schedule.asked_rounds(0)]
    parts = [plan.up_to(period) for period in range(1, plan.periods + 1)]
    return {
        "epsilon": round_up(certified_epsilon(plan)),
        "delta": plan.delta,
        "budget": plan.epsilon,
        "unit": plan.unit,
        "certificates": {name: round_up(c.epsilon) for name, c in known.items()},
        "rounds": rounds,
        "scores": [entry(score.slot) for score in scores if score is not None],
        "periods": [round_up(certified_epsilon(part)) for part in parts],
        "custodians": schedule.custodians,
        "risks": [*map(asdict, risks(plan))],
    }


def render_plan(shown: dict) -> str:
    """The result of ``describe_plan`` as text."""
    neighbours = f"add or remove {protected(shown['unit'])}"
    guarantee = f"of {shown['budget']:g} at delta {shown['delta']:g} ({neighbours})"
    lines = [f"epsilon {shown['epsilon']:.3f} {guarantee}", ""]
    for name, epsilon in sorted(shown["certificates"].items(), key=lambda item: item[1]):
        lines.append(f"  {PROOFS.get(name, name):36} {epsilon:8.3f}")
    lines.append("")
    once = [entry for entry in shown["rounds"] if entry["period"] == 1]
    parts = [*once, *shown["scores"][:1]]
    for number, entry in enumerate(once, start=1):
        caps = ", ".join(released(name, cap) for name, cap in entry["caps"].items())
        asked = f"{entry['queries']} public rows" if entry["queries"] else "all public rows"
        sharing = [n for n, other in enumerate(once, start=1) if other["slot"] == entry["slot"]]
        of = f" in rounds {listed(sharing)} together" if len(sharing) > 1 else ""
        slot = f" (slot {entry['slot']})" if len({one["slot"] for one in parts}) > 1 else ""
        lines.append(f"  round {number}{slot}: asks about {asked}, by at most {caps}{of}")
    for entry in shown["scores"][:1]:
        models = entry["caps"]["score"]
        by = entry["mechanism"].get("thresholds")
        lines.append(
            f"  score on the private records (slot {entry['slot']}): of {models} model(s)"
            + (f", by {by} thresholds" if by else "")
        )
    if (several := shown["custodians"]) > 1:
        times = f"{math.sqrt(several):.2f} times the noise of a single custodian"
        lines.append(f"  {several} custodians, each with this budget: the sum has {times}")
    if len(shown["periods"]) > 1:
        lines += ["", "  period, each with these rounds: epsilon spent by then"]
        lines += [f"  {n:8} {epsilon:8.3f}" for n, epsilon in enumerate(shown["periods"], start=1)]
    slots = {entry["slot"]: entry["solved"] for entry in parts}
    if line := solved_line([slots[slot] for slot in sorted(slots)]):
        lines += ["", f"  {line}"]
    later = [entry["solved"] for entry in shown["rounds"] if entry["period"] == 2]
    if later != [entry["solved"] for entry in once] and (line := solved_line(later)):
        lines.append(f"  later periods: {line}")
    lines += ["", *table([Risk(**risk) for risk in shown["risks"]], shown["unit"])]
    if warning := weak(shown["epsilon"]):
        lines += ["", f"  {warning}"]
    return "\n".join(lines)


def describe_candidates(optimum: Optimum[Any]) -> dict[str, Any]:
    """candidates (best first), reason, source (of the rows rehearsed on)."""
    candidates = [
        {
            "epsilon": round_up(choice.epsilon),
            "mechanism": choice.mechanism.fields(),
            "view": str(choice.view),
            "cap": choice.cap,
            "expected": {
                "asked": choice.asked,
                "answered": choice.answered,
                "label_accuracy": choice.accuracy,
                "right": choice.right,
                "spread": choice.spread,
            },
        }
        for choice in optimum.tried
    ]
    return {"candidates": candidates, "reason": sentence(optimum), "source": _source(optimum)}


def choices_table(choices: Sequence[Choice[Any]]) -> str:
    """The chosen one, which is the first, and the best of the others: SHOWN lines in all."""
    lines = [f"{len(choices)} rehearsed; labels right, rows labelled, features, method (* chosen):"]
    for choice in choices[:SHOWN]:
        mark, known = "*" if choice is choices[0] else " ", expected(choice)
        words = (
            f"{name} {value:.5g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in choice.mechanism.fields().items()
            if name != "kind" and value not in (None, 0.0)
        )
        method = f"{choice.mechanism.kind}: {', '.join(words)}"
        line = f"{mark} {known:18} {choice.answered:6.0f}  {choice.view}  {method}"
        lines.append(line if len(line) <= TABLE_WIDTH else f"{line[: TABLE_WIDTH - 3]}...")
    return "\n".join(lines)


def expected(choice: Choice[Any]) -> str:
    """The accuracy of a choice and its spread, for a reader."""
    if choice.of_values:
        text, spread = f"R2 {choice.accuracy:.3f}", f" +-{choice.spread:.3f}"
    else:
        text, spread = f"{choice.accuracy:.1%} right", f" +-{100 * choice.spread:.1f}"
    return text + (spread if choice.spread else "")


def sentence(optimum: Optimum[Any]) -> str:
    """Why the best was chosen, for a reader."""
    best, goal = optimum.chosen, optimum.goal
    others = [c for c in optimum.tried if c.mechanism.kind != best.mechanism.kind]
    text = (
        f"{best.mechanism.kind} is chosen: labels {expected(best)} are expected for "
        f"{goal.expected_records} records at epsilon {goal.epsilon:g}"
    )
    if others:
        text += f", {expected(others[0])} by the best {others[0].mechanism.kind}"
    return f"{text}."


def reason(optimum: Optimum[Any]) -> str:
    """What was chosen, why, and from what rows."""
    text = f"{sentence(optimum)} From {_source(optimum)}; no private record was read."
    if not optimum.chosen.of_values and optimum.chosen.accuracy < optimum.frequent:
        text += (
            "\nwarning: always saying the most frequent class is right more often. Raise epsilon, "
            "or give expected_records if there are more private rows."
        )
    elif optimum.alone > optimum.chosen.accuracy + optimum.chosen.spread:
        alone = replace(optimum.chosen, accuracy=optimum.alone, spread=0.0)
        text += (
            f"\nwarning: the public labels alone give more, {expected(alone)}, and cost nothing. "
            "Raise epsilon, or give expected_records if there are more private rows."
        )
    return text


def _source(optimum: Optimum[Any]) -> str:
    """The rows of the forecasts and, if another choice is the best by them, why it is not taken."""
    text = optimum.source
    if optimum.frequent:
        text += f"; always the most frequent class is right on {optimum.frequent:.1%} of them"
    return f"{text} ({optimum.safer})" if optimum.safer else text
