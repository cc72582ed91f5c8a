"""State of a running service, by ledger and analyst, and its reports about the ledgers."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...wall.datasets.sources import Task
from ...wall.errors import InvalidInput
from ..accounting.accountant import certified_epsilon
from ..accounting.conversion import round_up
from ..accounting.plan import Plan
from ..analysts import finish_removing, open_analyst, remove_for_all
from ..custodian import Custodian
from ..ledger.auditor.auditor import Finding, audit
from ..ledger.ledger import Ledger
from ..records.sources import Records
from ..shards.config import ScaleConfig
from ..teacher import Teacher
from . import models
from .auth import Allowances, Authenticator, BodyReader
from .config import ServiceConfig
from .jobs import Extractor, refused
from .queue import RequestQueue

MAX_EXTRACTORS = 8  # kept in memory


@dataclass
class Service:
    """What the routes work on: a teacher, its queue and its ledger.

    ``certified``: the plan's epsilon, None for a ledger that certifies nothing.
    ``dataset``, ``plan``, ``unsafe``, ``adversary``: from the ledger's first entry.
    ``scale``: where the rows are stored.
    ``extractors``: those received last, by identity; ``senders``: who sent each.
    ``allowances``: what callers may use in a day; the same in all services.
    ``bodies``, ``record_bodies``: room for analysts' and for the custodian's request bodies.

    With a budget for each analyst, each has a service of its own, which shares nothing but ``auth``
    with the others. The custodian's service then has ``analysts`` and answers no queries: it holds
    the records and the register.
    """

    queue: RequestQueue
    teacher: Teacher
    ledger: Ledger
    auth: Authenticator
    allowances: Allowances
    bodies: BodyReader
    record_bodies: BodyReader
    config: ServiceConfig
    task: Task
    directory: Path
    dataset: str
    plan: Plan
    unsafe: bool
    certified: float | None
    adversary: str
    scale: ScaleConfig
    analysts: Analysts | None = None
    extractors: dict[str, Extractor] = field(default_factory=dict)
    senders: dict[str, str] = field(default_factory=dict)

    def stop(self) -> None:
        """End the writers' work, so that every request gets its reply."""
        self.queue.close()
        if self.analysts is not None:
            for each in self.analysts.open_services().values():
                each.queue.close()

    def keep(self, extractor: Extractor, caller: str) -> None:
        """Keep a received extractor, and the newest others.

        Where there are too many, the oldest goes of a caller who sent most of them.
        """
        self.extractors.pop(extractor.sha256, None)
        self.extractors[extractor.sha256], self.senders[extractor.sha256] = extractor, caller
        while len(self.extractors) > MAX_EXTRACTORS:
            sent = Counter(self.senders[sha256] for sha256 in self.extractors)
            most = max(sent.values())
            oldest = next(sha for sha in self.extractors if sent[self.senders[sha]] == most)
            del self.extractors[oldest], self.senders[oldest]


@dataclass
class _Opened:
    custodian: Custodian
    service: Service


@dataclass
class Analysts:
    """The services of analysts with a ledger each, opened when first needed. Thread-safe.

    They share the records, the machine and its time. Nothing that one analyst sent, or was
    answered or refused, reaches another.

    ``register``: the custodian's directory.
    ``records``: its teacher, which answers no queries and holds the records.
    ``build``: makes a service over an analyst's directory.
    ``report``: records an unexpected failure.
    """

    register: Custodian
    records: Teacher
    build: Callable[[Custodian], Service]
    report: Callable[[], None]
    _opened: dict[str, _Opened] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # The register allows one transaction of this process at a time.
    _register_lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def of(self, name: str) -> Service:
        """An analyst's own service. Raises LedgerMismatch, or Refused where it cannot be opened."""
        known = self._opened.get(name)
        if known is not None:
            return known.service
        with self._lock:
            if self._closed:
                raise refused("shutting_down")
            if name not in self._opened:
                self._opened[name] = self._open(name)
            return self._opened[name].service

    def _open(self, name: str) -> _Opened:
        try:
            with self._register_lock:
                custodian = open_analyst(self.register, name)
        except InvalidInput as error:  # another process works there
            self.report()
            raise refused("ledger_refused") from error
        service = self.build(custodian)
        service.queue.start()
        return _Opened(custodian, service)

    def names(self) -> list[str]:
        """Names of analysts with a ledger. Raises LedgerMismatch if the register is unreadable."""
        with self._register_lock:
            return sorted(self.register.ledger.analysts())

    def open_services(self) -> dict[str, Service]:
        """The services opened so far, by analyst."""
        with self._lock:
            return {name: opened.service for name, opened in sorted(self._opened.items())}

    def finish_removal(self) -> None:
        """Complete an interrupted removal of records. Called before the first request."""
        finish_removing(self.records, self.register.directory)

    def add(self, records: Records) -> None:
        """Add records for all analysts, from each one's next query on.

        Runs on the writer's thread of the custodian's queue, so no analyst is answered meanwhile.
        """
        self.records.add(records)
        with self._lock:
            self._adopt_records()

    def remove(self, ids: np.ndarray) -> None:
        """Remove records for all analysts: in one transaction, then from each one's caches."""
        with self._lock:
            remove_for_all(
                self.records,
                self.register.directory,
                ids,
                in_use=[opened.custodian.directory for opened in self._opened.values()],
                renew=self._adopt_records,
            )

    def _adopt_records(self) -> None:
        """Pass the present records to every open teacher.

        Raises Refused if a teacher failed to adopt them: it answers nothing until it has. The
        change itself is done, and the call may be repeated.
        """
        held, failures = self.records.records(), 0
        for opened in self._opened.values():
            try:
                opened.service.teacher.adopt(held)
            except Exception:
                self.report()
                opened.service.queue.forget_extractor()
                failures += 1
        if failures:
            raise refused("teacher_failed")

    def close(self) -> None:
        """Finish the current steps, refuse what waits, release the ledgers."""
        with self._lock:
            self._closed = True
            opened = list(self._opened.values())
        for each in opened:
            each.service.queue.close()
            each.custodian.close()


def analyst_services(service: Service) -> dict[str, Service]:
    """The services of all analysts with a ledger, opened. Empty where all share one budget."""
    if service.analysts is None:
        return {}
    return {name: service.analysts.of(name) for name in service.analysts.names()}


def releases_left(service: Service) -> list[models.ReleaseLeft]:
    """Spent and remaining releases by slot and release. A register has none."""
    if service.analysts is not None:
        return []
    snapshot = service.queue.snapshot
    return [
        models.ReleaseLeft(
            slot=slot,
            release=release.name,
            cap=release.cap,
            spent=snapshot.spent[slot, release.name],
            left=snapshot.remaining[slot, release.name],
        )
        for slot, entry in enumerate(service.plan.slots)
        for release in entry.releases
    ]


def pooled_epsilons(service: Service) -> dict[int, float]:
    """Epsilon at the plan's delta if 1, 2, 4, ... or all analysts pool their answers, by number.

    Analysts are those with a ledger. The accountant composes all releases of that many ledgers.
    Empty where nothing is certified.
    """
    if service.analysts is None or service.certified is None:
        return {}
    count = len(service.analysts.names())
    numbers = sorted({1 << power for power in range(count.bit_length())} | {count}) if count else []
    return {number: round_up(certified_epsilon(service.plan.pooled(number))) for number in numbers}


def export_ledger(service: Service) -> BinaryIO:
    """The auditors' copy of the ledger, open for reading and without a name: it ends with that."""
    with _copy(service) as copy:
        return copy.open("rb")


def audit_ledger(service: Service) -> Finding:
    """An audit of such a copy."""
    with _copy(service) as copy:
        return audit(copy)


@contextmanager
def _copy(service: Service) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=service.directory) as folder:
        copy = Path(folder) / "export.sqlite"
        service.ledger.export(copy)
        yield copy
