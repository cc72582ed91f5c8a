"""What a ledger recorded: its state by a copy of it, and a schedule as its plan fixed it.

Another version may solve otherwise; what was fixed before the first release stays. Nothing here
writes a ledger, so that an analyst's process has no writer.
"""

from pathlib import Path

from ...wall.errors import LedgerMismatch
from ..accounting.accountant import certified_epsilon, odometer
from ..accounting.conversion import round_up
from ..accounting.plan import Plan
from ..ledger.auditor.reading import Problem, check_extractor, read_file
from ..ledger.state import LedgerState
from .schedule import Schedule
from .solver import solved


def recorded(schedule: Schedule, plan: Plan) -> Schedule:
    """The schedule with the missing numbers that a plan has for the same mechanisms."""
    own, unit, periods = schedule.mechanisms(), schedule.privacy.unit, schedule.budget.periods
    if (len(plan.slots), plan.periods) != (len(own) * periods, periods):
        return schedule
    pairs = zip(own, plan.up_to(1).slots, strict=True)
    return schedule.with_mechanisms([m.recorded(slot.mechanism, unit) for m, slot in pairs])


def plan_beside(schedule: Schedule, plan: Plan) -> Plan:
    """The schedule's plan, with those numbers, or the method, of a ledger's that are left open."""
    if schedule.open:
        budget = schedule.budget
        slots = plan.slots if plan.periods == budget.periods else ()
        return Plan(budget.epsilon, budget.delta, slots, schedule.privacy.unit, budget.periods)
    return solved(recorded(schedule, plan)).plan()


def read_state(path: Path) -> LedgerState:
    """What the entries of a ledger's exported file add up to. Raises LedgerMismatch for a file that
    is no whole ledger.
    """
    stored, state = read_file(path), LedgerState()
    fields = dict(stored.extractors)
    try:
        for problem in stored.problems:
            raise Problem(problem)
        for seq, ((kind, text), digest) in enumerate(
            zip(stored.entries, stored.hashes, strict=True)
        ):
            state.apply(seq, kind, text, state.head, digest)
        for sha256 in state.extractors:
            check_extractor(sha256, fields.get(sha256, ""))
    except Problem as problem:
        raise LedgerMismatch(f"the ledger {path.name}: {problem}.") from problem
    return state


def odometer_reading(state: LedgerState) -> float:
    """A reading of the epsilon that was spent, rounded up; no guarantee."""
    assert state.plan is not None
    # Another certificate may be smaller than the odometer's for all that the caps of the periods so
    # far allow, and hence for what was spent of it.
    begun = max((state.plan.period_of(slot) for slot, _ in state.spent), default=1)
    allowed = certified_epsilon(state.plan.up_to(begun))
    return round_up(min(odometer(state.plan, state.counts()), allowed))
