"""SIGKILL a service with per-analyst budgets at every step of a removal. Two analysts are at work,
the third has cached embeddings. Another service then opens the directory, and all teachers have to
agree, in memory and on disk."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.teacher import analysts
from labelwall.teacher.ledger.url import Place
from labelwall.teacher.records import embedding_cache as embeddings
from labelwall.teacher.records import record_updates as updates
from labelwall.teacher.records.embedding_cache import row_digests
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.guarantee import EACH
from tests.make import rows
from tests.postgres import swept
from tests.programs.kill_runner import forked, sweep
from tests.teacher.service import tiny

NAMES, LATE = ("ann", "bob"), "cat"
STEPS = (
    (updates, "remove"),
    (Teacher, "adopt"),
    (embeddings, "_forget"),
    (embeddings, "_save"),
    (analysts, "forget"),
)


def service(folder: Path, place: Place, names: tuple[str, ...]) -> tiny.Made:
    """A service whose analysts' teachers have embedded the records."""
    made = tiny.make(folder, adversary=EACH, place=place)
    for name in names:
        assert made.service.analysts is not None
        made.service.analysts.of(name).teacher.use_extractor(tiny.SPEC)
    return made


def serve_late(folder: Path, place: Place) -> None:
    """A service of an analyst who is not at work later."""
    service(folder, place, (LATE,))


def removing(folder: Path, place: Place, last: int) -> None:
    """Remove the record ``last`` and die before step ``last``, if there are so many."""
    made, taken = service(folder, place, NAMES), [0]

    def dying(work: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            taken[0] += 1
            if taken[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*arguments, **named)

        return step

    for owner, name in STEPS:
        setattr(owner, name, dying(getattr(owner, name)))
    assert made.service.analysts is not None
    made.service.analysts.remove(np.array([last]))


def examine(folder: Path, place: Place, identity: int) -> int:
    """0 if the record is present for all, 1 if it is gone for all and from all caches (which are
    read before any analyst asks again), else 2."""
    made = tiny.make(folder, adversary=EACH, place=place)
    whole = Records(
        rows(tiny.RECORDS, 0), np.arange(tiny.RECORDS) % tiny.CLASSES, np.arange(tiny.RECORDS)
    )
    digest = row_digests(whole)[identity]
    cached = []
    for path in folder.rglob("embeddings-*"):
        with np.load(path) as stored:
            cached.append(digest in {row.tobytes() for row in stored["digests"]})
    votes = []
    for name in (*NAMES, LATE):
        assert made.service.analysts is not None
        teacher = made.service.analysts.of(name).teacher
        teacher.use_extractor(tiny.SPEC)
        votes.append(identity in teacher._index.ids)
    if all(votes) and bool(made.service.teacher.present(np.array([identity])).all()):
        return 0
    return 2 if any(votes) or any(cached) or (folder / analysts.UNFINISHED).exists() else 1


def kill(own: Path, point: int, socket: str) -> tuple[bool, dict[str, int]]:
    """The point is a step, and the record's id; the service's folder is the same each time."""
    folder, place = own.parent, swept(own.parent, socket)
    if point == 1:  # an analyst who is not at work when a record is removed has embedded it
        assert forked(lambda: serve_late(folder, place)) == 0
    status = forked(lambda: removing(folder, place, point))
    gone = forked(lambda: examine(folder, place, point))
    return status != -signal.SIGKILL, {"status": status, "gone": gone}


if __name__ == "__main__":
    sweep(kill)
