"""One budget for one's own data: its ledger is found by where the private rows are.

The place is a public fact, the path as given. A second budget for the same records is opened by an
explicit option alone, since what both release adds up.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ...teacher.accounting.accountant import certified_epsilon, odometer
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan
from ...teacher.custodian import IDENTITY, LEDGER
from ...teacher.ledger.database import open_database
from ...teacher.ledger.ledger import Ledger
from ...wall.datasets.sources import DataConfig
from ...wall.errors import InvalidInput, LedgerMismatch
from ..config.config import Config

OPTION = "second_budget"
SEEN = "private_files.json"  # of the custodian's directory: what the rows' files were like


def publishable(data: DataConfig) -> dict[str, object]:
    """The settings that say which rows there are."""
    return {key: value for key, value in asdict(data).items() if key != "download"}


def custodian_place(config: Config, run_dir: Path) -> Path:
    """The custodian's directory: the configuration's, beside own data, or beside the run folder."""
    if config.custodian_dir:
        return Path(config.custodian_dir)
    return place_of(config.data) or Path(f"{run_dir}.custodian")


def place_of(data: DataConfig) -> Path | None:
    """ROWS.custodian beside the private rows; None for published data sets."""
    rows = data.private or data.path
    if data.source not in ("folder", "arrays", "table") or not rows:
        return None
    path = Path(rows).resolve()
    return path.with_name(f"{path.name}.custodian")


@dataclass(frozen=True)
class Begun:
    """A budget that was begun. ``same``: whether it is the configuration's."""

    place: Path
    plan: Plan
    reading: float
    released: bool
    same: bool


def budget_place(
    config: Config, run_dir: Path, second: bool, apart: bool, say: Callable[[str], None]
) -> Path:
    """``custodian_place``, or another one where a ``second`` budget is wanted; tells their sum.

    ``apart``: the teacher is another process, which alone looks into the directory.
    Raises LedgerMismatch where the rows' budget was begun with another plan.
    """
    place = custodian_place(config, run_dir)
    if apart or config.custodian_dir or config.ledger or place_of(config.data) is None:
        if second:
            rule = "given for one's own data alone, without custodian_dir, ledger, teacher, isolate"
            raise InvalidInput(OPTION, rule, True)
        return place
    numbered = (place.with_name(f"{place.name}-{number}") for number in itertools.count(2))
    places = itertools.chain([place], numbered)
    begun = [
        _begun(config, known)
        for known in itertools.takewhile(lambda at: open_database(at / LEDGER).exists(), places)
    ]
    if begun and not second and not begun[0].same:
        raise LedgerMismatch(_refusal(begun[0], config))
    chosen = begun[:1] if not second else [entry for entry in begun if entry.same]
    plans = [entry.plan.epsilon for entry in begun]
    if not chosen:
        number = len(begun) + 1
        place = place if number == 1 else place.with_name(f"{place.name}-{number}")
        plans.append(config.budget.epsilon)
    if len(plans) > 1:
        parts = " + ".join(f"{epsilon:g}" for epsilon in plans)
        say(f"{len(plans)} budgets for the same records: epsilon {parts} = {sum(plans):g} in all")
    return chosen[0].place if chosen else place


def _begun(config: Config, place: Path) -> Begun:
    state = Ledger(place / LEDGER, config.anchor_place()).state
    plan, budget = state.plan, config.budget
    assert plan is not None
    same = (plan.epsilon, plan.delta) == (budget.epsilon, budget.delta)
    same = same and plan.unit == config.privacy.unit and _serves(place, config.data)
    if same and not config.open:
        same = config.recorded(plan).plan() == plan
    reading = min(odometer(plan, state.counts()), certified_epsilon(plan))
    return Begun(place, plan, reading, bool(state.spent), same)


def _serves(place: Path, data: DataConfig) -> bool:
    try:
        stored = json.loads((place / IDENTITY).read_bytes())
        return bool(stored["data"] == publishable(data))
    except (OSError, ValueError, TypeError, KeyError):
        return True  # opening the directory tells what is wrong with it


def _refusal(begun: Begun, config: Config) -> str:
    known, budget = begun.plan, config.budget
    other = (known.epsilon, known.delta) != (budget.epsilon, budget.delta)
    what = "" if other else " and other settings of rows, mechanism, caps or rounds"
    began = f"the budget of these records was begun with epsilon {known.epsilon:g} at delta "
    began += f"{known.delta:g}{what} ({begun.place})"
    if not begun.released:
        return f"{began}. Nothing was released yet: remove that directory to fix another plan."
    again = f"--epsilon {known.epsilon:g} --delta {known.delta:g}" if other else "those settings"
    total = known.epsilon + budget.epsilon
    return (
        f"{began}; epsilon {round_up(begun.reading):g} of it is spent. Continue with {again}. "
        f"--{OPTION} opens another budget, and both add up: to {total:g}."
    )


def tell_changed_files(data: DataConfig, directory: Path, say: Callable[[str], None]) -> None:
    """Say where the private rows' file is another than when this was last called.

    Its size and time are for the custodian's eyes, as the directory is.
    """
    rows = data.private or data.path
    if place_of(data) is None or not rows or not Path(rows).exists():
        return
    paths = [Path(rows), *Path(rows).rglob("*")] if Path(rows).is_dir() else [Path(rows)]
    facts = [path.lstat() for path in paths]
    seen = [len(facts), sum(fact.st_size for fact in facts), max(f.st_mtime_ns for f in facts)]
    record = directory / SEEN
    if record.exists() and record.read_text() != json.dumps(seen):
        say(
            "the private files changed since the last run. Answers that were released before "
            "stay those of the earlier rows; only what is left of the budget sees the new ones."
        )
    record.write_text(json.dumps(seen))
