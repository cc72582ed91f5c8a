"""A first-in-first-out lock for writers that share one machine and one set of records."""

from __future__ import annotations

import threading


class FairLock:
    """A lock granted in the order of asking. A plain lock may favour the busiest thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next_ticket = self._now_serving = 0

    def __enter__(self) -> None:
        with self._changed:
            ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
            self._changed.wait_for(lambda: self._now_serving == ticket)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._now_serving += 1
            self._changed.notify_all()
