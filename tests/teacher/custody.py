"""A teacher over a handful of raw vectors, of any teacher class, with any entropy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.private_knn import PrivateKnn
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec, Queries

LEDGER = "ledger.sqlite"
Make = Callable[..., Teacher]  # a Teacher class


def build(
    make: Make,
    directory: Path,
    rows: np.ndarray,
    labels: np.ndarray,
    mechanism: PrivateKnn,
    *,
    asked: int,
    answered: int,
    entropy: Entropy | None = None,
) -> Teacher:
    """A teacher of two classes in a new directory. ``rows``: float32 [n, 2]; ids end at -1, so a
    new first row is a new id.
    """
    directory.mkdir()
    plan = plan_of(mechanism, asked, answered)
    ledger = Ledger.create(directory / LEDGER, dataset="d", plan=plan, unsafe=False)
    ids = np.arange(len(rows)) - len(rows)
    teacher = make(
        lambda: Records(rows, labels, ids),
        ledger,
        directory,
        2,
        entropy or SystemEntropy(),
        batch_size=max(asked, 1),
    )
    teacher.use_extractor(ExtractorSpec("raw", (2,), 2))
    return teacher


def plan_of(mechanism: Mechanism, asked: int, answered: int) -> Plan:
    """A plan of one slot that any budget affords."""
    return Plan(1e9, 1e-5, (Slot(mechanism.fields(), mechanism.releases(asked, answered)),))


def teach(
    folder: Path,
    plan: Plan,
    records: Records,
    spec: ExtractorSpec,
    entropy: Entropy | None = None,
    batch_size: int = 16,
) -> Teacher:
    """A teacher of ``spec.num_classes`` under ``spec``, on the folder's ledger, new or known."""
    entropy, path = entropy or SystemEntropy(), folder / LEDGER
    if path.exists():
        ledger = Ledger(path)
    else:
        ledger = Ledger.create(path, dataset="d", plan=plan, unsafe=entropy.unsafe)
    made = Teacher(
        lambda: records, ledger, folder, spec.num_classes, entropy, batch_size=batch_size
    )
    made.use_extractor(spec)
    return made


def alike(n: int) -> Queries:
    """``n`` queries, each of another identity, whose quantised features are all (23, 0)."""
    return Queries(np.stack([np.ones(n), 1e-7 * np.arange(n)], axis=1).astype(np.float32))
