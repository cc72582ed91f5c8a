"""Ledgers for tests of what reads them: as a teacher records them, and as a forger writes them."""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import Place
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.messages import ExtractorSpec
from tests.make import Watched, plan_of
from tests.postgres import rows

SPEC = ExtractorSpec("raw", (4,), 4)
MECHANISM = PrivateKnn(k=30, threshold=10, sigma_screen=8.0, sigma_vote=4.0, sample_rate=0.5)
Entry = tuple[str, str]  # kind and body, as they are stored
TABLES = """
CREATE TABLE entries (seq INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    prev TEXT NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (seq));
CREATE TABLE head (one INTEGER NOT NULL, seq INTEGER NOT NULL, hash TEXT NOT NULL,
    PRIMARY KEY (one));
CREATE TABLE extractors (sha256 TEXT NOT NULL, fields TEXT NOT NULL);
"""


class Watching(Watched):
    """The system's entropy, with an eye on a ledger's place whenever something is drawn.

    ``drawn``: how much of each release; ``unpaid``: draws that were not paid for, or, under
    individual budgets, not reserved by the last row.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(self._watch)
        self._place, self.drawn, self.unpaid = place, Counter[str](), 0

    def _watch(self, law: str, _: float, keys: Sequence[str], release: str) -> None:
        state = Ledger(self._place).state
        assert state.plan is not None
        if state.plan.slots[0].releases[0].prepaid:
            last = "SELECT kind FROM private ORDER BY position DESC LIMIT 1"
            self.unpaid += rows(self._place, last) != [("hold",)]
        else:
            self.unpaid += state.spent.get((0, release), 0) < self.drawn[release] + len(keys)
        self.drawn[release] += len(keys) if law == "discrete_gaussian" else 0


def plan(asked: int = 5, answered: int = 3) -> Plan:
    return plan_of(MECHANISM, asked, answered)


def created(place: Place, asked: int = 5, answered: int = 3, anchor: Place | None = None) -> Ledger:
    """A new ledger of ``plan``."""
    plan_ = plan(asked, answered)
    return Ledger.create(place, dataset="d", plan=plan_, unsafe=False, anchor=anchor)


def identity(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def identities(*names: str) -> list[str]:
    return [identity(name) for name in names]


def use_extractor(ledger: Ledger) -> None:
    ledger.use_extractor(SPEC.public_fields())


def entries(path: Path) -> list[Entry]:
    """Kind and body of a file's entries, in order."""
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT kind, body FROM entries ORDER BY seq").fetchall()


def parsed(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(kind, json.loads(body)) for kind, body in entries(path)]


def contents(path: Path, kind: str) -> list[dict[str, Any]]:
    return [content for found, content in parsed(path) if found == kind]


def results(path: Path) -> dict[tuple[str, str], int]:
    """(identity, release) -> value of a file, in order, without the product's code."""
    values, names = dict[tuple[str, str], int](), dict[int, str]()
    for seq, (kind, entry) in enumerate(parsed(path)):
        if kind == "charge":
            names[seq] = entry["release"]
        elif kind == "release":
            name = names[entry["charge"]]
            values |= {(identity, name): value for identity, value in entry["results"].items()}
    return values


def extractors(path: Path) -> list[Entry]:
    """Hash and fields of a file's extractors; none where there is no file."""
    if not path.exists():
        return []
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT sha256, fields FROM extractors").fetchall()


def write(path: Path, changed: Sequence[Entry], stored: Sequence[Entry] | None = None) -> None:
    """Entries, numbered and hashed. ``stored``: its extractors, or those of the file it
    replaces."""
    stored = extractors(path) if stored is None else stored
    # A file's text is UTF-8, which has no lone surrogates
    stored = [tuple(text.encode(errors="replace").decode() for text in row) for row in stored]  # type: ignore[misc]
    path.unlink(missing_ok=True)
    prev, rows = "0" * 64, []
    for seq, (kind, body) in enumerate(changed):
        text = json.dumps([seq, kind, body, prev], separators=(",", ":")).encode()
        rows.append((seq, kind, body, prev, hashlib.sha256(text).hexdigest()))
        prev = rows[-1][4]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    connection.executescript(TABLES)
    connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", rows)
    connection.execute("INSERT INTO head VALUES (1, ?, ?)", (len(rows) - 1, prev))
    connection.executemany("INSERT INTO extractors VALUES (?, ?)", stored)
    connection.commit()
    connection.close()
