"""Usage by caller: a private table in the ledger's file, written with each call's first charge.

The table is never exported. Per-key caps are enforced here: check, note and charge are one
transaction. What the data set has spent is recorded by the ledger alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from ...wall.errors import LabelwallError
from ..ledger.ledger import Ledger
from ..ledger.state import LedgerState
from ..ledger.tables import CHARGED, note_event

metadata = sa.MetaData()
calls = sa.Table(
    "calls",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("caller", sa.Text, nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("queries", sa.Integer, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
)


@dataclass(frozen=True)
class Snapshot:
    """The ledger's public counts at one position, for readers in other threads.

    ``spent``, ``remaining``: releases by (slot, release).
    """

    position: int
    head: str
    spent: dict[tuple[int, str], int]
    remaining: dict[tuple[int, str], int]

    @classmethod
    def of(cls, state: LedgerState) -> Snapshot:
        """The counts of a state that was read."""
        assert state.plan is not None
        slots = enumerate(state.plan.slots)
        keys = [(slot, release.name) for slot, entry in slots for release in entry.releases]
        return cls(
            state.seq,
            state.head,
            spent={key: state.spent.get(key, 0) for key in keys},
            remaining={key: state.remaining(*key) for key in keys},
        )


@dataclass(frozen=True)
class Call:
    """A note that ``caller`` is about to be charged for ``queries`` new queries of ``slot``.

    ``position``: the ledger's newest entry at that time.
    """

    caller: str
    slot: int
    queries: int
    position: int


class OverCap(LabelwallError):
    """Calls would exceed their caps. ``positions``: theirs in what was requested."""

    def __init__(self, positions: Sequence[int]) -> None:
        self.positions = positions
        super().__init__("calls exceed their caps")


class Usage:
    """The table of one ledger. ``charged``: caller -> new queries noted so far.

    Only rows that are not in ``charged`` yet are read: a note takes as long as the first one.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._newest = 0  # number of the last row in ``charged``
        self.charged: Counter[str] = Counter()
        ledger.in_custody(metadata.create_all)
        self._newest, self.charged = ledger.in_custody(self._read)

    @contextmanager
    def noted(self, requested: Sequence[tuple[Call, int | None]]) -> Iterator[None]:
        """Within, note calls with what is written first, unless one exceeds its cap (None: no cap).

        Check, note and charge are one transaction, so notes of other processes in the same ledger
        count. A call without new queries always fits and is not noted. Raises OverCap where calls
        do not fit: nothing was charged, and nothing noted.
        """
        if not any(call.queries for call, _ in requested):
            yield
            return
        over: list[int] = []
        stored = self._newest, self.charged

        def work(connection: sa.Connection) -> None:
            nonlocal stored
            newest, charged = self._read(connection)
            allowed, newest = _note(connection, requested, newest, charged)
            over.extend(i for i, fits in enumerate(allowed) if not fits)
            if over:
                raise OverCap(over)
            stored = newest, charged

        try:
            with self._ledger.with_next_write(work):
                yield
        except LabelwallError:  # of a prepaid release it does not say why
            if over:
                raise OverCap(over) from None
            raise
        self._newest, self.charged = stored

    def _read(self, connection: sa.Connection) -> tuple[int, Counter[str]]:
        """(number of the last row, sums by caller), with what other processes have noted."""
        newest, charged = self._newest, Counter(self.charged)
        rows = sa.select(calls.c.number, calls.c.caller, calls.c.queries)
        for row in connection.execute(rows.where(calls.c.number > newest)):
            charged[row.caller] += row.queries
            newest = max(newest, row.number)
        return newest, charged

    def calls(self, caller: str | None = None, newest: int | None = None) -> list[Call]:
        """The ``newest`` calls (None: all), oldest first, of one ``caller`` or of all."""
        chosen = sa.select(calls).order_by(calls.c.number.desc()).limit(newest)
        if caller is not None:
            chosen = chosen.where(calls.c.caller == caller)
        rows = self._ledger.in_custody(lambda connection: connection.execute(chosen).all())
        return [Call(row.caller, row.slot, row.queries, row.position) for row in reversed(rows)]


def _note(
    connection: sa.Connection,
    requested: Sequence[tuple[Call, int | None]],
    newest: int,
    charged: Counter[str],
) -> tuple[list[bool], int]:
    """(which calls fit their cap, number of the last row). Adds the notes to ``charged``."""
    allowed: list[bool] = []
    for call, cap in requested:
        fits = call.queries == 0 or cap is None or charged[call.caller] + call.queries <= cap
        allowed.append(fits)
        if fits and call.queries:
            row = calls.insert().returning(calls.c.number)
            newest = connection.execute(row, vars(call)).scalar_one()
            note_event(connection, CHARGED, call.queries, call.caller, call.position)
            charged[call.caller] += call.queries
    return allowed, newest
