"""A running service: a teacher, its queue and its ledger. Analysts may have one each."""

import threading
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

import numpy as np

from ...wall.errors import InvalidInput, LedgerMismatch
from ..accounting.accountant import certified_epsilon
from ..accounting.conversion import round_up
from ..analysts import finish_removing, open_analyst, remove_for_all
from ..custodian import Custodian
from ..ledger.anchor import read_nonces
from ..ledger.ledger_tables import READ_HEAD
from ..records.private_records import Records
from ..teacher import Teacher
from .callers import BodyReader, Shared
from .extractors import Extractors
from .keys import Key
from .queue import RequestQueue
from .replies import refused
from .service_config import Settings

COPY = "export.sqlite"


class Service:
    """The object behind the routes, over one opened directory and its ledger.

    With a budget for each analyst, each has a service of its own. The custodian's then has
    ``analysts`` and answers no queries: it holds the records and the register.
    """

    def __init__(self, shared: Shared, opened: Custodian, open_rows: Callable[[], Records]) -> None:
        self.shared, self.settings = shared, shared.settings
        self.custodian, self.dataset = opened, opened.dataset
        self.directory, self.ledger = opened.directory, opened.ledger
        settings, state = self.settings, opened.ledger.state
        self.plan, self.unsafe, self.adversary = opened.plan, state.unsafe, state.adversary
        self.certified = settings.certified
        self.teacher = (settings.sharded or partial(Teacher, open_rows))(
            opened.ledger,
            opened.directory,
            settings.task.num_classes,
            settings.entropy,
            batch_size=settings.batch_size,
            workers=settings.workers,
            device=settings.device,
            progress=lambda *now: self.queue.progress(*now),
        )
        self.queue: RequestQueue = RequestQueue(
            self.teacher, self.ledger, shared, opened.require_lock
        )
        self.extractors = Extractors(opened.directory, settings)
        self.bodies, self.record_bodies = BodyReader(settings), BodyReader(settings)
        self._copied: tuple[int, str] | None = None  # the head of the ledger's copy
        self._copying = threading.Lock()
        self.analysts: Analysts | None = None

    def of(self, key: Key, analyst: str | None = None) -> "Service":
        """The service of a key, or of the ``analyst`` that a custodian names. Raises Refused for
        another analyst or an unknown one, LedgerMismatch where a ledger cannot be opened.
        """
        if key.role == "analyst":
            if analyst is not None:
                raise refused("forbidden")
            return self if self.analysts is None else self.analysts.of(key.name)
        if analyst is None:
            return self
        if self.analysts is None or analyst not in self.analysts.names():
            raise refused("not_found")
        return self.analysts.of(analyst)

    def ledger_copy(self) -> BinaryIO:
        """The auditors' copy of the ledger, open for reading: one for each head, served to all."""
        path = self.directory / COPY
        with self._copying:
            seq, digest = self.ledger.in_custody(lambda opened: opened.execute(READ_HEAD).one())
            if self._copied != (seq, digest) or not path.exists():
                self.ledger.export(path)
                self._copied = seq, digest
            return path.open("rb")

    def stop(self) -> None:
        """End the writers' work, so that every request gets its reply."""
        for service in (self, *(self.analysts.opened(stop=True).values() if self.analysts else ())):
            service.queue.close()

    def close(self) -> None:
        self.stop()
        for service in self.analysts.opened().values() if self.analysts else ():
            service.custodian.close()

    def pooled_epsilons(self) -> dict[int, float]:
        """Epsilon at the plan's delta if 1, 2, 4, ... or all analysts pool answers, by number."""
        if self.analysts is None or self.certified is None:
            return {}
        count = len(self.analysts.names())
        numbers = {1 << power for power in range(count.bit_length())} | {count}
        pooled = {number: self.plan.pooled(number) for number in sorted(numbers) if number}
        return {number: round_up(certified_epsilon(plan)) for number, plan in pooled.items()}


class Analysts:
    """The services of analysts with a ledger each, opened when first needed. Thread-safe.

    They share the records, the machine and its time, and nothing that one of them sent or got.

    ``register``: the custodian's directory; ``records``: its teacher, which holds the records.
    """

    def __init__(self, register: Custodian, records: Teacher, shared: Shared) -> None:
        self.register, self.records, self._shared = register, records, shared
        self._opened: dict[str, Service] = {}
        self._lock = threading.Lock()
        # The register allows one transaction of this process at a time.
        self._register_lock = threading.Lock()
        self._stopped = False

    def of(self, name: str) -> Service:
        """An analyst's own service. Raises LedgerMismatch, or Refused where it cannot be opened."""
        if name in self._opened:
            return self._opened[name]
        with self._lock:
            if self._stopped:
                raise refused("shutting_down")
            if name not in self._opened:
                try:
                    with self._register_lock:
                        custodian = open_analyst(self.register, name)
                except InvalidInput as error:  # another process works there
                    self._shared.report()
                    raise refused("ledger_refused") from error
                self._opened[name] = self.build(custodian)
                self._opened[name].queue.start()
            return self._opened[name]

    def build(self, custodian: Custodian) -> Service:
        return Service(self._shared, custodian, self.records.records)

    def names(self) -> list[str]:
        """Names of analysts with a ledger. Raises LedgerMismatch if the register is unreadable."""
        with self._register_lock:
            return sorted(self.register.ledger.analysts())

    def services(self) -> dict[str, Service]:
        return {name: self.of(name) for name in self.names()}

    def opened(self, stop: bool = False) -> dict[str, Service]:
        """The services opened so far, by analyst. ``stop``: no other one is opened from now on."""
        with self._lock:
            self._stopped |= stop
            return dict(sorted(self._opened.items()))

    def add(self, records: Records) -> None:
        """Add records for all analysts. For the machine's thread: nobody is answered meanwhile."""
        self.records.add(records)
        with self._lock:
            self._adopt_records()

    def remove(self, ids: np.ndarray) -> None:
        """Remove records for all analysts: in one transaction, then from each one's caches."""
        with self._lock:
            in_use = [service.directory for service in self._opened.values()]
            renew, directory = self._adopt_records, self.register.directory
            remove_for_all(self.records, directory, ids, in_use=in_use, renew=renew)

    def _adopt_records(self) -> None:
        """Pass the present records to every open teacher. Raises Refused if one failed to adopt
        them: it answers nothing until it has. The change is done, and the call may be repeated.
        """
        records, failures = self.records.records(), 0
        for service in self._opened.values():
            try:
                service.teacher.adopt(records)
            except Exception:
                self._shared.report()
                service.queue.forget_extractor()
                failures += 1
        if failures:
            raise refused("teacher_failed")


def build_service(
    custodian: Custodian, open_records: Callable[[], Records], settings: Settings
) -> Service:
    """The service over a custodian's directory. It reads the private rows here, once.

    Raises what reading them raises, before any request; LedgerMismatch for a ledger whose anchor
    was not named.
    """
    if custodian.anchor is None and any(custodian.ledger.in_custody(read_nonces)):
        raise LedgerMismatch(
            "the ledger has an anchor, which was not named, so nothing could be charged. Name it "
            "(`anchor`)."
        )
    shared = Shared(settings, custodian.directory)
    service = Service(shared, custodian, open_records)
    service.teacher.records()
    if custodian.ledger.state.is_register():
        service.analysts = Analysts(custodian, service.teacher, shared)
        finish_removing(service.teacher, custodian.directory)  # one that was interrupted
    return service
