"""Kill a teacher with individual budgets before every few statements of a release, in forked children; one JSON line a kill.

Run in a process of its own, so that the forks start from a process without threads.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.database import Place, open_database
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.postgres import audited, rows, swept

WATCHED = (
    "teacher.py",
    "individual.py",
    "mechanism.py",
    "ledger.py",
    "state.py",
    "individual_budgets.py",
    "budgets_table.py",
)
MECHANISM = IndKnn(threshold=0.2, sigma_label=0.3, sigma_count=3.0, rho=2.0)
RNG = np.random.default_rng(0)
X, Y, ASKED = (
    RNG.normal(size=(30, 4)).astype(np.float32),
    RNG.integers(0, 3, 30),
    RNG.normal(size=(4, 4)).astype(np.float32),
)


def kinds(place: Place) -> list[str]:
    """Of the private table's rows as they are on disk."""
    return [kind for (kind,) in rows(place, "SELECT kind FROM private ORDER BY position")]


class Witness(SystemEntropy):
    """The real entropy, noting durably, before it draws, whether a reservation without payments is on disk."""

    def __init__(self, folder: Path, place: Place) -> None:
        self._place = place
        self._notes = os.open(folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        paid_for = kinds(self._place)[-1] == "reserve"
        os.write(self._notes, f"{release} {int(paid_for)}\n".encode())
        return super().discrete_gaussian(sigma, keys, release, width)


def teach(folder: Path, socket: str) -> Teacher:
    """Open, or create, a ledger and a teacher on it. ``socket``: of the server, empty for a file in ``folder``."""
    place, anchor = swept(folder, socket), folder / "anchor.json"
    plan = Plan(1e9, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(4, 4)),))
    if not open_database(place).exists():
        Ledger.create(place, dataset="d", plan=plan, unsafe=False, anchor=anchor)
    teacher = Teacher(
        lambda: Records(X, Y, np.arange(30)),
        Ledger(place, anchor),
        folder,
        3,
        Witness(folder, place),
        batch_size=2,
    )
    teacher.use_extractor(ExtractorSpec("raw", (4,), 3))
    return teacher


def doomed(folder: Path, socket: str, point: int) -> None:
    """Answer, and die before the ``point``-th statement; write what was sent if it comes that far."""
    teacher, count = teach(folder, socket), 0
    watched = (*WATCHED, "database.py") if socket else WATCHED

    def trace(frame: FrameType, event: str, _: object):  # type: ignore[no-untyped-def]
        nonlocal count
        if (
            Path(frame.f_code.co_filename).name not in watched
            or "teacher" not in frame.f_code.co_filename
        ):
            return None
        if event == "line":
            count += 1
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    answers = teacher.answer(Queries(ASKED))
    sys.settrace(None)
    (folder / "sent").write_text(json.dumps(answers.labels.tolist()))


def examine(folder: Path, socket: str) -> dict:  # type: ignore[type-arg]
    """What a kill left behind, and what the restarted teacher makes of it."""
    place, anchor = swept(folder, socket), folder / "anchor.json"
    ledger, finding = Ledger(place, anchor), audited(place, folder)
    notes = (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
    before, spent = (
        {key: dict(value) for key, value in ledger.state.results.items()},
        ledger.accounts.left(0, np.arange(30)),
    )
    labels = teach(folder, socket).answer(Queries(ASKED)).labels.tolist()
    after = Ledger(place, anchor)
    left = after.accounts.left(0, np.arange(30))
    return {
        "problems": finding.problems + audited(place, folder).problems,
        "reserved": all(note.endswith("1") for note in notes),
        "drawn": len(notes),
        "kept": all(
            after.state.results[key].items() >= value.items() for key, value in before.items()
        ),
        "answered": len(before),
        "open": kinds(place).count("reserve") - kinds(place).count("pay"),
        "in_range": bool(
            (spent >= 0).all()
            and (left >= 0).all()
            and (left <= spent).all()
            and (spent <= FULL).all()
        ),
        "paid": int((FULL - left).sum()),
        "sent": (folder / "sent").exists() and json.loads((folder / "sent").read_text()) == labels,
    }


def main(root: Path, stride: int, socket: str) -> None:
    torch.set_num_threads(1)
    point, finished = 1, False
    while not finished:
        folder = root / str(point)
        folder.mkdir()
        child = os.fork()
        if child == 0:
            doomed(folder, socket, point)
            os._exit(0)
        finished = os.waitpid(child, 0)[1] == 0
        print(
            json.dumps({"point": point, "finished": finished, **examine(folder, socket)}),
            flush=True,
        )
        point += stride


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
