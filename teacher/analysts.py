"""A budget for each analyst over the same records: a ledger each, listed in a register.

The weaker adversary of UAI23's introduction: analysts who keep their answers to themselves may each be answered as if alone. Then
nothing that one of them was told may reach another. So each has a directory of the own below the custodian's: ledger, stored
answers, individual budgets, embeddings, shards. What they share is the records, which are nobody's answer. The custodian's own
directory holds the register: who has a ledger, and which records came or went, for all of them in one transaction.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from labelwall.teacher.custodian import Custodian, open_custodian
from labelwall.teacher.features.cache import forget
from labelwall.teacher.ledger.database import Place
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.teacher.mechanisms.pate.cnn_ensemble import forget_classifiers
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.adversary import single_analyst
from labelwall.wall.errors import LedgerMismatch

FOLDER, UNFINISHED = "analysts", "removing"
DIGITS = 16  # of a directory's or a schema's name: 64 bits of a hash of the analyst's


def open_analyst(register: Custodian, name: str) -> Custodian:
    """Open, or set up, an analyst's own ledger and directory.

    The ledger is made before it is entered in the register, and is charged only afterwards: a crash between leaves one without
    entries, which is entered when it is opened again.

    Raises LedgerMismatch for a register that can not be read, for a ledger that it lists and that is gone or another one, and for
    one with entries that it does not list.
    """
    known, state = register.ledger.analysts().get(name), register.ledger.state
    assert state.plan is not None
    place, url, anchor = _place(name), register.ledger_url, register.anchor
    mine = open_custodian(
        register.directory / FOLDER / place,
        data=register.data,
        plan=state.plan,
        unsafe=state.unsafe,
        anchor=anchor and _beside(anchor, place),
        ledger_url=url and _schema(url, place),
        known_dataset=known,
        adversaries=[single_analyst(name)],
    )
    try:
        if known is None and mine.ledger.state.seq > 0:
            raise LedgerMismatch(
                f"the ledger of {name} is in use, but the register does not list it. Restore the newest register."
            )
        if known is None:
            register.ledger.enter_analyst(name, mine.dataset)
    except BaseException:
        mine.close()
        raise
    return mine


def _place(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:DIGITS]


def _beside(anchor: Place, place: str) -> Place:
    """The anchor of an analyst's own ledger. One for each: their ledgers go on without waiting for each other."""
    return (
        _schema(anchor, place)
        if isinstance(anchor, LedgerUrl)
        else anchor.with_name(f"{anchor.name}.{place}")
    )


def _schema(url: LedgerUrl, place: str) -> LedgerUrl:
    return replace(url, schema=f"{url.schema}_{place}")


def _nobody() -> None:
    """There is no analyst's teacher at work."""


def remove_for_all(
    teacher: Teacher,
    directory: Path,
    ids: np.ndarray,
    *,
    in_use: Sequence[Path] = (),
    renew: Callable[[], None] = _nobody,
) -> None:
    """Records (int64 [n] ids) that vote for no analyst again: in one transaction, then from what caches hold of them.

    ``teacher``: over the custodian's ``directory``; ``renew``: lets analysts' teachers hold what it holds, who see to their
    directories, ``in_use``. Until all is done the directory says so; ``finish_removing`` completes what was cut short, or the
    same call again.
    """
    with _unfinished(directory):
        teacher.remove(ids)
        renew()
        _forget(directory, teacher.held(), in_use)


def finish_removing(teacher: Teacher, directory: Path) -> None:
    """At the start: what a removal left undone that was cut short, if one was."""
    if (directory / UNFINISHED).exists():
        with _unfinished(directory):
            _forget(directory, teacher.held(), ())


@contextmanager
def _unfinished(directory: Path) -> Iterator[None]:
    mark = directory / UNFINISHED
    with mark.open("w") as file:
        os.fsync(file.fileno())
    yield
    mark.unlink()


def _forget(directory: Path, records: Records, in_use: Sequence[Path]) -> None:
    closed = [place for place in sorted((directory / FOLDER).glob("*")) if place not in in_use]
    forget(records, *closed)
    for place in closed:
        forget_classifiers(place)
