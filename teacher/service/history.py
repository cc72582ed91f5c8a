"""A ledger's history: charges and outcomes over its entries, extractor by extractor. Public."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field

from ...wall.messages import Outcome, Value
from ..accounting.plan import Plan
from ..ledger.ledger import Ledger
from ..mechanisms.registry import from_slot

AT_ONCE = 2000  # entries read in one transaction, which keeps the writer waiting


@dataclass
class Round:
    """The use of one extractor.

    ``first``: the first entry that names it; ``charged``: counts by (slot, release);
    ``outcomes``: of settled queries.
    """

    sha256: str
    backbone: str
    first: int
    charged: Counter[tuple[int, str]] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)


class History:
    """The entries of one ledger, read up to ``position``. Not thread-safe.

    ``rounds``: in order of first use; an extractor that is used again continues its round.
    ``points``: (entry, releases charged so far in the order of the plan's list), one per charge.
    """

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        self._ledger = ledger
        self._mechanisms = [from_slot(slot) for slot in plan.slots]
        keys = [(slot, r.name) for slot, entry in enumerate(plan.slots) for r in entry.releases]
        self._column = {key: number for number, key in enumerate(keys)}
        self.position = 0  # entry 0 is the plan
        self.rounds: list[Round] = []
        self.points = [(0, (0,) * len(self._column))]
        self._current = Round("", "", 0)
        self._charges: dict[int, tuple[int, str]] = {}
        self._unsettled: dict[str, dict[str, Value]] = {}
        self._activity: list[tuple[int, Round]] = []  # charges and releases, with their round

    def catch_up(self) -> None:
        """Read the entries written since. Raises LedgerMismatch where the ledger cannot be read."""
        while found := self._ledger.entries_after(self.position, AT_ONCE):
            for seq, kind, body in found:
                self._take(seq, kind, json.loads(body))
                self.position = seq

    def round_after(self, position: int) -> Round | None:
        """The round of the first charge or release after an entry, None if there is none."""
        place = bisect_right(self._activity, position, key=lambda activity: activity[0])
        return self._activity[place][1] if place < len(self._activity) else None

    def _take(self, seq: int, kind: str, body: dict) -> None:  # type: ignore[type-arg]
        """Apply one entry. Entries are checked when written and whenever a ledger is opened."""
        if kind == "extractor":
            known = next((known for known in self.rounds if known.sha256 == body["sha256"]), None)
            if known is None:
                fields = body.get("fields") or self._ledger.extractor(body["sha256"])
                known = Round(body["sha256"], fields["backbone"], seq)
                self.rounds.append(known)
            self._current = known
        elif kind == "refusal":
            self._current.outcomes[Outcome.CAP_REACHED] += len(body["identities"])
            for identity in body["identities"]:
                self._unsettled.pop(identity, None)
        else:
            self._activity.append((seq, self._current))
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
