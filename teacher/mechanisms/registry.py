"""All mechanisms: one union type, and the way from a ledger's recorded fields back to one. What is unknown is refused."""

from __future__ import annotations

from typing import TypeAlias, get_args

from teacher.mechanisms.batch_knn import BatchKnn
from teacher.mechanisms.ind_knn import IndKnn
from teacher.mechanisms.mechanism import Mechanism
from teacher.mechanisms.multilabel import GnmaxAttributes, MultiLabel, PrivateKnnAttributes
from teacher.mechanisms.naive_knn import NaiveKnn
from teacher.mechanisms.pate import ConfidentGnmax, Gnmax, Lnmax
from teacher.mechanisms.private_knn import PrivateKnn
from teacher.mechanisms.radius import RadiusNeighbours
from teacher.mechanisms.regression import PrivateKnnMean, PrivateKnnMedian, Regression
from teacher.mechanisms.reverse_knn import ReverseKnn
from teacher.privacy.plan import Slot
from wall.errors import InvalidInput, LedgerMismatch
from wall.sources import Labels

AnyMechanism: TypeAlias = (  # a union, told apart by `kind`
    PrivateKnn
    | IndKnn
    | ReverseKnn
    | NaiveKnn
    | Lnmax
    | Gnmax
    | ConfidentGnmax
    | RadiusNeighbours
    | BatchKnn
    | PrivateKnnAttributes
    | GnmaxAttributes
    | PrivateKnnMean
    | PrivateKnnMedian
)

MECHANISMS: dict[str, type[AnyMechanism]] = {m.kind: m for m in get_args(AnyMechanism)}
DEFAULT_KIND = PrivateKnn.kind


def mechanism_class(kind: object) -> type[AnyMechanism]:
    """The mechanism called ``kind``. Raises InvalidInput for an unknown one."""
    if not isinstance(kind, str) or kind not in MECHANISMS:
        raise InvalidInput("mechanism.kind", f"one of {', '.join(MECHANISMS)}", kind)
    return MECHANISMS[kind]


def answers_with(mechanism: Mechanism) -> Labels:
    """What a mechanism says of a row, hence what rows must have."""
    if isinstance(mechanism, Regression):
        return "value"
    return "attributes" if isinstance(mechanism, MultiLabel) else "class"


def from_slot(slot: Slot) -> AnyMechanism:
    """The mechanism of a plan's slot. Raises LedgerMismatch unless the slot's releases are exactly the mechanism's own."""
    try:
        mechanism = MECHANISMS[str(slot.mechanism["kind"])](**slot.mechanism)  # type: ignore[arg-type]
        releases = mechanism.releases(*_counts(slot))
    except (KeyError, TypeError) as error:
        raise LedgerMismatch("the ledger's plan names a mechanism that this version does not know.") from error
    if releases != slot.releases:
        raise LedgerMismatch("the ledger's plan accounts for other releases than its mechanism draws.")
    return mechanism


def _counts(slot: Slot) -> tuple[int, int]:
    """(asked, answered) of a slot: the caps of its first and of its last release."""
    if not slot.releases:
        raise LedgerMismatch("the ledger's plan has a slot without releases.")
    return slot.releases[0].cap, slot.releases[-1].cap
