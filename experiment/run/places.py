"""Where the budget of a run's records lies, and whether it is this run's.

One's own data have one budget: its ledger lies where the private rows are, whose path is a public
fact. Another one is opened by an explicit --custodian_dir alone, since what both release adds up.
"""

from collections.abc import Callable
from pathlib import Path

from ...teacher.accounting.accountant import certified_epsilon, odometer
from ...teacher.accounting.conversion import round_up
from ...teacher.custodian import LEDGER
from ...teacher.ledger.database import open_database
from ...teacher.ledger.ledger import Ledger
from ...teacher.ledger.state import LedgerState
from ...wall.datasets.config import DataConfig
from ...wall.errors import LedgerMismatch
from ..config.private_side import PrivateSide


def custodian_place(side: PrivateSide, run_dir: Path) -> Path:
    """The custodian's directory: the configuration's, beside own data, or beside the run folder."""
    return side.directory or place_of(side.data) or Path(f"{run_dir}.custodian")


def place_of(data: DataConfig) -> Path | None:
    """ROWS.custodian beside the private rows; None for published data sets."""
    rows = data.private or data.path
    if data.source not in ("folder", "arrays", "table") or not rows:
        return None
    path = Path(rows).resolve()
    return path.with_name(f"{path.name}.custodian")


def require_budget(side: PrivateSide, place: Path, say: Callable[[str], None]) -> None:
    """Raises LedgerMismatch where the budget of one's own records was begun with another plan.

    A directory or ledger that the configuration names is another budget, and the sum is said.
    """
    beside, budget = place_of(side.data), side.budget
    if beside is None:
        return
    named = side.ledger is not None or beside != place.resolve()
    try:
        if not open_database(beside / LEDGER).exists():
            return
        state = Ledger(beside / LEDGER, None if named else side.anchor_place).state
    except LedgerMismatch:
        if named:  # it needs its anchor
            return
        raise
    plan = state.plan
    assert plan is not None
    total = plan.epsilon + budget.epsilon
    if named:
        parts = f"epsilon {plan.epsilon:g} + {budget.epsilon:g}"
        say(f"two budgets for the same records: {parts} = {total:g}")
        return
    other = (plan.epsilon, plan.delta) != (budget.epsilon, budget.delta)
    if not other and side.plan_beside(plan) == plan:
        return  # other rows are refused where the directory is opened
    what = "" if other else " and other settings of mechanism, caps or rounds"
    began = f"the budget of these records was begun with epsilon {plan.epsilon:g} at delta "
    began += f"{plan.delta:g}{what} ({place})"
    if not state.spent:
        rule = "Nothing was released yet: remove that directory to fix another plan."
        raise LedgerMismatch(f"{began}. {rule}")
    again = f"--epsilon {plan.epsilon:g} --delta {plan.delta:g}" if other else "those settings"
    raise LedgerMismatch(
        f"{began}; epsilon {odometer_reading(state):g} of it is spent. Continue with {again}. "
        f"Another --custodian_dir opens another budget, and both add up: to {total:g}."
    )


def odometer_reading(state: LedgerState) -> float:
    """Of the epsilon that was spent, rounded up; no guarantee."""
    assert state.plan is not None
    # Another certificate may be smaller than the odometer's for all that the caps of the periods so
    # far allow, and hence for what was spent of it.
    begun = max((state.plan.period_of(slot) for slot, _ in state.spent), default=1)
    allowed = certified_epsilon(state.plan.up_to(begun))
    return round_up(min(odometer(state.plan, state.counts()), allowed))
