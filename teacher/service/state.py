"""What a service knows of a ledger, and what it tells of it: how far it is spent, a copy, an audit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.ledger.auditor.auditor import Finding, audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.service import models
from labelwall.teacher.service.auth import Bodies, Guard
from labelwall.teacher.service.config import ServiceConfig
from labelwall.teacher.service.jobs import Extractor
from labelwall.teacher.service.queue import Desk
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.teacher import Teacher
from labelwall.wall.datasets.sources import Task as Learned

if TYPE_CHECKING:
    from labelwall.teacher.service.analysts import Analysts


@dataclass
class Service:
    """What the routes work on. ``certified``: the plan's epsilon, None for a ledger that certifies nothing; ``dataset``,
    ``plan``, ``unsafe``, ``adversary``: of the ledger's first entry. ``scale``: where the rows are held. ``extractors``: those
    received lately, by identity. ``bodies``: room for what analysts send; ``record_bodies``: for what the custodian does.

    Where each analyst has a budget, each has a service, and nothing in it is another's but the guard, which keeps callers apart.
    Then the custodian's own, with ``analysts``, answers nobody: it has the records and the register.
    """

    desk: Desk
    teacher: Teacher
    ledger: Ledger
    guard: Guard
    bodies: Bodies
    record_bodies: Bodies
    config: ServiceConfig
    learned: Learned
    directory: Path
    dataset: str
    plan: Plan
    unsafe: bool
    certified: float | None
    adversary: str
    scale: ScaleConfig
    analysts: Analysts | None = None
    extractors: dict[str, Extractor] = field(default_factory=dict)


def left_of(service: Service) -> list[models.ReleaseLeft]:
    """How far the caps are used up; a register has none."""
    figures = service.desk.figures
    kinds = [
        (slot, release)
        for slot, entry in enumerate(service.plan.slots)
        for release in entry.releases
    ]
    return [
        models.ReleaseLeft(
            slot=slot,
            release=r.name,
            cap=r.cap,
            spent=figures.spent[slot, r.name],
            left=figures.left[slot, r.name],
        )
        for slot, r in kinds
        if service.analysts is None
    ]


def opened(service: Service) -> dict[str, Service]:
    """The services of all analysts who have a ledger, opened. None where all share the one budget."""
    return (
        {}
        if service.analysts is None
        else {name: service.analysts.of(name) for name in service.analysts.listed()}
    )


def pooled_epsilons(service: Service) -> dict[int, float]:
    """Epsilon at the plan's delta against so many analysts who pool their answers: 1, 2, 4, ... and all who have a ledger.

    By the accountant, of the list that their ledgers release together. None where nothing is certified.
    """
    count = (
        0
        if service.analysts is None or service.certified is None
        else len(service.analysts.listed())
    )
    numbers = sorted({1 << power for power in range(count.bit_length())} | {count}) if count else []
    return {number: round_up(certified_epsilon(service.plan.pooled(number))) for number in numbers}


def exported(service: Service) -> bytes:
    """The auditors' copy of the ledger."""
    with _copied(service) as copy:
        return copy.read_bytes()


def audited(service: Service) -> Finding:
    """An audit of such a copy."""
    with _copied(service) as copy:
        return audit(copy)


@contextmanager
def _copied(service: Service) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=service.directory) as folder:
        copy = Path(folder) / "export.sqlite"
        service.ledger.export(copy)
        yield copy
