"""The auditor's check of the order of a ledger's entries: what is paid, released and refused.

A charge pays for draws, and one release records what a charge paid for. No query has two results
under one name. A query reaches a mechanism's second release only by a 1 from its screening. A
refusal is stored where the cap is reached, and ends a query. It may name a query that was answered:
by another process, after the refusing one had seen that it was due.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .mechanisms import BY_QUERY, ONCE, Priced
from .reading import Problem, canonical, shown
from .results import is_sum

Body = Mapping[str, Any]
Key = tuple[int, str]  # a slot of the plan and the name of one of its releases


class History:
    """The sums of the entries after the first.

    ``plan``: as the first entry records it. ``restated``: its slots' releases. ``charged``,
    ``released``: counts by release.
    """

    def __init__(self, plan: Body, restated: Sequence[Sequence[Priced]]) -> None:
        self.charged: Counter[Key] = Counter()
        self.released: Counter[Key] = Counter()
        # with its cap, and the screening that leads to it
        self._planned: dict[Key, tuple[Priced, int, str | None]] = {}
        self._mechanism = [canonical(slot["mechanism"]) for slot in plan["slots"]]
        self._open: dict[int, tuple[Key, int, str]] = {}  # with the extractor in use
        self._results: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, str] = {}  # identity -> the mechanism that was asked
        self._refused: set[str] = set()
        self._extractor = ""
        self._widths: set[int] = set()
        self._sums: dict[str, int] = {}  # extractor -> length of its sums
        self._largest_label = -1
        for slot, (planned, releases) in enumerate(zip(plan["slots"], restated, strict=True)):
            previous = None
            for recorded, release in zip(planned["releases"], releases, strict=True):
                self._planned[slot, release.name] = release, recorded["cap"], previous
                previous = release.name

    def take(self, seq: int, kind: str, body: Body) -> None:
        """Check the next entry and add it up. Raises Problem."""
        if kind == "charge":
            self._charge(seq, body)
        elif kind == "release":
            self._release(body)
        elif kind == "refusal":
            self._refuse(body)
        elif kind == "extractor":
            if body["sha256"] == self._extractor:
                raise Problem("names the extractor that is in use already")
            self._extractor = body["sha256"]
        else:
            raise Problem(f"of the kind {kind!r} is misplaced: a ledger has one first entry")

    def finish(self) -> None:
        """Check what only all entries together show. Raises Problem."""
        if len(self._widths) > 1:
            raise Problem(f"results show different numbers of classes: {sorted(self._widths)[:5]}")
        if self._widths and self._largest_label >= min(self._widths):
            raise Problem(f"a label is {self._largest_label}, of {min(self._widths)} classes")
        for length in sorted({*self._sums.values()}):
            if not all(is_sum(length, range(w, w + 1)) for w in self._widths):
                raise Problem(f"a sum of {length} numbers is not of {min(self._widths)} classes")

    def _key(self, body: Body) -> Key:
        key = body["slot"], body["release"]
        if key not in self._planned:
            raise Problem(f"is for something unplanned: {shown(key[1])} in slot {key[0]}")
        return key

    def _charge(self, seq: int, body: Body) -> None:
        key, count = self._key(body), body["count"]
        priced, cap, _ = self._planned[key]
        if not self._extractor:
            raise Problem("charges before an extractor was named")
        if priced.charging != BY_QUERY and count != 1:
            raise Problem(f"charges {count} where one charge pays for all")
        self.charged[key] += count
        self._open[seq] = key, count, self._extractor
        if self.charged[key] > cap:
            raise Problem(f"charges past the cap of {key[1]!r} in slot {key[0]}")

    def _release(self, body: Body) -> None:
        if body["charge"] not in self._open:
            raise Problem("releases without an unused charge before it")
        key, paid, extractor = self._open[body["charge"]]
        (priced, _, _), results = self._planned[key], body["results"]
        if priced.charging != ONCE:
            del self._open[body["charge"]]
        self.released[key] += len(results)
        if priced.charging == BY_QUERY and len(results) != paid:
            raise Problem(
                f"releases {len(results)} results, more or fewer than it paid for: {paid}"
            )
        for identity, value in results.items():
            known = self._asked_for(identity, key)
            if key[1] in known:
                raise Problem(f"releases the same query twice: {identity}")
            if identity in self._refused:
                raise Problem(f"releases a query that was refused: {identity}")
            self._results.setdefault(identity, {})[key[1]] = value
            self._check(priced, value, len(results), extractor)

    def _asked_for(self, identity: str, key: Key) -> dict[str, Any]:
        """A query's results so far. Raises Problem unless it may come to this release."""
        known, mechanism = self._results.get(identity, {}), self._mechanism[key[0]]
        _, _, screening = self._planned[key]
        if self._asked.setdefault(identity, mechanism) != mechanism:
            raise Problem(f"gives query {identity} to another mechanism than before")
        if screening is not None and known.get(screening) != 1:
            raise Problem(
                f"is for {key[1]!r} of a query that did not pass {screening!r}: {identity}"
            )
        return known

    def _check(self, priced: Priced, value: Any, beside: int, extractor: str) -> None:
        possible = priced.results
        if not possible.holds(value, beside):
            raise Problem(
                f"releases something else than its curve prices: {priced.name!r} must be "
                f"{possible.words}. Found {shown(value)}"
            )
        label, width = possible.label(value), possible.width(value)
        if label is not None:
            self._largest_label = max(self._largest_label, label)
        if width is not None:
            self._widths.add(width)
        if possible.outputs is not None and self._sums.setdefault(extractor, len(value)) != len(
            value
        ):
            raise Problem(f"releases sums of different lengths for the extractor {extractor}")

    def _refuse(self, body: Body) -> None:
        key = self._key(body)
        priced, cap, _ = self._planned[key]
        if priced.charging == ONCE or self.charged[key] != cap:
            raise Problem("refuses although its cap was not reached")
        for identity in body["identities"]:
            self._asked_for(identity, key)
        self._refused.update(body["identities"])
