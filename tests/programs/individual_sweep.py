"""Kill a teacher with individual budgets before every few statements of a release.

Another process may be at work on the same ledger, and asks one of the same queries. It has reserved
before the first statement, and draws and pays "after" the kill, or "during" the first draw of the
one that is killed (kill_runner.py).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.database import Place, open_database
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.transaction import Reservation
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.postgres import audited, swept
from tests.programs.kill_runner import is_finished, killed_before, sweep

WATCHED = (
    "teacher.py",
    "charging.py",
    "ind_knn.py",
    "ledger.py",
    "state.py",
    "individual_budgets.py",
    "tables.py",
)
MECHANISM = IndKnn(threshold=0.2, sigma_label=0.3, sigma_count=3.0, rho=2.0)
RNG = np.random.default_rng(0)
X, Y, ASKED = (
    RNG.normal(size=(30, 4)).astype(np.float32),
    RNG.integers(0, 3, 30),
    RNG.normal(size=(4, 4)).astype(np.float32),
)
BESIDE = np.concatenate([ASKED[1:2], RNG.normal(size=(1, 4)).astype(np.float32)])


class Witness(SystemEntropy):
    """The real entropy, noting durably, before it draws, whether its batch's own reservation is on
    disk and without payments.

    ``first``: is called once, after the first note.
    """

    def __init__(self, folder: Path, place: Place, first: Callable[[], None]) -> None:
        super().__init__()
        self._place, self._first, self._token = place, first, b""
        self._notes = os.open(folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def watch(self, ledger: Ledger) -> Ledger:
        charge = ledger.charge_prepaid

        def noted(*arguments: Any) -> Reservation:
            held = charge(*arguments)
            self._token = held.token
            return held

        ledger.charge_prepaid = noted
        return ledger

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        paid_for = self._token in Ledger(self._place).individual_budgets.reserved.get(0, {})
        os.write(self._notes, f"{release} {int(paid_for)}\n".encode())
        self._first()
        self._first = nothing
        return super().discrete_gaussian(sigma, keys, release, width)


def nothing() -> None:
    """What most teachers do at their first draw."""


def teach(
    folder: Path,
    socket: str,
    first: Callable[[], None] = nothing,
    name: str = "",
) -> Teacher:
    """Open, or create, a ledger and a teacher on it. ``socket``: of the server, empty for a file in
    ``folder``. ``name``: of the teacher's own directory in there."""
    (folder / name).mkdir(exist_ok=True)
    place, anchor = swept(folder, socket), folder / "anchor.json"
    plan = Plan(1e9, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(4, 4)),))
    if not open_database(place).exists():
        Ledger.create(place, dataset="d", plan=plan, unsafe=False, anchor=anchor)
    witness = Witness(folder, place, first)
    ledger = witness.watch(Ledger(place, anchor))
    held = Records(X, Y, np.arange(30))
    teacher = Teacher(lambda: held, ledger, folder / name, 3, witness, batch_size=2)
    teacher.use_extractor(ExtractorSpec("raw", (4,), 3))
    return teacher


class Company:
    """A process that has reserved, and waits in its first draw until it is told to ``go``; at its
    end it says so."""

    def __init__(self, folder: Path, socket: str) -> None:
        self._told, self._tell = os.pipe()
        self._heard, self._say = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            teacher = teach(folder, socket, self._halt, "beside")
            labels = teacher.answer(Queries(BESIDE)).labels.tolist()
            (folder / "beside" / "sent").write_text(json.dumps(labels))
            os.write(self._say, b"done")
            os._exit(0)
        os.close(self._say)
        assert os.read(self._heard, 8) == b"reserved"

    def _halt(self) -> None:
        os.write(self._say, b"reserved")
        os.read(self._told, 1)

    def go(self) -> None:
        """Let it draw and pay, and wait until it has."""
        os.write(self._tell, b"g")
        assert os.read(self._heard, 4) == b"done"

    def end(self) -> bool:
        """Whether it came to its end without an error, now that it may."""
        os.write(self._tell, b"g")
        fine = os.waitpid(self._pid, 0)[1] == 0
        for end in (self._told, self._tell, self._heard):
            os.close(end)
        return fine


def doomed(folder: Path, socket: str, point: int, first: Callable[[], None]) -> None:
    """Answer, and die before the ``point``-th statement; else write what was sent."""
    teacher = teach(folder, socket, first)
    watched = (*WATCHED, "database.py") if socket else WATCHED
    with killed_before(point, "teacher", watched):
        answers = teacher.answer(Queries(ASKED))
    (folder / "sent").write_text(json.dumps(answers.labels.tolist()))


def examine(folder: Path, socket: str) -> dict:
    """What a kill left behind, and what the restarted teacher makes of it."""
    place, anchor = swept(folder, socket), folder / "anchor.json"
    ledger, finding = Ledger(place, anchor), audited(place, folder)
    notes = (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []
    before, spent = (
        {key: dict(value) for key, value in ledger.state.results.items()},
        ledger.individual_budgets.remaining(0, np.arange(30)),
    )
    labels = teach(folder, socket).answer(Queries(ASKED)).labels.tolist()
    after = Ledger(place, anchor)
    left = after.individual_budgets.remaining(0, np.arange(30))
    return {
        "problems": finding.problems + audited(place, folder).problems,
        "reserved": all(note.endswith("1") for note in notes),
        "drawn": len(notes),
        "kept": all(
            after.state.results[key].items() >= value.items() for key, value in before.items()
        ),
        "answered": len(before),
        "open": len(ledger.individual_budgets.reserved.get(0, {})),
        "in_range": bool(
            (spent >= 0).all()
            and (left >= 0).all()
            and (left <= spent).all()
            and (spent <= FULL).all()
        ),
        "paid": int((FULL - left).sum()),
        "sent": (folder / "sent").exists() and json.loads((folder / "sent").read_text()) == labels,
    }


def examine_company(folder: Path, socket: str, company: Company) -> dict[str, bool]:
    """Whether the other process, which goes on, is answered, and asking again finds its answers."""
    if not company.end():
        return {"beside": False}
    labels = teach(folder, socket).answer(Queries(BESIDE)).labels.tolist()
    return {"beside": json.loads((folder / "beside" / "sent").read_text()) == labels}


def main(root: Path, stride: int, socket: str, when: str) -> None:
    """``when``: another process goes on, "after" or "during"; "" for none."""
    torch.set_num_threads(1)

    def kill(folder: Path, point: int) -> tuple[bool, dict]:
        company = Company(folder, socket) if when else None
        first = company.go if company and when == "during" else nothing
        finished = is_finished(lambda: doomed(folder, socket, point, first))
        findings = examine_company(folder, socket, company) if company else {}
        return finished, findings | examine(folder, socket)

    sweep(root, stride, kill)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
