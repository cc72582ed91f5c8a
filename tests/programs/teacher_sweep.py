"""Kill a teacher with SIGKILL before every few statements of a release (kill_runner.py).

SCENARIO is a mechanism. With individual budgets another process may be at work on the same ledger,
and asks one of the same queries: it has reserved before the first statement, and draws and pays
"after" the kill, or "during" the first draw of the one that is killed.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from labelwall.teacher.accounting.plan import FULL
from labelwall.teacher.ledger.database import open_database
from labelwall.teacher.ledger.ledger import Ledger, Reservation
from labelwall.teacher.ledger.url import Place
from labelwall.teacher.mechanisms.batch import BATCH, RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import plan_of
from tests.postgres import audited, swept
from tests.programs import kill_runner
from tests.programs.kill_runner import is_finished, killed_before, sweep

MECHANISMS = {
    "private_knn": PrivateKnn(k=5, threshold=2, sigma_screen=2.0, sigma_vote=2.0, sample_rate=0.5),
    # One scale, hence one draw a batch.
    "radius": RadiusNeighbours(radius=0.5, epsilon=1.0, accounting="queries"),
    "ind_knn": IndKnn(threshold=0.2, sigma_label=0.3, sigma_count=3.0, rho=2.0),
}
SCENARIO, WHEN = (*sys.argv[4].split(), "")[:2]
MECHANISM, INDIVIDUAL = MECHANISMS[SCENARIO], SCENARIO == "ind_knn"
WATCHED = ["teacher.py", "charging.py", "ledger.py", "state.py"]
WATCHED += (
    ["ind_knn.py", "individual_budgets.py", "ledger_tables.py"]
    if INDIVIDUAL
    else ["votes.py", "batch.py", "base.py", "anchor.py"]
)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 3, 30)
ROWS, BATCH_SIZE = RNG.normal(size=(6, 4)).astype(np.float32), 2
ASKED, BESIDE = ROWS[:4], ROWS[[1, 5]]  # of this process, and of the other one


class Witness(kill_runner.Witness):
    """It notes a batch, which draws one Laplace release; and, of individual budgets, how many draws
    came before their batch's own reservation was on disk and without payments.

    ``first``: is called once, after the first note.
    """

    def __init__(self, folder: Path, place: Place, first: Callable[[], None]) -> None:
        super().__init__(folder / "notes")
        self._place, self._first, self._token = place, first, b""

    def watch(self, ledger: Ledger) -> Ledger:
        charge = ledger.charge_prepaid

        def noted(*arguments: Any) -> Reservation:
            reservation = charge(*arguments)
            self._token = reservation.token
            return reservation

        ledger.charge_prepaid = noted  # type: ignore[assignment]
        return ledger

    def note(self, release: str, count: int) -> None:
        if INDIVIDUAL:
            reserved = Ledger(self._place).individual_budgets.reserved.get(0, {})
            release, count = MECHANISM.stages[0], int(self._token not in reserved)
        super().note(release, count)
        self._first()
        self._first = nothing

    def _hear(self, law: str, _: float, keys: Sequence[str], release: str) -> None:
        if law == "discrete_laplace":
            self.note(BATCH, 1)
        super()._hear(law, _, keys, release)


def nothing() -> None:
    """What most teachers do at their first draw."""


def teach(
    folder: Path, socket: str, first: Callable[[], None] = nothing, name: str = ""
) -> Teacher:
    """Open, or create, a ledger and a teacher on it. ``name``: of the teacher's own directory."""
    (folder / name).mkdir(exist_ok=True)
    place, anchor = swept(folder, socket), folder / "anchor"
    if not open_database(place).exists():
        plan = plan_of(MECHANISM, 20)
        Ledger.create(place, dataset="d", plan=plan, unsafe=False, anchor=anchor)
    witness, records = Witness(folder, place, first), Records(X, Y, np.arange(30))
    ledger, noise = witness.watch(Ledger(place, anchor)), cast(Entropy, witness)
    teacher = Teacher(lambda: records, ledger, folder / name, 3, noise, batch_size=BATCH_SIZE)
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

    def is_answered(self, folder: Path, socket: str) -> bool:
        """Whether it comes to its end, now that it may, and asking again finds its answers."""
        os.write(self._tell, b"g")
        fine = os.waitpid(self._pid, 0)[1] == 0
        for end in (self._told, self._tell, self._heard):
            os.close(end)
        sent = json.loads((folder / "beside" / "sent").read_text()) if fine else None
        return sent == teach(folder, socket).answer(Queries(BESIDE)).labels.tolist()


def doomed(folder: Path, socket: str, point: int, first: Callable[[], None]) -> None:
    """Answer, and die before the ``point``-th statement; else write what was sent."""
    teacher = teach(folder, socket, first)
    with killed_before(point, "teacher", [*WATCHED, *(["database.py"] if socket else [])]):
        answers = teacher.answer(Queries(ASKED))
    (folder / "sent").write_text(json.dumps(answers.labels.tolist()))


def left(ledger: Ledger) -> np.ndarray:
    """What records may still pay, int64 [30]."""
    return (
        ledger.individual_budgets.remaining(0, np.arange(30)) if INDIVIDUAL else np.full(30, FULL)
    )


def examine(folder: Path, socket: str) -> dict[str, Any]:
    """What a kill left behind, and what the restarted teacher makes of it."""
    place, anchor = swept(folder, socket), folder / "anchor"
    ledger, problems = Ledger(place, anchor), audited(place, folder).problems
    drawn = dict.fromkeys(MECHANISM.stages, 0)
    for line in (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []:
        drawn[line.split()[0]] += int(line.split()[1])
    before = {key: dict(value) for key, value in ledger.state.results.items()}
    spent = dict.fromkeys(drawn, 0)
    if not INDIVIDUAL:
        spent = {name: ledger.state.spent.get((0, name), 0) for name in drawn}
    labels = teach(folder, socket).answer(Queries(ASKED)).labels.tolist()
    after = Ledger(place, anchor)
    results, budgets = after.state.results, (left(ledger), left(after))
    lost = [count for _, _, count in after.state.open_charges.values()]
    if INDIVIDUAL:
        lost = [1] * len(ledger.individual_budgets.reserved.get(0, {}))
    return {
        "problems": problems + audited(place, folder).problems,
        "paid": all(spent[name] >= drawn[name] for name in drawn),
        "kept": all(results[key].items() >= value.items() for key, value in before.items()),
        "in_range": bool((budgets[1] >= 0).all() and (budgets[1] <= budgets[0]).all())
        and bool((budgets[0] <= FULL).all()),
        "answered": len(before),
        "lost": sum(lost),  # paid, and never recorded
        "spent": int((FULL - budgets[1]).sum()),
        "sent": (folder / "sent").exists() and json.loads((folder / "sent").read_text()) == labels,
    }


def kill(folder: Path, point: int, socket: str, _: str) -> tuple[bool, dict]:
    company = Company(folder, socket) if WHEN else None
    first = company.go if company and WHEN == "during" else nothing
    finished = is_finished(lambda: doomed(folder, socket, point, first))
    beside = company is None or company.is_answered(folder, socket)
    return finished, {"beside": beside, **examine(folder, socket)}


if __name__ == "__main__":
    sweep(kill)
