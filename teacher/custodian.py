"""The custodian's directory: the data set's identity, its ledger or the place of it, private caches. Mode 0700, one process at a
time."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.ledger.anchor import Anchor
from labelwall.teacher.ledger.database import Place, open_database
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.wall.adversary import POOLED
from labelwall.wall.errors import InvalidInput, LedgerMismatch

LEDGER, IDENTITY, LOCK = "ledger.sqlite", "dataset.json", "lock"


@dataclass
class Custodian:
    """An opened custodian's directory. Holds its lock until ``close``. ``data``, ``anchor``, ``ledger_url``: as it was opened."""

    directory: Path
    dataset: str  # random UUID, the only name a data set has in public
    ledger: Ledger
    _lock: IO[str]
    data: dict[str, object]
    anchor: Place | None
    ledger_url: LedgerUrl | None

    def close(self) -> None:
        self.ledger.close()
        self._lock.close()


def open_custodian(
    directory: Path,
    *,
    data: dict[str, object],
    plan: Plan,
    unsafe: bool,
    anchor: Place | None = None,
    ledger_url: LedgerUrl | None = None,
    known_dataset: str | None = None,
    new_dataset: Callable[[], str] = lambda: str(uuid.uuid4()),
    adversaries: Sequence[str] = (POOLED,),
) -> Custodian:
    """Open, or set up, the directory that answers for one data set.

    ``data``: how its rows are found (publishable settings); ``plan``: the budget and what spends it, fixed by the first call.
    ``ledger_url``: where the ledger lies; a file in the directory when None. ``anchor``: where its anchor lies, if it has one.
    ``known_dataset``: the data set a caller already holds a ledger of.
    ``adversaries``: against whom the ledger's certificate may hold; a new one's holds against the first of them.

    Raises LedgerMismatch where the directory serves another data set, plan, entropy or adversary, or its ledger was lost.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    lock = _lock(directory)
    try:
        place: Place = ledger_url or directory / LEDGER
        fresh = not open_database(place).exists()
        if fresh and (
            known_dataset or (directory / IDENTITY).exists() or (anchor and Anchor(anchor).exists())
        ):
            raise LedgerMismatch(
                "the custodian's ledger is gone, but it was in use. Restore it; a new one would forget its releases."
            )
        if fresh:
            ledger = Ledger.create(
                place,
                dataset=new_dataset(),
                plan=plan,
                unsafe=unsafe,
                anchor=anchor,
                adversary=adversaries[0],
            )
        else:
            ledger = Ledger(place, anchor)
        _check_identity(directory / IDENTITY, data, ledger)
        _check_plan(ledger, plan, unsafe, known_dataset)
        if ledger.state.adversary not in adversaries:
            raise LedgerMismatch(
                f"the ledger's certificate holds against {ledger.state.adversary}; that is fixed before its first release. Use "
                "`service.budget` as it was, or another custodian_dir."
            )
    except BaseException:
        lock.close()
        raise
    return Custodian(directory, ledger.state.dataset, ledger, lock, data, anchor, ledger_url)


def _check_plan(ledger: Ledger, plan: Plan, unsafe: bool, known_dataset: str | None) -> None:
    if known_dataset not in (None, ledger.state.dataset):
        raise LedgerMismatch(
            "the ledger that is known belongs to another data set. Choose another run_dir or custodian_dir."
        )
    if ledger.state.plan != plan or ledger.state.unsafe != unsafe:
        raise LedgerMismatch(
            "the ledger was opened with another budget, mechanism, caps or rounds; a data set's plan is fixed before its first "
            "release. Use the recorded configuration, or another custodian_dir with its own budget."
        )


def _check_identity(path: Path, data: dict[str, object], ledger: Ledger) -> None:
    """Compare, or on first use record, which rows the ledger answers for. Written after the ledger: a crash between leaves a
    ledger without releases, and only such a one may be given an identity."""
    if path.exists():
        stored = json.loads(path.read_text())
        if stored != {"dataset": ledger.state.dataset, "data": data}:
            raise LedgerMismatch(
                "the custodian's directory serves another data set than `data` names. Use one for each."
            )
        return
    if ledger.state.spent:
        raise LedgerMismatch(
            f"the custodian's {IDENTITY} is gone, so it is unknown which rows the ledger answers for. Restore it."
        )
    scratch = path.with_suffix(".part")
    with scratch.open("w") as file:
        json.dump({"dataset": ledger.state.dataset, "data": data}, file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _lock(directory: Path) -> IO[str]:
    lock = (directory / LOCK).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise InvalidInput(
            "custodian_dir", "used by one process at a time", "another process at work"
        ) from error
    return lock
