"""The auditor finds every change of a ledger, even with recomputed hashes, and nothing else."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from labelwall import pipeline
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.auditor.entries import canonical
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.votes import Lnmax, PrivateKnn
from labelwall.wall.errors import LedgerMismatch, MissingData
from tests.ledgers import Entry, entries, identities, use_extractor
from tests.ledgers import write as rechain
from tests.postgres import rows
from tests.teacher.ledger.auditor.honest_ledgers import genesis

MECHANISM = PrivateKnn(
    k=30, threshold=10, sigma_screen=30.0, sigma_vote=25.0, sampling_probability=0.15
)
A, B, C, D, E, Y, Z = identities(*"abcdeyz")
OTHER = "extractor", f'{{"sha256":"{"e" * 64}"}}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """5 of 5 screenings and 3 of 3 aggregations in two batches; one query is refused."""
    plan = Plan(1.0, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(5, 3)),))
    ledger = Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=plan, unsafe=False)
    use_extractor(ledger)
    for batch in ([A, B, C], [D, E]):
        ledger.record(ledger.charge(0, "screen", batch), dict.fromkeys(batch, 1))
        charge = ledger.charge(0, "aggregate", batch)
        ledger.record(charge, dict.fromkeys(charge.granted, 7)) if charge.granted else None
    ledger.export(tmp_path / "export.sqlite")
    return tmp_path / "export.sqlite"


def hashes(path: Path) -> list[str]:
    return [digest for (digest,) in rows(path, "SELECT hash FROM entries ORDER BY seq")]


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
    assert audit(path, expect_head=hashes(path)[4]).consistent
    assert found.explanation == []
    explained = audit(path, explained=True)
    assert explained.render().endswith("\n".join(explained.explanation))
    assert explained.explanation[-2].startswith("the smallest of all certificates counts: tight")


def changed(position: int, old: str, new: str) -> Callable[[list[Entry]], list[Entry]]:
    """One entry with one text in place of another, once."""

    def forge(before: list[Entry]) -> list[Entry]:
        kind, body = before[position]
        assert old in body
        return [*before[:position], (kind, body.replace(old, new, 1)), *before[position + 1 :]]

    return forge


def edited(position: int, old: str, new: str) -> Callable[[list[Entry]], list[Entry]]:
    """The same by a forger who writes the one form of an entry."""

    def forge(before: list[Entry]) -> list[Entry]:
        after = changed(position, old, new)(before)
        kind, body = after[position]
        return [*after[:position], (kind, canonical(json.loads(body))), *after[position + 1 :]]

    return forge


def added(kind: str, body: str) -> Callable[[list[Entry]], list[Entry]]:
    return lambda before: [*before, (kind, body)]


FIRST = f'"{min(A, B, C)}":1'  # of the first screening's results
WON = f'"{min(A, B, C)}":7'  # of the first winners
REFUSED = f'{{"identities":["{Y}"],"release":"screen","slot":0}}'
FORGERIES: dict[str, tuple[str, Callable[[list[Entry]], list[Entry]]]] = {
    "cap exceeded": ("past the cap", added("charge", '{"count":1,"release":"screen","slot":0}')),
    "released before charged": ("unused charge", lambda e: [*e[:2], e[3], e[2], *e[4:]]),
    "released without a charge": (
        "unused charge",
        added("release", f'{{"charge":99,"results":{{"{Z}":1}}}}'),
    ),
    "one charge, two releases": (
        "unused charge",
        added("release", f'{{"charge":2,"results":{{"{Z}":1}}}}'),
    ),
    "more released than charged": ("paid for", edited(3, FIRST, f'{FIRST},"{"f" * 64}":1')),
    "refused with cap left": (
        "not reached",
        lambda e: [*e[:2], ("refusal", REFUSED), *e[2:]],
    ),
    "unknown kind": ("unknown kind", added("gift", "{}")),
    "unknown field": ("unknown ['time']", edited(1, '"sha256"', '"time":1,"sha256"')),
    "unknown curve": ("prices", changed(0, '"curve":"argmax"', '"curve":"free"')),
    "plan over budget": ("budget", changed(0, '"epsilon":1.0', '"epsilon":0.001')),
    "another format": ("`format` of the ledger must be 1", changed(0, '"format":1', '"format":2')),
    "unsafe": ("unsafe", changed(0, '"unsafe":false', '"unsafe":true')),
    "votes released under an argmax's price": (
        "a class",
        changed(5, WON, WON.replace(":7", ":[1,2]")),
    ),
    "something else released": ("0 or 1", changed(3, FIRST, FIRST.replace(":1", ':"1"'))),
    "negative count": (
        "integer from 1",
        added("charge", '{"count":-3,"release":"screen","slot":0}'),
    ),
    "two genesis": ("second first entry", lambda e: [e[0], *e]),
    "a later genesis": ("second first entry", lambda e: [*e, e[0]]),
    "not json": ("JSON", added("charge", "count")),
    "count: NaN": ("finite", changed(2, '"count":3', '"count":NaN')),
    "count: infinity": ("JSON", changed(2, '"count":3', '"count":1e999')),
    "count: true": ("True", changed(6, '"count":2', '"count":true')),
    "count: 3.0": ("3.0", changed(2, '"count":3', '"count":3.0')),
    "a repeated key": ("twice", changed(2, '"count":3', '"count":3,"count":3')),
    "a repeated key within": ("twice", changed(0, '"cap":5', '"cap":5,"cap":900')),
    "another form": ("one form", changed(2, ",", ", ")),
    "an unknown mechanism": ("unknown kind", changed(0, '"kind":"private_knn"', '"kind":"magic"')),
    "a screening bit of 123456789": ("0 or 1", changed(3, FIRST, FIRST + "23456789")),
    "a screening bit of true": ("0 or 1", changed(3, FIRST, FIRST.replace(":1", ":true"))),
    "a label of 10^30": ("a class", changed(5, WON, WON.replace(":7", f":{10**30}"))),
    "a label of -1": ("a class", changed(5, WON, WON.replace(":7", ":-1"))),
    "a query without a hash": ("64 hexadecimal", edited(3, FIRST, '"a":1')),
    "a winner although the screening said no": (
        "did not pass",
        changed(3, FIRST, FIRST.replace(":1", ":0")),
    ),
    "a winner without a screening": ("did not pass", edited(5, min(A, B, C), "f" * 64)),
    "a charge before an extractor": ("extractor", lambda e: [e[0], *e[2:]]),
    "an extractor of another hash": ("not in the file", lambda e: [e[0], OTHER, *e[2:]]),
    "an extractor twice": ("in use already", lambda e: [*e[:2], *e[1:]]),
    "delta: 0": ("above 0 and below 1", changed(0, '"delta":1e-05', '"delta":0')),
    "delta: 1.0": ("above 0 and below 1", changed(0, '"delta":1e-05', '"delta":1.0')),
    "a cap of true": ("integer from 0", changed(0, '"cap":5', '"cap":true')),
    "a sigma of 0": ("sigma_vote", changed(0, '"sigma_vote":25.0', '"sigma_vote":0')),
    "a sampling probability of true": (
        "sampling_probability",
        changed(0, '"sampling_probability":0.15', '"sampling_probability":true'),
    ),
    "batch: 1": ("batch", changed(0, '"batch":false', '"batch":1')),
    "an adversary that is not named": ("adversary", edited(0, '"adversary":"', '"adversary":"x')),
    "nothing": ("no first entry", lambda e: []),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_fresh_hashes_is_found(path: Path, name: str) -> None:
    before, (problem, forge) = entries(path), FORGERIES[name]
    rechain(path, before)
    assert audit(path).consistent  # the forger's hashes are good
    rechain(path, forge(before))
    found = audit(path)
    assert any(problem in line for line in found.problems), found.problems
    assert found.epsilon is None
    assert found.certificates == {}
    assert all(line.isprintable() and len(line) < 500 for line in found.problems)


def ledger_of(mechanism: Mechanism, releases: list[dict[str, Any]], folder: Path) -> Path:
    """A ledger whose plan names a mechanism, and prices these releases."""
    slot = {"mechanism": mechanism.fields(), "releases": releases}
    plan = {"epsilon": 1000.0, "delta": 1e-5, "slots": [slot], "unit": "row"}
    first = {**genesis(Plan(1.0, 0.5, ())), "plan": plan}
    rechain(folder / "forged.sqlite", [("genesis", canonical(first))], [])
    return folder / "forged.sqlite"


def laplace(scale: float, cap: int = 100) -> dict[str, Any]:
    fields = {"name": "aggregate", "curve": "laplace", "cap": cap, "prepaid": False, "batch": False}
    return {**fields, "parameters": {"scale": scale, "sensitivity": 2.0}}


def test_the_releases_priced_are_those_of_the_mechanism(tmp_path: Path) -> None:
    """lnmax of scale 1 costs 2 a label, 195.817 for 100.

    A plan that prices scale 900 would say 0.066.
    """
    mechanism = Lnmax(scale=1.0)
    honest = audit(ledger_of(mechanism, [laplace(1.0)], tmp_path))
    assert (honest.problems, honest.epsilon) == ([], 195.817)
    for priced in ([laplace(900.0)], [], [laplace(1.0), laplace(1.0)]):
        forged = audit(ledger_of(mechanism, priced, tmp_path))
        assert any(
            "mechanism releases" in line or "releases must" in line for line in forged.problems
        )
        assert forged.epsilon is None
    forged = audit(ledger_of(Lnmax(scale=900.0), [laplace(900.0)], tmp_path))
    assert forged.epsilon == 0.066  # another mechanism, at its own price


def test_what_is_released_has_a_price(tmp_path: Path) -> None:
    free = [
        {**laplace(1.0), "name": name, "curve": "pure", "parameters": {"epsilon": 0}}
        for name in ("screen", "aggregate")
    ]
    finding = audit(ledger_of(MECHANISM, free, tmp_path))
    assert any("prices" in line for line in finding.problems)
    assert finding.epsilon is None


SWAP = "UPDATE entries SET seq = {} WHERE seq = {};"
TABLES: dict[str, tuple[str, str]] = {
    **{f"entry {n} removed": ("", f"DELETE FROM entries WHERE seq = {n}") for n in range(9)},
    **{
        f"entry {n} edited": (
            "edited",
            f"UPDATE entries SET body = replace(body, ':', ': ') WHERE seq = {n}",
        )
        for n in range(9)
    },
    **{
        f"entries {one} and {other} swapped": (
            "",
            SWAP.format(-1, one) + SWAP.format(one, other) + SWAP.format(other, -1),
        )
        for one, other in ((2, 3), (1, 2), (4, 7), (3, 5))
    },
    "two heads": ("one head", "INSERT INTO head SELECT 2, seq, hash FROM head"),
    "no head": ("one head", "DELETE FROM head"),
    "another head": ("head", "UPDATE head SET seq = 3"),
    "no entries": ("table 'entries'", "DROP TABLE entries"),
    "no table of heads": ("table 'head'", "DROP TABLE head"),
    "a table more": ("no ledger has", "CREATE TABLE gift (a)"),
    "a view": ("no ledger has", "CREATE VIEW later AS SELECT * FROM entries"),
    "a trigger": ("no ledger has", "CREATE TRIGGER t AFTER INSERT ON entries BEGIN SELECT 1; END"),
    "a column more": ("columns", "ALTER TABLE entries ADD COLUMN time TEXT"),
    "a blob": ("other types", "UPDATE entries SET body = CAST(body AS BLOB) WHERE seq = 2"),
    "no text": ("readable", "UPDATE entries SET body = CAST(x'ff' AS TEXT) WHERE seq = 2"),
    "NUL": ("edited", "UPDATE entries SET kind = 'charge' || char(0) WHERE seq = 2"),
    "entries as a view": (
        "table 'entries'",
        "ALTER TABLE entries RENAME TO e; CREATE VIEW entries AS SELECT * FROM e",
    ),
    "a null": (
        "other types",
        "ALTER TABLE entries RENAME TO updates; CREATE TABLE entries (seq, kind, body, prev, hash);"
        "INSERT INTO entries SELECT seq, kind, CASE WHEN seq = 1 THEN NULL ELSE body END, prev, "
        "hash FROM updates",
    ),
    "a real number": (
        "other types",
        "ALTER TABLE entries RENAME TO updates; CREATE TABLE entries (seq, kind, body, prev, hash);"
        "INSERT INTO entries SELECT seq * 1.0, kind, body, prev, hash FROM updates",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_file_that_is_no_ledger_is_a_problem_and_no_traceback(
    path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problem, statements = TABLES[name]
    connection = sqlite3.connect(path)
    connection.executescript(statements)
    connection.close()
    found = audit(path)
    assert any(problem in line for line in found.problems), found.problems
    assert pipeline.main(["audit", str(path)]) == 3
    assert "NOT CONSISTENT" in capsys.readouterr().out


def flipped(name: bytes) -> Callable[[bytes], bytes]:
    """A flipped bit in the name of a table or of a column."""
    return lambda content: content.replace(name, name[:1] + b"\xd4" + name[2:])


CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda content: b"",
    "only a header": lambda content: b"SQLite format 3\0",
    "a table of labels": lambda content: b"labels,1\n" * 1000,
    "a third": lambda content: content[: int(0.3 * len(content))],
    "two thirds": lambda content: content[: int(0.6 * len(content))],
    "all but the end": lambda content: content[: int(0.95 * len(content))],
    "a column's name": flipped(b"prev"),
    "a table's name": flipped(b"entries"),
    "a column's type": flipped(b"one INTEGER"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_that_is_no_database_is_a_problem(path: Path, name: str) -> None:
    path.write_bytes(CONTENTS[name](path.read_bytes()))
    assert audit(path).problems != []


def test_a_file_too_large_is_a_problem(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 35)  # sparse
    assert "larger" in audit(path).problems[0]


def test_a_path_is_a_path(path: Path) -> None:
    """Also one that would mean something in a URI."""
    strange = path.rename(path.with_name("what?mode=rwc#50%25.sqlite"))
    assert audit(strange).problems == []


def test_many_problems_are_counted(path: Path) -> None:
    rechain(path, [*entries(path), *[("gift", "{}")] * 50])
    found = audit(path).problems
    assert len(found) == 21
    assert found[-1] == "and 30 problems more"


def test_what_the_auditor_refuses_the_teacher_refuses(path: Path) -> None:
    """What no mechanism is asked for: form, types, order, caps, bits and classes."""
    before = entries(path)
    shared = (
        "count: NaN", "count: infinity", "count: true", "count: 3.0", "a repeated key",
        "another form", "a repeated key within", "two genesis", "a later genesis",
        "a screening bit of 123456789", "a screening bit of true", "a label of 10^30",
        "a label of -1", "delta: 0", "delta: 1.0", "a cap of true", "batch: 1", "cap exceeded",
        "unknown kind",
    )  # fmt: skip
    for name in shared:
        rechain(path, FORGERIES[name][1](before))
        with pytest.raises(LedgerMismatch):
            Ledger(path)


def test_an_older_copy_or_a_forged_history_misses_the_expected_head(path: Path) -> None:
    head = hashes(path)[-1]
    rechain(path, entries(path)[:-1])
    assert audit(path).consistent  # nothing in the file itself betrays a shorter history
    assert not audit(path, expect_head=head).consistent


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="no ledger"):
        audit(tmp_path / "nowhere.sqlite")


PARTS = ("auditor", "entries", "file", "history", "mechanisms", "results")


def test_the_auditor_needs_nothing_of_the_teacher_but_the_curves(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from labelwall.teacher.ledger.auditor.auditor import audit;"
        f"assert audit(Path({str(path)!r})).consistent;"
        "print(sorted(name for name in sys.modules if name.startswith('labelwall.teacher.')"
        " or name in ('torch', 'opendp', 'sqlalchemy')))"
    )
    root = Path(__file__).parents[4]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout.replace("'", '"'))
    room = "labelwall.teacher.ledger"
    known = ["", *(f".{part}" for part in PARTS)]
    assert [name for name in loaded if not name.startswith("labelwall.teacher.accounting")] == [
        room,
        *(f"{room}.auditor{part}" for part in known),
    ]
