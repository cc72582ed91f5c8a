"""The auditor's reader of files: other tables or types are problems, and no bytes an error."""

import shutil
import sqlite3
import tempfile
from collections.abc import Callable

import pytest

from labelwall import pipeline
from labelwall.teacher.ledger.auditor.auditor import audit

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
    "an extractor that is not named": (
        "no entry names",
        "INSERT INTO extractors VALUES ('f', 'x')",
    ),
    "an extractor's fields": ("another hash", "UPDATE extractors SET fields = '{}'"),
    "an extractor's hash": ("not in the file", "UPDATE extractors SET sha256 = upper(sha256)"),
    "an extractor of bytes": ("other types", "UPDATE extractors SET fields = x'00'"),
    "a column of extractors more": ("columns", "ALTER TABLE extractors ADD COLUMN gift TEXT"),
    "an extractor twice": (
        "twice",
        "CREATE TABLE again AS SELECT * FROM extractors; DROP TABLE extractors;"
        "ALTER TABLE again RENAME TO extractors; INSERT INTO extractors SELECT * FROM extractors",
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
def test_a_file_that_is_no_ledger_is_a_problem_and_no_traceback(path, name, capsys):
    problem, statements = TABLES[name]
    connection = sqlite3.connect(path)
    connection.executescript(statements)
    connection.close()
    found = audit(path)
    assert any(problem in line for line in found.problems), found.problems
    assert pipeline.main(["audit", str(path)]) == 3
    assert "NOT CONSISTENT" in capsys.readouterr().out


def flipped(name):
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
def test_a_file_that_is_no_database_is_a_problem(path, name):
    path.write_bytes(CONTENTS[name](path.read_bytes()))
    assert audit(path).problems != []


def test_a_file_too_large_is_a_problem(path):
    with path.open("r+b") as file:
        file.truncate(1 << 35)  # sparse
    assert "larger" in audit(path).problems[0]


def test_a_path_is_a_path(path):
    """Also one that would mean something in a URI."""
    strange = path.rename(path.with_name("what?mode=rwc#50%25.sqlite"))
    assert audit(strange).problems == []


def test_a_killed_writers_ledger_is_audited_as_its_last_commit(path, tmp_path, monkeypatch):
    """By a private copy: the transaction that a SIGKILL ends has changed pages in the file."""
    writer, killed = sqlite3.connect(path, isolation_level=None), path.with_name("killed.sqlite")
    writer.execute("PRAGMA cache_size=1")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE entries SET kind = 'gift'")
    for step in (10, 100, 1000, 10_000):
        writer.execute(
            "INSERT INTO entries SELECT seq + ?, kind, body, prev, hash FROM entries", (step,)
        )
    shutil.copyfile(path, killed)
    shutil.copyfile(f"{path}-journal", f"{killed}-journal")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    before = {place: place.read_bytes() for place in tmp_path.iterdir() if place.is_file()}
    finding = audit(killed)
    assert (finding.problems, finding.charged) == ([], {"0/screen": 5, "0/aggregate": 3})
    assert pipeline.main(["audit", str(killed)]) == 0
    assert {place: place.read_bytes() for place in tmp_path.iterdir() if place.is_file()} == before
    assert list((tmp_path / "scratch").iterdir()) == []
    writer.close()
