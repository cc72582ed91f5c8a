"""What a custodian wants to know at a glance: when the budget ends, who is refused, health.

Private where times of day are used: for the custodian's page alone.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..accounting.plan import Plan
from ..ledger.event_times import EventTime
from ..private_files import ERRORS
from .charts import minute

WEEK = 7 * 86400
HOUR = 3600
LONG = 5 * 365 * 86400  # seconds; a later end is none


class Outlook:
    """What a service counts and measures while it runs. ``refusals``: by (caller, status)."""

    def __init__(self) -> None:
        self.refusals: Counter[tuple[str, int]] = Counter()
        self._since = time.time()

    def note(self, caller: str | None, status: int) -> None:
        """Count the refusals among the replies."""
        if status >= 400:
            self.refusals[caller or "nobody known", status] += 1

    def refused(self) -> list[tuple[str, int, int]]:
        """(caller, status, count), by caller."""
        return [(*key, count) for key, count in sorted(dict(self.refusals).items())]

    def health(self, directory: Path) -> list[tuple[str, str]]:
        """(name, value) of what shows whether the service is well."""
        log = directory / ERRORS
        failed = minute(int(log.stat().st_mtime)) if log.exists() else "never"
        return [
            ("runs since", minute(int(self._since))),
            ("disk free", f"{shutil.disk_usage(directory).free / (1 << 30):.0f} GiB"),
            ("last failure (errors.log)", failed),
        ]


def forecast(
    plan: Plan,
    remaining: dict[tuple[int, str], int],
    charged: Sequence[EventTime],
    slots: Sequence[int],
    now: float | None = None,
) -> str | None:
    """The day on which the first cap is reached, if queries go on as in the last week.

    Of releases that each query pays for. ``slots``: of ``charged``. None where nothing was charged
    in the week, and where a cap lasts for years.
    """
    now = time.time() if now is None else now
    ends = []
    for slot, entry in enumerate(plan.slots):
        first = entry.releases[0]
        recent = [
            event
            for event, own in zip(charged, slots, strict=True)
            if own == slot and event.time > now - WEEK
        ]
        if first.prepaid or first.batch or not recent:
            continue
        passed = max(HOUR, now - recent[0].time)
        rate = sum(event.size for event in recent) / passed
        ends.append(remaining[slot, first.name] / rate)
    soonest = min(ends, default=LONG)
    return minute(int(now + soonest))[:10] if soonest < LONG else None
