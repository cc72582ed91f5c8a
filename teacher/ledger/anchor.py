"""The anchor: a record apart from a ledger, which lets only one of the ledger's copies continue.

The anchor stores the newest entry of the copy in use and the nonce that wrote it. A nonce is a
random number. Every transaction that writes takes a new nonce, stores it in the ledger with the
previous one, in the same commit, and then moves the anchor to it. Two copies may write the same
entry, but never under the same nonce.

The order, with the anchor locked from the first step to the last:

    read the anchor, compare  ->  commit the ledger  ->  move the anchor, durably  ->  draw, or send

A process that dies before the ledger's commit leaves both as they were. One that dies after it
leaves the ledger one nonce ahead of the anchor; nothing was drawn for that nonce, and nothing that
it stored was sent. The next transaction of this copy moves the anchor before it reads. If another
copy writes first, that copy continues, and this one is refused from then on.

**Claim.** The charges that were drawn for, and the entries that were sent or read under the anchor,
in whatever copy, are one chain, and each charge is drawn for at most once. t(W) is the nonce of a
transaction W, p(W) the ledger's nonce before it. *Proof.*

1. The anchor moves under its lock alone, and only from a nonce p to a nonce t(W) with p(W) = p:
   when W itself moves it, W held the lock since the comparison; when a later transaction does, it
   saw the anchor at the nonce before the ledger's. Nonces are fresh, so none is left and entered
   again. The nonces that the anchor has held are a path W1, W2, ...: each continues the last.
2. A copy of W's entries holds t(W). A copy that holds the anchor's nonce and the anchored entry has
   W1, ..., Wn and nothing else (or Wn alone is missing from the anchor, and is then moved in
   first). So the entries of the path are one chain of hashes.
3. A process draws for the charges of W after its own move to t(W) has returned, and no other
   process can return from it. What a transaction reads was anchored before it reads. Both are on
   the path.
4. Kills. Before the ledger's commit: it is rolled back. Between the commit and the move: the ledger
   has W, the anchor p(W), and W was neither drawn for nor sent. Either this copy later moves the
   anchor to t(W), or a copy that ended at p(W) comes first and moves the anchor to its own W'; then
   t(W) is off the path and this copy is refused for ever. After the move: every other copy is
   refused. A COMMIT in flight on a server whose client died is stored later or not at all: both are
   one of these cases, and a transaction on the same server waits for it; so for an anchor on a
   server. Between the rename of an anchor's file and the synchronisation of its directory: whoever
   reads a value that it did not write synchronises the directory first. A server drops the anchor's
   lock while its holder lives: the move fails with the connection, as a kill between commit and
   move.
5. Two copies that wrote the same entry have the same hash and different nonces. A reservation of
   individual budgets writes private rows alone and takes a nonce, too. QED
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ...wall.errors import LedgerMismatch
from .anchor_store import AnchoredEntry, AnchorRow, FileStore, ServerStore
from .database import Place
from .url import LedgerUrl


def new_nonce() -> str:
    """128 random bits, hex."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Position:
    """The newest entry and the nonces of a stored ledger.

    Args:
        newest: its newest entry and the nonce that wrote it, "" before the first nonce.
        previous_nonce: the nonce before that one.
        hash_of: from a sequence number to the stored entry's hash, None where there is no entry.
    """

    newest: AnchoredEntry
    previous_nonce: str
    hash_of: Callable[[int], str | None]


class Anchor:
    """The anchor of one ledger.

    ``begun``: the sequence number at which this object created it, None where the anchor existed.
    """

    def __init__(self, place: Place) -> None:
        self._store: FileStore | ServerStore
        self._store = ServerStore(place) if isinstance(place, LedgerUrl) else FileStore(place)
        self.begun: int | None = None

    def exists(self) -> bool:
        """Whether there is an anchor. Raises LedgerMismatch where it can not be reached."""
        return self._store.exists()

    @contextmanager
    def locked(self, position: Position) -> Iterator[FileStore | AnchorRow]:
        """Lock the anchor, which on entry durably stores ``position.newest``.

        Nobody else moves it before the exit. The caller has locked the ledger, so ``position``
        stays true. Raises LedgerMismatch for a ledger that the anchor does not let continue, and
        for an anchor that is gone or can not be read.
        """
        with self._store.locked() as anchor:
            anchored = anchor.read()
            self._require(anchored, position)
            if anchored == position.newest:
                yield anchor
                return
            anchor.write(position.newest)
        if anchored is None:
            self.begun = position.newest.seq
        # Lock it again: on a server the move is durable only when its transaction has ended.
        with self._store.locked() as anchor:
            if anchor.read() != position.newest:
                raise LedgerMismatch(self._forked(position.newest.seq))
            yield anchor

    def _require(self, anchored: AnchoredEntry | None, position: Position) -> None:
        if anchored is None:
            if position.newest.nonce:
                raise LedgerMismatch(
                    f"there is no anchor {self._store.name}, but the ledger has one. Name the "
                    "anchor that it has; where that is lost, docs/guide.md says what to do. "
                    "Nothing was charged or drawn."
                )
            return
        known = anchored.nonce in ("", position.newest.nonce, position.previous_nonce)
        if not known or position.hash_of(anchored.seq) != anchored.hash:
            raise LedgerMismatch(self._forked(anchored.seq))

    def _forked(self, seq: int) -> str:
        return (
            f"the ledger is older than, or forked from, its anchor {self._store.name} (entry "
            f"{seq}): another copy of it has continued. Nothing was charged or drawn. Use the copy "
            "that has continued, or restore the newest one."
        )
