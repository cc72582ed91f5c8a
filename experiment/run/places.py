"""Where a run goes on: the folder with its recorded configuration, and the budget of its records.

One's own data have one budget: its ledger lies where the private rows are, whose path is a public
fact. Another one is opened by an explicit --custodian_dir alone, since what both release adds up.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from ...teacher.accounting.accountant import certified_epsilon, odometer
from ...teacher.accounting.conversion import round_up
from ...teacher.custodian import IDENTITY, LEDGER
from ...teacher.ledger.database import open_database
from ...teacher.ledger.ledger import Ledger
from ...wall.datasets.config import DataConfig
from ...wall.errors import LabelwallError, LedgerMismatch
from ...wall.files import FORMAT
from ..config.config import Config
from ..config.groups import PrivateSide
from ..config.settings import load_config
from .run_folder import RunFolder, write_file

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
    named = side.ledger is not None or beside != place.resolve()
    try:
        if not open_database(beside / LEDGER).exists():
            return
        state = Ledger(beside / LEDGER, None if named else side.anchor).state
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
    same = not other and plan.unit == side.unit and _serves(place, side.data)
    if same and side.plan(plan) == plan:
        return
    what = "" if other else " and other settings of rows, mechanism, caps or rounds"
    began = f"the budget of these records was begun with epsilon {plan.epsilon:g} at delta "
    began += f"{plan.delta:g}{what} ({place})"
    if not state.spent:
        rule = "Nothing was released yet: remove that directory to fix another plan."
        raise LedgerMismatch(f"{began}. {rule}")
    reading = min(odometer(plan, state.counts()), certified_epsilon(plan))
    again = f"--epsilon {plan.epsilon:g} --delta {plan.delta:g}" if other else "those settings"
    raise LedgerMismatch(
        f"{began}; epsilon {round_up(reading):g} of it is spent. Continue with {again}. Another "
        f"--custodian_dir opens another budget, and both add up: to {total:g}."
    )


def _serves(place: Path, data: DataConfig) -> bool:
    try:
        return bool(json.loads((place / IDENTITY).read_bytes())["data"] == publishable(data))
    except (OSError, ValueError, TypeError, KeyError):
        return True  # opening the directory tells what is wrong with it


def tell_changed_files(data: DataConfig, directory: Path, say: Callable[[str], None]) -> None:
    """Say where the private rows' file is another than when this was last called.

    Its size and time are for the custodian's eyes, as the directory is.
    """
    rows = Path(data.private or data.path or "")
    if place_of(data) is None or not rows.exists():
        return
    facts = [path.lstat() for path in (rows, *(rows.rglob("*") if rows.is_dir() else ()))]
    seen = [len(facts), sum(fact.st_size for fact in facts), max(f.st_mtime_ns for f in facts)]
    record = directory / SEEN
    if record.exists() and record.read_text() != json.dumps(seen):
        say(
            "the private files changed since the last run. Answers that were released before "
            "stay those of the earlier rows; only what is left of the budget sees the new ones."
        )
    record.write_text(json.dumps(seen))


# What may change between a run and its resumption.
NOT_IDENTITY = {"threads", "workers", "batch_size", "device", "teacher"}
NOT_IDENTITY |= {"expected_records"}  # which decides nothing once a method is chosen


def resumed(config: Config, folder: RunFolder) -> Config:
    """With the method and the numbers that the folder records, where ``config`` leaves them open.

    Raises LabelwallError where another configuration is recorded.
    """
    config = decided(config, folder)
    if not folder.config.exists():
        return config
    known = load_config(folder.config)
    config = config.recorded(known)
    before, now = _json(known), _json(config)
    if differing := [name for name in now if before[name] != now[name]]:
        raise LabelwallError(
            f"{folder.path} holds a run with other settings ({', '.join(differing)}). Choose "
            "another --run_dir. Budgets of the same private records add up."
        )
    return config


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
        write_file(folder.config, yaml.safe_dump(settings, sort_keys=False))


def _json(config: Config) -> dict[str, Any]:
    """The settings that may not change."""
    settings = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in settings.items() if name not in NOT_IDENTITY}
