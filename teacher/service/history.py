"""What a ledger's entries tell over time: what was charged and answered, extractor by extractor. Public."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.registry import from_slot
from labelwall.wall.messages import Outcome, Value

AT_ONCE = 2000  # entries read in one transaction, which keeps the writer waiting


@dataclass
class Round:
    """What one extractor was used for. ``first``: the entry that names it for the first time; ``charged``: by (slot, release);
    ``outcomes``: settled queries."""

    sha256: str
    backbone: str
    first: int
    charged: Counter[tuple[int, str]] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)


class History:
    """The entries of one ledger, read as far as ``position``. For one thread at a time.

    ``rounds``: in the order in which their extractors were first used; one that is used again goes on where it was.
    ``points``: (entry, releases charged up to it in the order of the plan's list), one for each charge.
    """

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self._ledger, self._mechanisms = ledger, [from_slot(slot) for slot in plan.slots]
        self._column = {
            key: number
            for number, key in enumerate(
                (slot, release.name)
                for slot, entry in enumerate(plan.slots)
                for release in entry.releases
            )
        }
        self.position, self.rounds = 0, list[Round]()  # entry 0 is the plan
        self.points = [(0, (0,) * len(self._column))]
        self._current = Round("", "", 0)
        self._charges: dict[int, tuple[int, str]] = {}
        self._unsettled: dict[str, dict[str, Value]] = {}
        self._works: list[
            tuple[int, Round]
        ] = []  # entries that charge or release, and under which extractor

    def catch_up(self) -> None:
        """Take in what was written since. Raises LedgerMismatch where the ledger can not be read."""
        while found := self._ledger.entries_after(self.position, AT_ONCE):
            for seq, kind, body in found:
                self._take(seq, kind, json.loads(body))
                self.position = seq

    def round_after(self, position: int) -> Round | None:
        """The round of the first charge or release after an entry, None where nothing came of it."""
        place = bisect_right(self._works, position, key=lambda work: work[0])
        return self._works[place][1] if place < len(self._works) else None

    def _take(self, seq: int, kind: str, body: dict) -> None:  # type: ignore[type-arg]
        """Entries were checked when they were written, and are whenever a ledger is opened."""
        if kind == "extractor":
            known = next((known for known in self.rounds if known.sha256 == body["sha256"]), None)
            if known is None:
                known = Round(body["sha256"], body["fields"]["backbone"], seq)
                self.rounds.append(known)
            self._current = known
        elif kind == "refusal":
            self._current.outcomes[Outcome.CAP_REACHED] += len(body["identities"])
            for identity in body["identities"]:
                self._unsettled.pop(identity, None)
        else:
            self._works.append((seq, self._current))
            if kind == "charge":
                self._charge(seq, (body["slot"], body["release"]), body["count"])
            else:
                self._release(*self._charges[body["charge"]], body["results"])

    def _charge(self, seq: int, key: tuple[int, str], count: int) -> None:
        self._charges[seq] = key
        self._current.charged[key] += count
        sums = list(self.points[-1][1])
        sums[self._column[key]] += count
        self.points.append((seq, tuple(sums)))

    def _release(self, slot: int, release: str, results: dict[str, Value]) -> None:
        for identity, value in results.items():
            found = self._unsettled.setdefault(identity, {})
            found[release] = value
            if self._mechanisms[slot].next_stage(found) is None:
                self._current.outcomes[self._mechanisms[slot].outcome(found)[0]] += 1
                del self._unsettled[identity]
