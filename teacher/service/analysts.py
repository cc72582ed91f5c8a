"""The services of analysts who have a ledger each. What one of them was told reaches no other: they share the records, the
machine and its time, and nothing that was ever answered, sent or refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from labelwall.teacher.analysts import finish_removing, open_analyst, remove_for_all
from labelwall.teacher.custodian import Custodian
from labelwall.teacher.records.sources import Records
from labelwall.teacher.service.jobs import failed
from labelwall.teacher.service.state import Service
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput


@dataclass
class _Opened:
    custodian: Custodian
    service: Service


@dataclass
class Analysts:
    """Opens each analyst's service when it is first needed. From any thread.

    ``register``: the custodian's own directory; ``records``: its teacher, which answers nobody and holds the records;
    ``build``: a service over an analyst's directory; ``report``: hears of an unexpected failure.
    """

    register: Custodian
    records: Teacher
    build: Callable[[Custodian], Service]
    report: Callable[[], None]
    _opened: dict[str, _Opened] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _reading: threading.Lock = field(
        default_factory=threading.Lock
    )  # of the register: one transaction of this process at a time
    _closed: bool = False

    def of(self, name: str) -> Service:
        """An analyst's own service. Raises LedgerMismatch, or Refused where it can not be opened."""
        known = self._opened.get(name)
        if known is not None:
            return known.service
        with self._lock:
            if self._closed:
                raise failed("shutting_down")
            if name not in self._opened:
                self._opened[name] = self._open(name)
            return self._opened[name].service

    def _open(self, name: str) -> _Opened:
        try:
            with self._reading:
                custodian = open_analyst(self.register, name)
        except InvalidInput as error:  # another process works there
            self.report()
            raise failed("ledger_refused") from error
        service = self.build(custodian)
        service.desk.start()
        return _Opened(custodian, service)

    def listed(self) -> list[str]:
        """The analysts who have a ledger, by name. Raises LedgerMismatch where the register can not be read."""
        with self._reading:
            return sorted(self.register.ledger.analysts())

    def open_ones(self) -> dict[str, Service]:
        """The services that were opened, by analyst."""
        with self._lock:
            return {name: opened.service for name, opened in sorted(self._opened.items())}

    def finish(self) -> None:
        """Before the first request: complete what a change of the records left undone when it was cut short."""
        finish_removing(self.records, self.register.directory)

    def add(self, records: Records) -> None:
        """Records for all analysts, from each one's next query on. In the records' own turn, so that nobody answers meanwhile."""
        self.records.add(records)
        with self._lock:
            self._hold()

    def remove(self, ids: np.ndarray) -> None:
        """Records that vote for no analyst again: one transaction for all, then what each one's caches hold of them."""
        with self._lock:
            in_use = [opened.custodian.directory for opened in self._opened.values()]
            remove_for_all(
                self.records, self.register.directory, ids, in_use=in_use, renew=self._hold
            )

    def _hold(self) -> None:
        """Raises Refused where a teacher could not take the records in: it answers nothing until it has. The change itself is
        done; the call may be repeated."""
        held, failures = self.records.records(), 0
        for opened in self._opened.values():
            try:
                opened.service.teacher.adopt(held)
            except Exception:
                self.report()
                opened.service.desk.start_anew()
                failures += 1
        if failures:
            raise failed("teacher_failed")

    def close(self) -> None:
        """Finish the steps at work, refuse what waits, give the ledgers back."""
        with self._lock:
            self._closed = True
            opened = list(self._opened.values())
        for each in opened:
            each.service.desk.close()
            each.custodian.close()
