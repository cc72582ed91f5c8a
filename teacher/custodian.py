"""The custodian's directory: the data set's identity, its ledger, private caches.

The ledger may lie on a server instead. The directory has mode 0700, and one process uses it at a
time.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..wall.errors import InvalidInput, LedgerMismatch
from ..wall.files import FORMAT, other_format, write_file
from ..wall.guarantee import POOLED
from .accounting.plan import Plan
from .ledger.anchor import Anchor
from .ledger.database import open_database
from .ledger.ledger import Ledger
from .ledger.url import LedgerUrl, Place
from .private_files import make_private, open_lock

LEDGER, IDENTITY, LOCK = "ledger.sqlite", "dataset.json", "lock"
Settings = Mapping[str, object]


@dataclass
class Custodian:
    """An opened custodian's directory, locked until ``close``.

    ``dataset``: a random UUID, the only name that a data set has in public.
    ``data``, ``anchor``, ``ledger_url``: as given to ``open_custodian``; ``plan``: the ledger's.
    """

    directory: Path
    dataset: str
    ledger: Ledger
    plan: Plan
    _lock: IO[str]
    data: Settings
    anchor: Place | None
    ledger_url: LedgerUrl | None

    def require_lock(self) -> None:
        """Raise LedgerMismatch where the lock's file was deleted: another process may be here."""
        if not _is_in_place(self._lock, self.directory):
            raise LedgerMismatch(
                f"the custodian's {LOCK} is gone, so another process may use the directory. "
                "Restart this one."
            )

    def close(self) -> None:
        self._lock.close()


def open_custodian(
    directory: Path,
    *,
    data: Settings,
    plan: Plan,
    unsafe: bool,
    anchor: Place | None = None,
    ledger_url: LedgerUrl | None = None,
    known_dataset: str | None = None,
    adversaries: Sequence[str] = (POOLED,),
    recorded: Callable[[Plan], Plan] | None = None,
) -> Custodian:
    """Open, or set up, the directory that answers for one data set.

    ``data``: where the rows are (publishable settings, absolute paths). ``plan``: the budget and
    what spends it. The first call fixes both.
    ``anchor``: the place of the ledger's anchor, if it has one.
    ``ledger_url``: the ledger's place; a file in the directory when None.
    ``known_dataset``: the data set that the caller expects the ledger to belong to.
    ``adversaries``: against whom the certificate may hold; a new ledger's holds against the first.
    ``recorded``: the caller's plan, from the one that a ledger has already; ``plan`` where None.

    Raises LedgerMismatch where the directory serves another data set, plan, entropy or adversary,
    or its ledger was lost, and InvalidInput where another process uses the directory, or nobody can
    write there.
    """
    make_private(directory)
    lock = _lock(directory)
    try:
        place: Place = ledger_url or directory / LEDGER
        if open_database(place).exists():
            ledger = Ledger(place, anchor)
        else:
            _require_unused(directory, anchor, known_dataset)
            names = {"dataset": str(uuid.uuid4()), "adversary": adversaries[0]}
            ledger = Ledger.create(place, plan=plan, unsafe=unsafe, anchor=anchor, **names)
        _check_identity(directory, data, ledger)
        if recorded is not None and ledger.state.plan is not None:
            plan = recorded(ledger.state.plan)
        plan = _checked_plan(ledger, plan, unsafe, known_dataset, adversaries)
    except BaseException:
        lock.close()
        raise
    return Custodian(directory, ledger.state.dataset, ledger, plan, lock, data, anchor, ledger_url)


def _require_unused(directory: Path, anchor: Place | None, known_dataset: str | None) -> None:
    """Raise LedgerMismatch where a ledger that does not exist was in use before."""
    if known_dataset or (directory / IDENTITY).exists() or (anchor and Anchor(anchor).exists()):
        raise LedgerMismatch(
            "the custodian's ledger is gone, but it was in use. Restore it; a new one would forget "
            "its releases."
        )


def _checked_plan(
    ledger: Ledger, plan: Plan, unsafe: bool, known_dataset: str | None, adversaries: Sequence[str]
) -> Plan:
    """The plan as the ledger has it, where that is the one given."""
    if known_dataset not in (None, ledger.state.dataset):
        raise LedgerMismatch(
            "the custodian's ledger belongs to another data set than expected. Choose another "
            "run_dir or custodian_dir."
        )
    begun = ledger.state.plan
    if begun is not None and begun.unit != plan.unit:
        raise LedgerMismatch(
            f"the ledger was begun for privacy.unit: {begun.unit}. Found {plan.unit!r}; use the "
            "unit that it was begun with, or another custodian_dir with its own budget."
        )
    if begun is None or begun != plan or ledger.state.unsafe != unsafe:
        raise LedgerMismatch(
            "the ledger was opened with another budget, mechanism, caps or rounds; a data set's "
            "plan is fixed before its first release. Use the recorded configuration (config.yaml "
            "of the run that began it), or another custodian_dir with its own budget."
        )
    if ledger.state.adversary not in adversaries:
        raise LedgerMismatch(
            f"the ledger's certificate holds against {ledger.state.adversary}; that is fixed "
            "before its first release. Use `service.budget` as it was, or another "
            "custodian_dir."
        )
    return begun


def _check_identity(folder: Path, data: Settings, ledger: Ledger) -> None:
    """Compare which rows the ledger answers for, or record it on first use.

    Paths count as they are, or as seen from the directory, since both may move together.

    The identity is written after the ledger. A crash between the two leaves a ledger without
    releases, and only such a ledger may be given an identity.
    """
    path, directory = folder / IDENTITY, str(folder.resolve())
    if path.exists():
        try:
            stored = {**json.loads(path.read_bytes())}
        except (ValueError, TypeError, RecursionError) as error:
            damaged = f"the custodian's {IDENTITY} is damaged. Restore it."
            raise LedgerMismatch(damaged) from error
        if other := other_format(f"the custodian's {IDENTITY}", stored.pop("format", None)):
            raise LedgerMismatch(other)
        recorded, before = stored.pop("data", None), str(stored.pop("directory", ""))
        moved = isinstance(recorded, dict) and _from(before, recorded) == _from(directory, data)
        if stored != {"dataset": ledger.state.dataset} or not (moved or recorded == {**data}):
            seen = _from(before, recorded) if isinstance(recorded, dict) else {}
            raise _other_rows(folder, seen, _from(directory, data), ledger)
        return
    if ledger.state.spent:
        raise LedgerMismatch(
            f"the custodian's {IDENTITY} is gone, so it is unknown which rows the ledger answers "
            "for. Restore it."
        )
    identity = {"format": FORMAT, "dataset": ledger.state.dataset}
    identity |= {"data": {**data}, "directory": directory}
    write_file(path, json.dumps(identity))


def _other_rows(folder: Path, before: Settings, data: Settings, ledger: Ledger) -> LedgerMismatch:
    """An error that says which settings of ``data`` differ from those ``before``, and what to do.

    Their paths are as seen from the directory, which may have moved with them.
    """
    names = [f"data.{name}" for name, value in data.items() if before.get(name) != value]
    began = f"the directory {folder} was begun for another data set"
    if not before or not names:
        return LedgerMismatch(f"{began}, or parts of it were replaced. Restore it.")
    began += f": {', '.join(names)} differ" + ("s" if len(names) == 1 else "")
    if ledger.state.spent or ledger.state.analysts:  # these have ledgers of their own
        return LedgerMismatch(f"{began}. Use its settings, or another custodian_dir for these.")
    rule = "remove that directory, and its anchor if there is one, to use these settings."
    return LedgerMismatch(f"{began}. Nothing was released yet: {rule}")


def _from(directory: str, data: Settings) -> Settings:
    """Settings with their paths as seen from a directory."""
    paths = {n: v for n, v in data.items() if isinstance(v, str) and os.path.isabs(v)}
    return {**data, **{name: os.path.relpath(path, directory) for name, path in paths.items()}}


def _lock(directory: Path) -> IO[str]:
    lock = open_lock(directory / LOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_in_place(lock, directory):
            raise BlockingIOError
    except OSError as error:
        lock.close()
        raise InvalidInput(
            "custodian_dir", "used by one process at a time", "another process at work"
        ) from error
    return lock


def _is_in_place(lock: IO[str], directory: Path) -> bool:
    """Whether a lock's file is the one in the directory: a deleted one excludes nobody."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.lstat(directory / LOCK))
    except FileNotFoundError:
        return False
