"""The auditor finds whatever was done to a ledger, also when the forger chains the hashes anew, and says so of nothing else."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.private_knn.mechanism import PrivateKnn
from labelwall.wall.errors import MissingData

MECHANISM = PrivateKnn(
    k=30, threshold=10, sigma_screen=30.0, sigma_vote=25.0, sampling_probability=0.15
)
Row = tuple[int, str, str, str, str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with two batches: 5 of 5 screenings and 3 of 3 aggregations charged, one query refused."""
    plan = Plan(1.0, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(5, 3)),))
    ledger = Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=plan, unsafe=False)
    ledger.use_extractor("00", {"backbone": "hog"})
    for batch in (["a", "b", "c"], ["d", "e"]):
        ledger.record(ledger.charge(0, "screen", batch), dict.fromkeys(batch, 1))
        charge = ledger.charge(0, "aggregate", batch)
        ledger.record(charge, dict.fromkeys(charge.granted, 7)) if charge.granted else None
    ledger.export(tmp_path / "export.sqlite")
    return tmp_path / "export.sqlite"


def rows(path: Path) -> list[Row]:
    with sqlite3.connect(path) as connection:
        return connection.execute(
            "SELECT seq, kind, body, prev, hash FROM entries ORDER BY seq"
        ).fetchall()


def write(path: Path, changed: list[Row]) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM entries")
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", changed)


def rechain(path: Path, changed: list[tuple[str, str]]) -> None:
    """Write entries as a forger would who knows the format: fresh numbers, hashes and head."""
    prev, chained = "0" * 64, []
    for seq, (kind, body) in enumerate(changed):
        text = json.dumps([seq, kind, body, prev], separators=(",", ":")).encode()
        chained.append((seq, kind, body, prev, hashlib.sha256(text).hexdigest()))
        prev = chained[-1][4]
    write(path, chained)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE head SET seq = ?, hash = ?", (len(chained) - 1, prev))


def test_an_honest_ledger_is_consistent_and_priced_like_its_plan(path: Path) -> None:
    found = audit(path)
    assert found.problems == []
    assert (found.charged, found.released) == (
        {"0/screen": 5, "0/aggregate": 3},
        {"0/screen": 5, "0/aggregate": 3},
    )
    assert found.epsilon is not None
    assert 0 < found.epsilon <= 1.0
    assert found.epsilon == min(found.certificates.values())
    assert audit(path, expect_head=rows(path)[4][4]).consistent


@pytest.mark.parametrize("position", range(9))
def test_a_removed_entry_is_found(path: Path, position: int) -> None:
    before = rows(path)
    write(path, [row for row in before if row[0] != position])
    assert not audit(path).consistent


@pytest.mark.parametrize("position", range(9))
def test_an_edited_entry_is_found(path: Path, position: int) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE entries SET body = replace(body, ':', ': ') WHERE seq = ?", (position,)
        )
    assert not audit(path).consistent


@pytest.mark.parametrize(("one", "other"), [(2, 3), (1, 2), (4, 7), (3, 5)])
def test_a_swapped_order_is_found(path: Path, one: int, other: int) -> None:
    before = rows(path)
    with sqlite3.connect(path) as connection:
        for target, source in ((one, before[other]), (other, before[one])):
            connection.execute(
                "UPDATE entries SET kind = ?, body = ?, prev = ?, hash = ? WHERE seq = ?",
                (*source[1:], target),
            )
    assert not audit(path).consistent


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_file_is_found(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert not audit(path).consistent


def entries(path: Path) -> list[tuple[str, str]]:
    return [(kind, body) for _, kind, body, _, _ in rows(path)]


FORGERIES: dict[str, Callable[[list[tuple[str, str]]], list[tuple[str, str]]]] = {
    "cap exceeded": lambda e: [*e, ("charge", '{"count":1,"release":"screen","slot":0}')],
    "released before charged": lambda e: [*e[:2], e[3], e[2], *e[4:]],
    "released without a charge": lambda e: [*e, ("release", '{"charge":99,"results":{"z":1}}')],
    "one charge, two releases": lambda e: [*e, ("release", '{"charge":2,"results":{"z":1}}')],
    "more released than charged": lambda e: [
        *e[:3],
        ("release", e[3][1].replace('"a":1', '"a":1,"y":1,"z":1')),
        *e[4:],
    ],
    "refused with cap left": lambda e: [
        *e[:2],
        ("refusal", '{"identities":["q"],"release":"screen","slot":0}'),
        *e[2:],
    ],
    "unknown kind": lambda e: [*e, ("gift", "{}")],
    "unknown field": lambda e: [*e, ("extractor", '{"fields":{},"sha256":"00","time":1}')],
    "unknown curve": lambda e: [
        (e[0][0], e[0][1].replace('"curve":"argmax"', '"curve":"free"')),
        *e[1:],
    ],
    "plan over budget": lambda e: [
        (e[0][0], e[0][1].replace('"epsilon":1.0', '"epsilon":0.001')),
        *e[1:],
    ],
    "unsafe": lambda e: [(e[0][0], e[0][1].replace('"unsafe":false', '"unsafe":true')), *e[1:]],
    "votes released under an argmax's price": lambda e: [
        *e[:3],
        ("release", e[3][1].replace('"a":1', '"a":[1,2]')),
        *e[4:],
    ],
    "something else released": lambda e: [
        *e[:3],
        ("release", e[3][1].replace('"a":1', '"a":"1"')),
        *e[4:],
    ],
    "negative count": lambda e: [*e, ("charge", '{"count":-3,"release":"screen","slot":0}')],
    "two genesis": lambda e: [e[0], *e],
    "not json": lambda e: [*e, ("charge", "count")],
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_fresh_hashes_is_found(path: Path, name: str) -> None:
    before = entries(path)
    rechain(path, before)
    assert audit(path).consistent  # the forger's hashes are good
    rechain(path, FORGERIES[name](before))
    found = audit(path)
    assert not found.consistent
    assert found.epsilon is None


def test_an_older_copy_or_a_forged_history_misses_the_expected_head(path: Path) -> None:
    head = rows(path)[-1][4]
    rechain(path, entries(path)[:-1])
    assert audit(path).consistent  # nothing in the file itself betrays a shorter history
    assert not audit(path, expect_head=head).consistent


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="no ledger"):
        audit(tmp_path / "nowhere.sqlite")


def test_the_auditor_needs_nothing_of_the_teacher_but_the_curves(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from labelwall.teacher.ledger.auditor.auditor import audit;"
        f"assert audit(Path({str(path)!r})).consistent;"
        "print(sorted(name for name in sys.modules if name.startswith('labelwall.teacher.')"
        " or name in ('torch', 'opendp', 'sqlalchemy')))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.replace("'", '"'))
    room = "labelwall.teacher.ledger"
    assert [name for name in loaded if not name.startswith("labelwall.teacher.accounting")] == [
        room,
        f"{room}.auditor",
    ]
