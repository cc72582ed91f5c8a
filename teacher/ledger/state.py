"""The state that a ledger's entries add up to, and the rules that each entry must keep. No I/O."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...wall.errors import InvalidInput, LedgerMismatch
from ...wall.files import other_format
from ...wall.guarantee import EACH, POOLED, is_single_analyst, single_analyst
from ...wall.messages import Value, canonical_json
from ..accounting.plan import Plan, Release

# Curves that price one outcome (a bit, a winner, a draw), not the counts it was chosen from.
ONE_OUTCOME = ("screening", "argmax", "bounded_range")
GENESIS_PREV = "0" * 64
MAX_INTEGER = 2**63 - 1  # releases are 64-bit integers
# What an entry's text or fields raise that no writer stores.
IMPOSSIBLE = TypeError, KeyError, AttributeError, ValueError, RecursionError, InvalidInput


def entry_hash(seq: int, kind: str, body: str, prev: str) -> str:
    """SHA-256 (hex) of an entry and of ``prev``, its predecessor's hash."""
    return hashlib.sha256(canonical_json([seq, kind, body, prev])).hexdigest()


@dataclass
class LedgerState:
    """The replayed ledger. ``apply`` refuses every unknown kind of entry, key, slot and release."""

    hashes: list[str] = field(default_factory=list)  # [seq] -> hash of that entry
    dataset: str = ""
    unsafe: bool = False
    plan: Plan | None = None
    adversary: str = POOLED  # against whom the certificate holds
    # of a register: analyst -> data set of the analyst's ledger
    analysts: dict[str, str] = field(default_factory=dict)
    extractor: str = ""  # named last
    extractors: set[str] = field(default_factory=set)  # that entries name
    # (slot, release) -> releases charged
    spent: dict[tuple[int, str], int] = field(default_factory=dict)
    # seq -> (slot, release, count)
    open_charges: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    # identity -> release -> released value
    results: dict[str, dict[str, Value]] = field(default_factory=dict)
    # slot -> batches recorded under its prepaid charge
    batches: dict[int, int] = field(default_factory=dict)
    # identities with the stored refusal `cap_reached`
    refused: set[str] = field(default_factory=set)

    @property
    def head(self) -> str:
        """Hash of the newest entry."""
        return self.hashes[-1] if self.hashes else GENESIS_PREV

    @property
    def seq(self) -> int:
        """Sequence number of the newest entry, -1 before the first."""
        return len(self.hashes) - 1

    def remaining(self, slot: int, release: str) -> int:
        """Charges of a release that the plan still allows. Raises LedgerMismatch as ``release``."""
        return self.release(slot, release).cap - self.spent.get((slot, release), 0)

    def lost(self) -> dict[str, int]:
        """Releases, by name, that were charged and not recorded; none is prepaid."""
        paid = (c for c in self.open_charges.values() if not self.release(*c[:2]).prepaid)
        return dict(Counter(name for _, name, count in paid for _ in range(count)))

    def lost_whole(self, slot: int) -> bool:
        """Whether all that a slot pays for was charged and is recorded nowhere."""
        assert self.plan is not None
        lost = [name for at, name, n in self.open_charges.values() for _ in range(n) if at == slot]
        releases = self.plan.slots[slot].releases
        return all(lost.count(r.name) == r.cap and not r.prepaid for r in releases)

    def release(self, slot: int, name: str) -> Release:
        """A release of the plan. Raises LedgerMismatch where the slot has none of this name."""
        if self.plan is None or type(slot) is not int or not 0 <= slot < len(self.plan.slots):
            raise LedgerMismatch(f"the ledger's plan has no slot {slot}.")
        for candidate in self.plan.slots[slot].releases:
            if candidate.name == name:
                return candidate
        raise LedgerMismatch(f"slot {slot} of the ledger's plan has no release {name!r}.")

    def counts(self) -> list[int]:
        """Releases charged so far, in the plan's order."""
        assert self.plan is not None
        return [
            self.spent.get((slot, r.name), 0)
            for slot, entry in enumerate(self.plan.slots)
            for r in entry.releases
        ]

    def apply(self, seq: int, kind: str, text: str, prev: str, digest: str) -> None:
        """Check an entry against all before it, and add it.

        Its text must be the canonical JSON that a writer stores. That excludes repeated keys, NaN,
        infinity and other spellings of a number. Raises LedgerMismatch; the sums are then
        unchanged.
        """
        chained = seq == self.seq + 1 and prev == self.head
        if not chained or digest != entry_hash(seq, kind, text, prev):
            raise LedgerMismatch(f"entry {seq} of the ledger does not continue the chain.")
        rules: dict[str, Callable[..., None]] = {
            "genesis": self._genesis,
            "extractor": self._extractor,
            "charge": self._charge,
            "release": self._release,
            "refusal": self._refusal,
            "analyst": self._analyst,
        }
        misplaced = (kind == "genesis") != (seq == 0)
        if kind not in rules or misplaced or (kind == "analyst") != self.is_register():
            raise LedgerMismatch(
                f"entry {seq} of the ledger has the unknown or misplaced kind {kind!r}."
            )
        try:
            body = json.loads(text)
            self._require(canonical_json(body).decode() == text, "another form than entries have")
            if kind == "genesis" and (error := other_format("the ledger", body.get("format"))):
                raise LedgerMismatch(error)
            rules[kind](**body)
        except IMPOSSIBLE as error:
            raise LedgerMismatch(
                f"entry {seq} of the ledger ({kind}) has missing, unknown or impossible fields."
            ) from error
        self.hashes.append(digest)

    def is_register(self) -> bool:
        """Whether this ledger only lists the analysts' ledgers, and has no budget of its own."""
        return self.seq >= 0 and self.adversary == EACH

    def _require(self, rule: bool, text: str) -> None:
        if not rule:
            raise LedgerMismatch(f"entry {self.seq + 1} of the ledger: {text}.")

    def _genesis(
        self, *, format: int, dataset: str, unsafe: bool, adversary: str, plan: dict
    ) -> None:
        sourced = type(dataset) is str and type(unsafe) is bool
        self._require(sourced, "a data set without a name, or a noise without a source")
        certified = adversary in (POOLED, EACH) or is_single_analyst(adversary)
        self._require(certified, "an adversary that has no certificate")
        self.plan = Plan.from_json(plan)
        self.dataset, self.unsafe, self.adversary = dataset, unsafe, adversary

    def _analyst(self, *, name: str, dataset: str) -> None:
        new = name not in self.analysts and dataset not in self.analysts.values()
        typed = type(name) is str and type(dataset) is str
        named = typed and is_single_analyst(single_analyst(name))
        self._require(named and new, "an analyst, or a data set, that is known")
        self.analysts[name] = dataset

    def _extractor(self, *, sha256: str) -> None:
        self._require(type(sha256) is str, "an extractor without a hash")
        self.extractor = sha256
        self.extractors.add(sha256)

    def _charge(self, *, slot: int, release: str, count: int) -> None:
        allowed = type(count) is int and 0 < count <= self.remaining(slot, release)
        self._require(allowed, "a charge passes its cap")
        planned = self.release(slot, release)
        single = count == 1 or not (planned.batch or planned.prepaid)
        self._require(single, "a second charge where one pays for all")
        self.spent[slot, release] = self.spent.get((slot, release), 0) + count
        self.open_charges[self.seq + 1] = (slot, release, count)

    def _release(self, *, charge: int, results: dict[str, Value]) -> None:
        open_charge = type(charge) is int and charge in self.open_charges
        self._require(open_charge, "a release without an unused charge before it")
        slot, release, count = self.open_charges[charge]
        planned = self.release(slot, release)
        pays_for_all = planned.prepaid or planned.batch
        paid = type(results) is dict and len(results) > 0
        paid = paid and (pays_for_all or len(results) <= count)
        self._require(paid, "a release of more than was charged")
        new = all(release not in self.results.get(i, {}) and i not in self.refused for i in results)
        self._require(new, "a second release for the same query")
        fits = all(_fits(planned.curve, value) for value in results.values())
        self._require(fits, "a released value is no outcome of what its curve prices")
        if planned.prepaid:
            self.batches[slot] = self.batches.get(slot, 0) + 1
        else:
            del self.open_charges[charge]
        for identity, value in results.items():
            self.results.setdefault(identity, {})[release] = value

    def _refusal(self, *, slot: int, release: str, identities: list[str]) -> None:
        reached = self.remaining(slot, release) == 0 and not self.release(slot, release).prepaid
        self._require(reached, "a refusal while the cap was not reached")
        asked = type(identities) is list and len(identities) > 0
        asked = asked and all(type(i) is str for i in identities)
        self._require(asked, "a refusal of nothing that was asked")
        self.refused.update(identities)


def _fits(curve: str, value: Any) -> bool:
    """Whether a curve can price a value: a bit, a class, an integer or a list of integers."""
    if curve == "screening":
        return _is_integer(value) and value in (0, 1)
    if curve in ONE_OUTCOME:
        return _is_integer(value) and value >= 0
    listed = type(value) is list and len(value) > 0 and all(map(_is_integer, value))
    return listed or _is_integer(value)


def _is_integer(value: Any) -> bool:
    """Whether a value is a 64-bit integer, and no boolean."""
    return type(value) is int and abs(value) <= MAX_INTEGER
