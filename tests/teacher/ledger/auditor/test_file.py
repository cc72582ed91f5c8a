"""The auditor's reader of files that a process was writing, or died while writing."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from tests.ledgers import identities, use_extractor
from tests.teacher.ledger.test_ledger import plan


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=plan(), unsafe=False)
    use_extractor(ledger)
    (query,) = identities("a")
    ledger.record(ledger.charge(0, "screen", [query]), {query: 1})
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    """An open transaction whose changed pages are in the file already."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size=1")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE entries SET kind = 'gift'")
    row = "INSERT INTO entries SELECT seq + ?, kind, body, prev, hash FROM entries"
    for step in (10, 100, 1000, 10_000):
        connection.execute(row, (step,))
    yield connection
    connection.close()


@pytest.fixture
def killed(path: Path, writer: sqlite3.Connection) -> Path:
    """The files that a SIGKILL leaves behind in the middle of this transaction."""
    copy = path.with_name("killed.sqlite")
    shutil.copyfile(path, copy)
    shutil.copyfile(f"{path}-journal", f"{copy}-journal")
    return copy


def files(folder: Path) -> dict[str, bytes]:
    return {place.name: place.read_bytes() for place in folder.iterdir() if place.is_file()}


def test_a_killed_writers_ledger_is_audited_as_its_last_commit(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is applied to a private copy, which is deleted; the files stay as they are."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    before = files(tmp_path)
    finding = audit(killed)
    assert (finding.problems, finding.charged) == ([], {"0/screen": 1})
    assert pipeline.main(["audit", str(killed)]) == 0
    assert files(tmp_path) == before
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_ledger_that_is_being_written_is_audited_as_its_last_commit(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("DELETE FROM entries")
    assert audit(path).problems == []
    connection.close()
