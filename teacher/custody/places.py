"""The place of the budget of a run's records, and whether it is this run's.

One's own data have one budget: its ledger lies where the private rows are, whose path is a public
fact. Another one is opened by an explicit --custodian_dir alone, since what both release adds up.
"""

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...wall.datasets.data_config import DataConfig
from ...wall.datasets.image_labels import BY_PATH, by_folders
from ...wall.errors import InvalidInput, LedgerMismatch, MissingData
from ...wall.files import ROWS, write_file
from ..custodian import LEDGER, LOCK
from ..ledger.database import open_database
from ..ledger.ledger import Ledger
from ..private_files import make_private
from ..records.private_records import require_columns, table_columns
from ..records.source import require_form
from .private_settings import PrivateSide
from .recorded import odometer_reading, plan_beside

BUDGETS = "budgets.json"  # of the directory beside the rows


def beside_rows(side: PrivateSide) -> PrivateSide:
    """With the directory beside one's own rows, if the settings name none."""
    place = side.directory or place_of(side.data)
    return replace(side, custodian_dir=None if place is None else str(place))


def place_of(data: DataConfig) -> Path | None:
    """ROWS.custodian beside the private rows, or the directory that keeps rows that a program had
    in memory; None for published data sets.
    """
    rows = data.private or data.path
    if data.source not in ("folder", "arrays", "table") or not rows:
        return None
    path = Path(rows).resolve()
    in_memory = next((p.parent for p in (path, path.parent) if p.name == ROWS), None)
    if in_memory is not None and (in_memory / LOCK).exists():
        return in_memory
    return path.with_name(f"{path.name}.custodian")


def identity(data: DataConfig) -> dict[str, Any]:
    """Which rows a directory answers for: links and dots in paths make no other data set.

    Where folders name persons, PUBLIC files tell which folder does: with other ones all rows would
    be of other persons.
    """
    settings = asdict(data)
    del settings["download"], settings["group"]
    if data.source == "folder" and data.person == BY_PATH:
        settings["labels_by_folders"] = by_folders(data)
    places = {name: place for name, place in {**data.places, "path": data.path}.items() if place}
    return settings | {name: str(Path(path).resolve()) for name, path in places.items()}


def budgets_of(beside: Path) -> dict[str, list[float]]:
    """(epsilon, delta) of each directory or ledger that was opened for one's own records, by name,
    as seen from where the records lie.
    """
    path = beside / BUDGETS
    return dict(json.loads(path.read_text())) if path.exists() else {}


def tell_budgets(side: PrivateSide, warn: Callable[[str], None]) -> None:
    """Note the budget of one's own records, and say the sum where others were opened."""
    assert side.directory is not None
    if (beside := place_of(side.data)) is None:
        return
    name = side.ledger or os.path.relpath(side.directory.resolve(), beside)
    own = {name: [side.budget.epsilon, side.budget.delta]}
    budgets = budgets_of(beside) | own
    with suppress(InvalidInput), ExitStack() as stack:  # of rows that can not be written beside
        make_private(beside)
        folder = os.open(beside, os.O_RDONLY)
        stack.callback(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_EX)  # commands that begin together are all in the sum
        budgets = budgets_of(beside) | own
        write_file(beside / BUDGETS, json.dumps(budgets))
    if len(budgets) > 1:
        epsilons, deltas = zip(*budgets.values(), strict=True)
        parts = f"epsilon {' + '.join(f'{e:g}' for e in epsilons)} = {sum(epsilons):g}"
        parts += f" at delta {sum(deltas):g} ({beside / BUDGETS})"
        warn(f"{len(budgets)} budgets for the same records add up: {parts}")


def require_there(data: DataConfig) -> None:
    """Raise MissingData if nothing is where the private rows are to be.

    InvalidInput if their table lacks a column that public rows have, the label, or the named column
    of ids or of persons. The names of its columns are public.
    """
    place, images = data.private, data.source == "folder"
    if place is not None and not (Path(place).is_dir() if images else Path(place).exists()):
        rule = "an existing file or folder"
        if images:
            rule = "an existing folder, with a folder of images for each class"
        raise MissingData(f"`data.private` must be {rule}. Found {place!r}.")
    if data.source == "table":
        require_columns(data, table_columns(data))
    require_form(data)


def require_budget(side: PrivateSide) -> None:
    """Raises LedgerMismatch where the budget of one's own records was begun with another plan."""
    beside, directory, budget = place_of(side.data), side.directory, side.budget
    assert directory is not None
    if side.ledger is not None or beside != directory.resolve():
        return
    if not open_database(directory / LEDGER).exists():
        return
    state = Ledger(directory / LEDGER, side.anchor_place).state
    plan = state.plan
    assert plan is not None
    other = (plan.epsilon, plan.delta) != (budget.epsilon, budget.delta)
    if not other and plan_beside(side.schedule, plan) == plan:
        return  # other rows are refused where the directory is opened
    what = "" if other else " and other settings of mechanism, caps or rounds"
    began = f"the budget of these records was begun with epsilon {plan.epsilon:g} at delta "
    began += f"{plan.delta:g}{what} ({directory})"
    if state.analysts:
        raise LedgerMismatch(
            f"{began}, for {len(state.analysts)} analysts with a budget each. Continue with those "
            "settings; another --custodian_dir opens other budgets, which add up."
        )
    if not state.spent:
        rule = "Nothing was released yet: remove that directory to fix another plan."
        raise LedgerMismatch(f"{began}. {rule}")
    again = f"--epsilon {plan.epsilon:g} --delta {plan.delta:g}" if other else "those settings"
    total = sum(epsilon for epsilon, _ in budgets_of(directory).values()) + budget.epsilon
    raise LedgerMismatch(
        f"{began}; epsilon {odometer_reading(state):g} of it is spent. Continue with {again}. "
        f"Another --custodian_dir opens another budget, and all add up: to {total:g}."
    )
