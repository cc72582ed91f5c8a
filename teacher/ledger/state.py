"""What a ledger's entries add up to, and the rules an entry must keep. No I/O: the ledger applies entries one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labelwall.teacher.accounting.plan import Plan, Release
from labelwall.wall.adversary import EACH, POOLED, is_single_analyst, single_analyst
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from labelwall.wall.messages import Value, canonical_json

FORMAT, FORMAT_ALONE = 1, 2  # the second names its adversary
ONE_OUTCOME = (
    "screening",
    "argmax",
    "bounded_range",
)  # curves that price a bit, a winner or a draw, not what is behind it
GENESIS_PREV = "0" * 64
LARGEST = 2**63 - 1  # releases are 64-bit integers


def read_body(text: str) -> dict[str, Any]:
    """An entry's body from its text. Raises LedgerMismatch for any text but the canonical one that
    a writer stores: repeated keys, NaN, infinity, other spellings of a number."""
    try:
        body = json.loads(text)
        written = type(body) is dict and canonical_json(body).decode() == text
    except (ValueError, RecursionError):
        written = False
    if not written:
        raise LedgerMismatch(
            "an entry of the ledger is not in the form that entries are written in."
        )
    return dict(body)


@dataclass
class LedgerState:
    """The replayed ledger. ``apply`` refuses what it does not know: an unknown entry, key, slot or release fails closed."""

    head: str = GENESIS_PREV
    hashes: list[str] = field(default_factory=list)  # [seq] -> hash of that entry
    dataset: str = ""
    unsafe: bool = False
    plan: Plan | None = None
    adversary: str = POOLED  # against whom the certificate holds
    analysts: dict[str, str] = field(
        default_factory=dict
    )  # of a register: analyst -> data set of the own ledger
    extractor: str = ""
    spent: dict[tuple[int, str], int] = field(
        default_factory=dict
    )  # (slot, release) -> releases charged
    open_charges: dict[int, tuple[int, str, int]] = field(
        default_factory=dict
    )  # seq -> (slot, release, count)
    results: dict[str, dict[str, Value]] = field(
        default_factory=dict
    )  # identity -> release -> released value
    batches: dict[int, int] = field(
        default_factory=dict
    )  # slot -> batches recorded under its prepaid charge
    refused: set[str] = field(
        default_factory=set
    )  # identities with the stored refusal `cap_reached`

    @property
    def seq(self) -> int:
        """Sequence number of the newest entry, -1 before the first."""
        return len(self.hashes) - 1

    def left(self, slot: int, release: str) -> int:
        """How many more charges of this kind the plan allows. Raises LedgerMismatch for an unknown kind."""
        return self.release(slot, release).cap - self.spent.get((slot, release), 0)

    def release(self, slot: int, name: str) -> Release:
        """A release of the plan. Raises LedgerMismatch where there is none of this slot and name."""
        if self.plan is None or type(slot) is not int or not 0 <= slot < len(self.plan.slots):
            raise LedgerMismatch(f"the ledger's plan has no slot {slot}.")
        for candidate in self.plan.slots[slot].releases:
            if candidate.name == name:
                return candidate
        raise LedgerMismatch(f"slot {slot} of the ledger's plan has no release {name!r}.")

    def prepaid_charge(self, slot: int, release: str) -> int | None:
        """Sequence number of the open charge of a prepaid release, None before it is charged."""
        return next(
            (seq for seq, charge in self.open_charges.items() if charge[:2] == (slot, release)),
            None,
        )

    def counts(self) -> list[int]:
        """Releases charged so far, in the order of the plan's list."""
        assert self.plan is not None
        return [
            self.spent.get((slot, r.name), 0)
            for slot, entry in enumerate(self.plan.slots)
            for r in entry.releases
        ]

    def apply(self, kind: str, body: dict, digest: str) -> None:
        """Check one entry against all before it and take it in. Raises LedgerMismatch and leaves the sums unchanged."""
        rules: dict[str, Callable[..., None]] = {
            "genesis": self._genesis,
            "extractor": self._extractor,
            "charge": self._charge,
            "release": self._release,
            "refusal": self._refusal,
            "analyst": self._analyst,
        }
        if (
            kind not in rules
            or (kind == "genesis") != (self.seq < 0)
            or (kind == "analyst") != self.is_register()
        ):
            raise LedgerMismatch(
                f"entry {self.seq + 1} of the ledger has the unknown or misplaced kind {kind!r}."
            )
        try:
            rules[kind](**body)
        except (TypeError, KeyError, AttributeError, InvalidInput) as error:
            text = f"entry {self.seq + 1} of the ledger ({kind}) has missing, unknown or impossible fields."
            raise LedgerMismatch(text) from error
        self.hashes.append(digest)
        self.head = digest

    def is_register(self) -> bool:
        """Whether this is no budget but the list of several analysts' ledgers: then it names analysts, and nothing else."""
        return self.seq >= 0 and self.adversary == EACH

    def _require(self, rule: bool, text: str) -> None:
        if not rule:
            raise LedgerMismatch(f"entry {self.seq + 1} of the ledger: {text}.")

    def _genesis(
        self, *, format: int, dataset: str, unsafe: bool, plan: dict, adversary: str | None = None
    ) -> None:
        expected = (
            FORMAT if adversary is None else FORMAT_ALONE
        )  # POOLED is the one that is left out
        self._require(
            type(format) is int and format == expected, "its format is unknown, or another's"
        )
        self._require(
            type(dataset) is str and type(unsafe) is bool,
            "a data set without a name, or a noise without a source",
        )
        held = adversary in (None, EACH) or is_single_analyst(adversary)
        self._require(held, "an adversary that no certificate is made for")
        self.dataset, self.unsafe, self.plan, self.adversary = (
            dataset,
            unsafe,
            Plan.from_json(plan),
            adversary or POOLED,
        )

    def _analyst(self, *, name: str, dataset: str) -> None:
        fresh = name not in self.analysts and dataset not in self.analysts.values()
        named = (
            type(name) is str and is_single_analyst(single_analyst(name)) and type(dataset) is str
        )
        self._require(named and fresh, "an analyst, or a data set, that is known")
        self.analysts[name] = dataset

    def _extractor(self, *, sha256: str, fields: dict) -> None:
        self._require(
            type(sha256) is str and type(fields) is dict, "an extractor without a hash or fields"
        )
        self.extractor = sha256

    def _charge(self, *, slot: int, release: str, count: int) -> None:
        self._require(
            type(count) is int and 0 < count <= self.left(slot, release), "a charge passes its cap"
        )
        planned = self.release(slot, release)
        self._require(
            count == 1 or not (planned.batch or planned.prepaid),
            "a second charge where one pays for all",
        )
        self.spent[slot, release] = self.spent.get((slot, release), 0) + count
        self.open_charges[self.seq + 1] = (slot, release, count)

    def _release(self, *, charge: int, results: dict[str, Value]) -> None:
        known = type(charge) is int and charge in self.open_charges
        self._require(known, "a release without an unused charge before it")
        slot, release, count = self.open_charges[charge]
        plan = self.release(slot, release)
        prepaid = plan.prepaid
        whole = prepaid or plan.batch  # one charge, whatever the number of queries
        paid = type(results) is dict and len(results) > 0 and (whole or len(results) <= count)
        self._require(paid, "a release of more than was charged")
        fresh = all(
            release not in self.results.get(i, {}) and i not in self.refused for i in results
        )
        self._require(fresh, "a second release for the same query")
        fits = all(_fits(plan.curve, value) for value in results.values())
        self._require(fits, "a released value is no outcome of what its curve prices")
        if prepaid:
            self.batches[slot] = self.batches.get(slot, 0) + 1
        else:
            del self.open_charges[charge]
        for identity, value in results.items():
            self.results.setdefault(identity, {})[release] = value

    def _refusal(self, *, slot: int, release: str, identities: list[str]) -> None:
        reached = self.left(slot, release) == 0 and not self.release(slot, release).prepaid
        self._require(reached, "a refusal while the cap was not reached")
        listed = type(identities) is list and len(identities) > 0
        self._require(
            listed and all(type(i) is str for i in identities),
            "a refusal of nothing that was asked",
        )
        self.refused.update(identities)


def _fits(curve: str, value: Any) -> bool:
    """Whether a value can be what a curve prices: a bit, a class, or an integer or a list of them."""
    if curve == "screening":
        return _is_integer(value) and value in (0, 1)
    if curve in ONE_OUTCOME:
        return _is_integer(value) and value >= 0
    return _is_integer(value) or _is_list(value)


def _is_list(value: Any) -> bool:
    """A list of at least one integer, and of nothing else."""
    return type(value) is list and len(value) > 0 and all(_is_integer(entry) for entry in value)


def _is_integer(value: Any) -> bool:
    """An integer of 64 bits: a boolean is none."""
    return type(value) is int and abs(value) <= LARGEST
