"""All mechanisms: one union type, and the way from a ledger's recorded fields back to one. What is unknown is refused."""

from __future__ import annotations

from typing import TypeAlias, get_args

from labelwall.teacher.accounting.plan import Slot
from labelwall.teacher.mechanisms.attributes.mechanism import (
    GnmaxAttributes,
    MultiLabel,
    PrivateKnnAttributes,
)
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch.knn import BatchKnn
from labelwall.teacher.mechanisms.batch.radius import RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.naive_knn.mechanism import NaiveKnn
from labelwall.teacher.mechanisms.pate.mechanism import ConfidentGnmax, Gnmax, Lnmax
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.teacher.mechanisms.reverse_knn.mechanism import ReverseKnn
from labelwall.teacher.mechanisms.values.mechanism import (
    PrivateKnnMean,
    PrivateKnnMedian,
    Regression,
)
from labelwall.wall.datasets.sources import Labels
from labelwall.wall.errors import InvalidInput, LedgerMismatch

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
        raise LedgerMismatch(
            "the ledger's plan names a mechanism that this version does not know."
        ) from error
    if releases != slot.releases:
        raise LedgerMismatch(
            "the ledger's plan accounts for other releases than its mechanism draws."
        )
    return mechanism


def _counts(slot: Slot) -> tuple[int, int]:
    """(asked, answered) of a slot: the caps of its first and of its last release."""
    if not slot.releases:
        raise LedgerMismatch("the ledger's plan has a slot without releases.")
    return slot.releases[0].cap, slot.releases[-1].cap
