"""What a ledger's entries add up to, and the rules an entry must keep. No I/O: the ledger applies entries one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from labelwall.teacher.accounting.plan import Plan, Release
from labelwall.wall.adversary import EACH, POOLED, alone, is_alone
from labelwall.wall.errors import LedgerMismatch
from labelwall.wall.messages import Value

FORMAT, FORMAT_ALONE = 1, 2  # the second names its adversary
ONE_OUTCOME = (
    "screening",
    "argmax",
    "bounded_range",
)  # curves that price a bit, a winner or a draw, not what is behind it
GENESIS_PREV = "0" * 64


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
        if self.plan is None or not 0 <= slot < len(self.plan.slots):
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
        except (TypeError, KeyError, AttributeError) as error:
            raise LedgerMismatch(
                f"entry {self.seq + 1} of the ledger ({kind}) has missing or unknown fields."
            ) from error
        self.hashes.append(digest)
        self.head = digest

    def is_register(self) -> bool:
        """Whether this is no budget but the list of several analysts' ledgers: then it names analysts, and nothing else."""
        return self.seq >= 0 and self.adversary == EACH

    def _require(self, rule: bool, text: str) -> None:
        if not rule:
            raise LedgerMismatch(f"entry {self.seq + 1} of the ledger: {text}.")

    def _genesis(
        self, *, format: int, dataset: str, unsafe: bool, plan: dict, adversary: str = POOLED
    ) -> None:
        self._require(
            format == (FORMAT if adversary == POOLED else FORMAT_ALONE),
            f"format {format} is unknown, or another's",
        )
        self._require(
            adversary in (POOLED, EACH) or is_alone(adversary),
            "an adversary that no certificate is made for",
        )
        self.dataset, self.unsafe, self.plan, self.adversary = (
            dataset,
            bool(unsafe),
            Plan.from_json(plan),
            adversary,
        )

    def _analyst(self, *, name: str, dataset: str) -> None:
        fresh = name not in self.analysts and dataset not in self.analysts.values()
        self._require(
            is_alone(alone(name)) and isinstance(dataset, str) and fresh,
            "an analyst, or a data set, that is known",
        )
        self.analysts[name] = dataset

    def _extractor(self, *, sha256: str, fields: dict) -> None:
        self.extractor = sha256

    def _charge(self, *, slot: int, release: str, count: int) -> None:
        self._require(
            isinstance(count, int) and 0 < count <= self.left(slot, release),
            "a charge passes its cap",
        )
        self.spent[slot, release] = self.spent.get((slot, release), 0) + count
        self.open_charges[self.seq + 1] = (slot, release, count)

    def _release(self, *, charge: int, results: dict[str, Value]) -> None:
        self._require(charge in self.open_charges, "a release without an unused charge before it")
        slot, release, count = self.open_charges[charge]
        plan = self.release(slot, release)
        prepaid, lists = plan.prepaid, plan.curve not in ONE_OUTCOME
        whole = prepaid or plan.batch  # one charge, whatever the number of queries
        self._require(
            len(results) > 0 and (whole or len(results) <= count),
            "a release of more than was charged",
        )
        fresh = all(
            release not in self.results.get(i, {}) and i not in self.refused for i in results
        )
        self._require(fresh, "a second release for the same query")
        fits = all(type(value) is int or (lists and _is_list(value)) for value in results.values())
        self._require(
            fits,
            "a released value is not an integer, nor a list of them where the curve prices one",
        )
        if prepaid:
            self.batches[slot] = self.batches.get(slot, 0) + 1
        else:
            del self.open_charges[charge]
        for identity, value in results.items():
            self.results.setdefault(identity, {})[release] = value

    def _refusal(self, *, slot: int, release: str, identities: list[str]) -> None:
        reached = self.left(slot, release) == 0 and not self.release(slot, release).prepaid
        self._require(reached, "a refusal while the cap was not reached")
        self.refused.update(identities)


def _is_list(value: object) -> bool:
    """A list of at least one integer, and of nothing else: a boolean is none."""
    return type(value) is list and len(value) > 0 and all(type(entry) is int for entry in value)
