"""Where a run goes on: the folder with its recorded configuration, and the budget of its records.

One's own data have one budget: its ledger lies where the private rows are, whose path is a public
fact. Another one is opened by an explicit --custodian_dir alone, since what both release adds up.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from ...teacher.accounting.accountant import certified_epsilon, odometer
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan
from ...teacher.custodian import IDENTITY, LEDGER
from ...teacher.ledger.database import open_database
from ...teacher.ledger.ledger import Ledger
from ...teacher.ledger.state import LedgerState
from ...wall.datasets.config import DataConfig
from ...wall.errors import LabelwallError, LedgerMismatch
from ...wall.files import FORMAT
from ..config.config import Config
from ..config.groups import BudgetConfig, PrivateSide
from ..config.settings import load_config
from .run_folder import RunFolder

SEEN = "private_files.json"  # of the custodian's directory: what the rows' files were like


def publishable(data: DataConfig) -> dict[str, object]:
    """The settings that say which rows there are."""
    return {key: value for key, value in asdict(data).items() if key != "download"}


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
    if side.ledger is not None or beside != place.resolve():
        with suppress(LedgerMismatch):  # where there is none, or it needs its anchor
            first = Ledger(beside / LEDGER).state.plan
            assert first is not None
            parts = f"epsilon {first.epsilon:g} + {budget.epsilon:g}"
            say(f"two budgets for the same records: {parts} = {first.epsilon + budget.epsilon:g}")
        return
    if not open_database(beside / LEDGER).exists():
        return
    state = Ledger(beside / LEDGER, side.anchor).state
    plan = state.plan
    assert plan is not None
    same = (plan.epsilon, plan.delta, plan.unit) == (budget.epsilon, budget.delta, side.unit)
    if not (same and _serves(place, side.data) and side.plan(plan) == plan):
        raise LedgerMismatch(_refusal(place, plan, state, budget))


def _serves(place: Path, data: DataConfig) -> bool:
    try:
        stored = json.loads((place / IDENTITY).read_bytes())
        return bool(stored["data"] == publishable(data))
    except (OSError, ValueError, TypeError, KeyError):
        return True  # opening the directory tells what is wrong with it


def _refusal(place: Path, plan: Plan, state: LedgerState, budget: BudgetConfig) -> str:
    other = (plan.epsilon, plan.delta) != (budget.epsilon, budget.delta)
    what = "" if other else " and other settings of rows, mechanism, caps or rounds"
    began = f"the budget of these records was begun with epsilon {plan.epsilon:g} at delta "
    began += f"{plan.delta:g}{what} ({place})"
    if not state.spent:
        return f"{began}. Nothing was released yet: remove that directory to fix another plan."
    reading = min(odometer(plan, state.counts()), certified_epsilon(plan))
    again = f"--epsilon {plan.epsilon:g} --delta {plan.delta:g}" if other else "those settings"
    total = plan.epsilon + budget.epsilon
    return (
        f"{began}; epsilon {round_up(reading):g} of it is spent. Continue with {again}. Another "
        f"--custodian_dir opens another budget, and both add up: to {total:g}."
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


# What may change between a run and its resumption.
NOT_IDENTITY = (
    "format",
    "threads",
    "workers",
    "batch_size",
    "device",
    "teacher",
    "expected_records",  # which decides nothing once a method is chosen
)


def resumed(config: Config, folder: RunFolder) -> Config:
    """With the numbers that the folder records, where ``config`` leaves them to the budget.

    Raises LabelwallError where another configuration is recorded.
    """
    config = decided(config, folder)
    if not folder.config.exists():
        return config
    if differing := _differing(config, folder):
        raise LabelwallError(
            f"{folder.path} holds a run with other settings ({', '.join(differing)}). Choose "
            "another --run_dir. Budgets of the same private records add up."
        )
    return config.as_given(load_config(folder.config))


def decided(config: Config, folder: RunFolder) -> Config:
    """With the method that the folder records, where ``config`` leaves it open.

    Before the run began, only where it was chosen for the same other settings.
    """
    if not config.open or not folder.choice.exists():
        return config
    known = load_config(folder.choice)
    chosen = config.chosen(known)
    same = _json(known) == _json(chosen) and known.expected_records == config.expected_records
    return chosen if same or folder.config.exists() else config


def record(config: Config, folder: RunFolder) -> None:
    """Create the folder and record the resolved configuration, where none is recorded."""
    folder.create()
    if not folder.config.exists():
        settings = json.loads(json.dumps({"format": FORMAT, **asdict(config)}))
        folder.write_text(folder.config, yaml.safe_dump(settings, sort_keys=False))


def _differing(config: Config, folder: RunFolder) -> list[str]:
    """Settings in which the recorded configuration is another."""
    known = load_config(folder.config)
    before, now = _json(known), _json(decided(config, folder).as_given(known))
    return [name for name in now if before[name] != now[name]]


def _json(config: Config) -> dict[str, Any]:
    """The settings that may not change."""
    settings = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in settings.items() if name not in NOT_IDENTITY}
