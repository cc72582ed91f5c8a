"""Who works next, where several writers share one machine and one set of records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """One at a time, in the order of asking: a lock alone may let the busiest thread in again and again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._given = self._done = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until all who asked before are done."""
        with self._changed:
            mine, self._given = self._given, self._given + 1
            self._changed.wait_for(lambda: self._done == mine)
        try:
            yield
        finally:
            with self._changed:
                self._done += 1
                self._changed.notify_all()
