"""All mechanisms: one union type, and the way from a ledger's recorded fields back to one. What is unknown is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Literal, TypeAlias, get_args, get_origin, get_type_hints

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
from teacher.privacy.plan import Release, Slot
from wall.errors import InvalidInput, LedgerMismatch
from wall.messages import canonical_json
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
    """The mechanism of a plan's slot. Raises LedgerMismatch unless the slot's releases are exactly the mechanism's own, and
    InvalidInput for a field out of range."""
    try:
        made = MECHANISMS[str(slot.mechanism["kind"])]
        require_types(made, slot.mechanism)
        mechanism = made(**slot.mechanism)  # type: ignore[arg-type]
        releases = mechanism.releases(*_counts(slot))
    except (KeyError, TypeError) as error:
        raise LedgerMismatch("the ledger's plan names a mechanism that this version does not know.") from error
    if _text(releases) != _text(slot.releases):
        raise LedgerMismatch("the ledger's plan accounts for other releases than its mechanism draws.")
    return mechanism


def require_types(made: type, fields: Mapping[str, object]) -> None:
    """Raise TypeError for a recorded field whose type is not the declared one: true is no number, and 1.0 no integer."""
    hints = get_type_hints(made)
    for name, value in fields.items():
        if name not in hints or not _is_of(value, hints[name]):
            raise TypeError(f"{name} is of another type")


def _is_of(value: object, hint: object) -> bool:
    """Whether a JSON value is of a field's type: int, float (which may be written as an integer), bool, Literal, or a union."""
    if get_origin(hint) is Literal:
        return type(value) is str and value in get_args(hint)
    if get_args(hint):
        return any(_is_of(value, option) for option in get_args(hint))
    return type(value) is hint or (hint is float and type(value) is int)


def _text(releases: tuple[Release, ...]) -> bytes:
    """Releases in one byte form, in which 1, 1.0 and true differ."""
    return canonical_json([asdict(release) for release in releases])


def _counts(slot: Slot) -> tuple[int, int]:
    """(asked, answered) of a slot: the caps of its first and of its last release."""
    if not slot.releases:
        raise LedgerMismatch("the ledger's plan has a slot without releases.")
    return slot.releases[0].cap, slot.releases[-1].cap
