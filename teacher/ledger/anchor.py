"""The anchor: a record kept away from a ledger, which of all copies of that ledger lets one go on.

It holds the newest entry of the copy that has gone on, and the turn that wrote it. A turn is a random number: every transaction
that writes takes a new one, stores it in the ledger with the one before, in the same commit, and then moves the anchor to it. Two
copies may write the same entry, but never under the same turn.

The order, with the anchor held exclusively from the first step to the last:

    read the anchor, compare  ->  commit the ledger  ->  move the anchor, durably  ->  draw, or send

A process that dies before the ledger's commit leaves both as they were. One that dies after it leaves the ledger one turn ahead
of the anchor; nothing was drawn for that turn and nothing that it stored was sent. The next transaction of this copy moves the
anchor before it reads. If another copy comes first, it goes on instead, and this one is refused from then on.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from labelwall.teacher.ledger.anchor_store import FileStore, Held, ServerStore, Slot, Store
from labelwall.teacher.ledger.database import Place
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.wall.errors import LedgerMismatch


def new_turn() -> str:
    """128 random bits, hex."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Position:
    """Where a stored ledger stands.

    Args:
        newest: its newest entry and the turn that wrote it; the turn is "" before the first one under an anchor.
        before: the turn that its last one followed.
        hash_of: hash of the stored entry of a sequence number, None where there is none.
    """

    newest: Held
    before: str
    hash_of: Callable[[int], str | None]


class Anchor:
    """The anchor of one ledger. ``begun``: the sequence number at which this object began it, None where it was there."""

    def __init__(self, place: Place) -> None:
        self._store: Store = (
            ServerStore(place) if isinstance(place, LedgerUrl) else FileStore(place)
        )
        self.begun: int | None = None

    def exists(self) -> bool:
        """Whether there is an anchor. Raises LedgerMismatch where that can not be found out."""
        return self._store.exists()

    @contextmanager
    def hold(self, here: Position) -> Iterator[Slot]:
        """Hold the anchor exclusively. On entry it holds ``here.newest``, durably, and nobody else moves it before the exit.

        The caller holds the ledger's own lock, so that ``here`` stays true. Raises LedgerMismatch for a ledger that the anchor
        does not let go on, and for an anchor that is gone or can not be read.
        """
        with self._store.locked() as slot:
            found = slot.read()
            self._require(found, here)
            if found == here.newest:
                yield slot
                return
            slot.write(here.newest)
        if found is None:
            self.begun = here.newest.seq
        with (
            self._store.locked() as slot
        ):  # anew: on a server the move is durable only when its transaction has ended
            if slot.read() != here.newest:
                raise LedgerMismatch(self._forked(here.newest.seq))
            yield slot

    def _require(self, found: Held | None, here: Position) -> None:
        if found is None:
            if here.newest.turn:
                raise LedgerMismatch(
                    f"there is no anchor {self._store.name}, but the ledger has one. Name the anchor that it has; where that is "
                    "lost, docs/guide.md says what to do. Nothing was charged or drawn."
                )
            return
        known = found.turn in ("", here.newest.turn, here.before)
        if not known or here.hash_of(found.seq) != found.hash:
            raise LedgerMismatch(self._forked(found.seq))

    def _forked(self, seq: int) -> str:
        return (
            f"the ledger is older than, or forked from, its anchor {self._store.name} (entry {seq}): another copy of it has gone "
            "on. Nothing was charged or drawn. Use the copy that has gone on, or restore the newest one."
        )
