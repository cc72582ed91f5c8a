"""From a ledger's recorded fields back to the mechanism. An unknown kind or field is refused."""

from __future__ import annotations

from teacher.mechanisms.private_knn import PrivateKnn
from teacher.privacy.plan import Slot
from wall.errors import LedgerMismatch

MECHANISMS = {"private_knn": PrivateKnn}


def from_slot(slot: Slot) -> PrivateKnn:
    """The mechanism of a plan's slot. Raises LedgerMismatch unless the slot's releases are exactly the mechanism's own."""
    try:
        mechanism = MECHANISMS[str(slot.mechanism["kind"])](**slot.mechanism)  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise LedgerMismatch("the ledger's plan names a mechanism that this version does not know.") from error
    if mechanism.releases(*(release.cap for release in slot.releases)) != slot.releases:
        raise LedgerMismatch("the ledger's plan accounts for other releases than its mechanism draws.")
    return mechanism
