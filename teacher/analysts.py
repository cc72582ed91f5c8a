"""A budget for each analyst over the same records: one ledger each, listed in a register.

The weaker adversary of UAI23's introduction: analysts who do not share their answers may each be
answered as if there were no other. Then nothing that one of them was told may reach another. So
each analyst has a directory below the custodian's, with a ledger, stored answers, individual
budgets, embeddings and shards. They share only the records, which are nobody's answer. The
custodian's directory contains the register: which analysts have a ledger, and which records were
added or removed, for all of them in one transaction.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..wall.errors import LedgerMismatch
from ..wall.guarantee import single_analyst
from .custodian import Custodian, open_custodian
from .ledger.url import LedgerUrl, Place
from .records.embedding_cache import forget
from .teacher import Teacher

FOLDER, UNFINISHED = "analysts", "removing"
DIGITS = 16  # of a directory's or a schema's name: 64 bits of a hash of the analyst's name


def open_analyst(register: Custodian, name: str) -> Custodian:
    """Open, or set up, an analyst's own ledger and directory.

    The ledger is created before it is entered in the register, and charged only afterwards: one
    that a crash left out is entered when it is opened again. Raises LedgerMismatch for a register
    that can not be read, for a listed ledger that is gone or replaced, and for a ledger in use that
    the register does not list.
    """
    listed = register.ledger.analysts().get(name)
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGITS]
    url, anchor = register.ledger_url, register.anchor
    mine = open_custodian(
        register.directory / FOLDER / digest,
        data=register.data,
        plan=register.plan,
        unsafe=register.ledger.state.unsafe,
        anchor=anchor and _beside(anchor, digest),
        ledger_url=url and _schema(url, digest),
        known_dataset=listed,
        adversaries=[single_analyst(name)],
    )
    try:
        if listed is None and mine.ledger.state.seq > 0:
            raise LedgerMismatch(
                f"the ledger of {name} is in use, but the register does not list it. Restore the "
                "newest register."
            )
        if listed is None:
            register.ledger.enter_analyst(name, mine.dataset)
    except BaseException:
        mine.close()
        raise
    return mine


def _beside(anchor: Place, digest: str) -> Place:
    """The anchor of one analyst's ledger. With one each, no ledger waits for another's lock."""
    if isinstance(anchor, LedgerUrl):
        return _schema(anchor, digest)
    return anchor.with_name(f"{anchor.name}.{digest}")


def _schema(url: LedgerUrl, digest: str) -> LedgerUrl:
    return replace(url, schema=f"{url.schema}_{digest}")


def remove_for_all(
    teacher: Teacher,
    directory: Path,
    ids: np.ndarray,
    *,
    in_use: Sequence[Path] = (),
    renew: Callable[[], None] = lambda: None,
) -> None:
    """Remove records (int64 [n] ids) for all analysts: in one transaction, then from the caches.

    ``teacher``: over the custodian's ``directory``. ``renew``: gives its records to the analysts'
    open teachers, which clean their own directories, ``in_use``. A file marks an unfinished
    removal; ``finish_removing``, or the same call again, completes it.
    """
    with (directory / UNFINISHED).open("w") as mark:
        os.fsync(mark.fileno())
    teacher.remove(ids)
    renew()
    finish_removing(teacher, directory, in_use)


def finish_removing(teacher: Teacher, directory: Path, in_use: Sequence[Path] = ()) -> None:
    """Complete an interrupted removal, if there is one. For the start of a process."""
    if (directory / UNFINISHED).exists():
        closed = [place for place in (directory / FOLDER).glob("*") if place not in in_use]
        forget(teacher.records(), *closed)
        (directory / UNFINISHED).unlink()
