"""Step charts of epsilon spent against its cap, by ledger entry and by time. For the custodian."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import accumulate

from ..accounting.accountant import odometer
from ..accounting.conversion import round_up
from ..accounting.plan import Plan
from ..ledger.event_times import EventTime
from .history import History

POINTS = 60  # of a curve


class Chart:
    """The curves of one ledger. ``limit``: its certificate, or its budget if there is none."""

    def __init__(self, plan: Plan, limit: float, history: History) -> None:
        self._plan, self._limit, self._history = plan, limit, history
        self._readings: dict[tuple[int, ...], float] = {}

    def by_entry(self) -> dict[str, object]:
        """Epsilon as a reading by ledger entry, and the newest reading."""
        steps = [(entry, self._reading(counts)) for entry, counts in _thinned(self._history.points)]
        last = max(1, self._history.position)
        return {
            **self._drawn(steps, last),
            "limit": self._limit,
            "last": last,
            "reading": steps[-1][1],
        }

    def by_time(self, charged: Sequence[EventTime]) -> dict[str, object] | None:
        """The same by the time of day of each charge; None if no time is known. Private.

        A charge has the time of the last note before its entry. Charges before the first note are
        drawn at the start.
        """
        if not charged:
            return None
        positions = [*accumulate((moment.position or 0 for moment in charged), max)]
        times = [*accumulate((moment.time for moment in charged), max)]  # a clock may be set back
        counts_at_note = {
            max(0, bisect_left(positions, entry) - 1): counts
            for entry, counts in self._history.points
        }
        steps = [
            (times[note] - times[0], self._reading(counts))
            for note, counts in _thinned(list(counts_at_note.items()))
        ]
        return {
            **self._drawn(steps, max(1, times[-1] - times[0])),
            "first": minute(times[0]),
            "last": minute(times[-1]),
        }

    def _reading(self, counts: tuple[int, ...]) -> float:
        """Epsilon spent, at most the limit: at full caps another certificate may be smaller."""
        if counts not in self._readings:
            self._readings[counts] = round_up(min(odometer(self._plan, counts), self._limit))
        return self._readings[counts]

    def _drawn(self, steps: Sequence[tuple[int, float]], last: int) -> dict[str, object]:
        """Steps (0..``last``, epsilon) as a path in a square of 100; the limit is at ``cap``."""
        top = 1.15 * self._limit
        path = " ".join(
            f"H{100 * place / last:.2f} V{100 - 100 * epsilon / top:.2f}"
            for place, epsilon in steps
        )
        return {"path": f"M0 100 {path} H100", "cap": 100 - 100 * self._limit / top}


def minute(seconds: int) -> str:
    """A time (seconds since 1970, UTC) as text, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _thinned(points: Sequence[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[int, ...]]]:
    """At most POINTS of the points, evenly spaced, and the last one."""
    chosen = list(points[:: -(-len(points) // POINTS)])
    return [*chosen, points[-1]] if chosen[-1] != points[-1] else chosen
