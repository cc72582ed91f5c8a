"""Kill a teacher with SIGKILL before every statement of a release (kill_runner.py)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.database import open_database
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.batch import BATCH, RadiusNeighbours
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.postgres import audited, swept
from tests.programs.kill_runner import Witness, is_finished, killed_before, sweep

ANCHOR = ("anchor.py", "transaction.py", "anchor_store.py")
WATCHED = (
    "teacher.py",
    "charging.py",
    "ledger.py",
    "state.py",
    "private_knn.py",
    "votes.py",
    "batch.py",
    "base.py",
    *ANCHOR,
)
MECHANISMS = {
    "private_knn": PrivateKnn(
        k=5, threshold=2, sigma_screen=2.0, sigma_vote=2.0, sampling_probability=0.5
    ),
    # One scale, hence one draw a batch.
    "radius": RadiusNeighbours(radius=0.5, epsilon=1.0, accounting="queries"),
}
MECHANISM = MECHANISMS[sys.argv[4]]
RNG = np.random.default_rng(0)
X, Y, ASKED = (
    RNG.normal(size=(30, 4)).astype(np.float32),
    RNG.integers(0, 3, 30),
    RNG.normal(size=(6, 4)).astype(np.float32),
)


class BatchWitness(Witness):
    """It also notes a batch, which draws one Laplace release."""

    def discrete_laplace(
        self, scale: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self.note(BATCH, 1)
        return super().discrete_laplace(scale, keys, release, width)


def teach(folder: Path, socket: str) -> Teacher:
    """Open or create a ledger and a teacher on it. ``socket``: empty for a file in ``folder``."""
    place, anchor = swept(folder, socket), folder / "anchor.json"
    plan = Plan(1e9, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(20, 20)),))
    if not open_database(place).exists():
        Ledger.create(place, dataset="d", plan=plan, unsafe=False, anchor=anchor)
    teacher = Teacher(
        lambda: Records(X, Y, np.arange(30)),
        Ledger(place, anchor),
        folder,
        3,
        BatchWitness(folder / "notes"),
        batch_size=3,
    )
    teacher.use_extractor(ExtractorSpec("raw", (4,), 3))
    return teacher


def doomed(folder: Path, socket: str, point: int) -> None:
    """Answer, and die before the ``point``-th statement; else write what was sent."""
    teacher = teach(folder, socket)
    watched = (*WATCHED, "database.py") if socket else WATCHED
    with killed_before(point, "teacher", watched):
        answers = teacher.answer(Queries(ASKED))
    (folder / "sent").write_text(json.dumps(answers.labels.tolist()))


def examine(folder: Path, socket: str) -> dict:
    """What a kill left behind, and what the restarted teacher makes of it."""
    place, anchor = swept(folder, socket), folder / "anchor.json"
    state, finding = Ledger(place, anchor).state, audited(place, folder)
    drawn = dict.fromkeys(MECHANISM.stages, 0)
    for line in (folder / "notes").read_text().splitlines() if (folder / "notes").exists() else []:
        drawn[line.split()[0]] += int(line.split()[1])
    before = {key: dict(value) for key, value in state.results.items()}
    spent = {name: state.spent.get((0, name), 0) for name in drawn}
    resumed = teach(folder, socket)
    labels = resumed.answer(Queries(ASKED)).labels.tolist()
    after = Ledger(place, anchor).state
    return {
        "problems": finding.problems,
        "paid": all(spent[name] >= drawn[name] for name in drawn),
        "kept": all(after.results[key].items() >= value.items() for key, value in before.items()),
        # Paid, and never recorded.
        "double": sum(count for _, _, count in after.open_charges.values()),
        "sent": (folder / "sent").exists() and json.loads((folder / "sent").read_text()) == labels,
        "audit_after": audited(place, folder).problems,
    }


def main(root: Path, stride: int, socket: str) -> None:
    torch.set_num_threads(1)

    def kill(folder: Path, point: int) -> tuple[bool, dict]:
        return is_finished(lambda: doomed(folder, socket, point)), examine(folder, socket)

    sweep(root, stride, kill)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
