"""API keys: shown once, kept as hashes, valid for as long as they should be."""

import contextlib
import sqlite3
from datetime import datetime
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from labelwall import pipeline
from labelwall.teacher.ledger import database
from labelwall.teacher.service import keys as keys_module
from labelwall.teacher.service.callers import RateLimiter
from labelwall.teacher.service.keys import KEYS, Keys, digest_of, render
from labelwall.wall.errors import InvalidInput, LedgerMismatch, Refused
from tests.make import until
from tests.teacher.service import tiny
from tests.teacher.service.tiny import call, served

UNKNOWN = "lw_" + "0" * 16 + "_" + "0" * 64


@pytest.fixture
def clock(monkeypatch):
    """Sets the clock that keys are judged by, to an ISO time; 2026-06-01 to begin with."""
    now = [0.0]
    monkeypatch.setattr(keys_module, "time", SimpleNamespace(time=lambda: now[0]))

    def set_to(text):
        now[0] = datetime.fromisoformat(f"{text}+00:00").timestamp()

    set_to("2026-06-01T00:00")
    return set_to


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


def stored(folder, statement):
    """The first column of what a statement returns; it is committed."""
    with contextlib.closing(sqlite3.connect(folder / KEYS)) as opened, opened:
        return [row[0] for row in opened.execute(statement)]


def test_a_token_finds_its_key_and_nothing_else_does(keys, tmp_path):
    """Whichever process added it, or revoked it. The file has hashes alone and is its owner's."""
    other = Keys(tmp_path)
    ann, carol = keys.add("ann", "analyst", queries=5), other.add("carol", "custodian")
    holders = [keys.authenticate(ann), keys.authenticate(carol)]
    assert [(key.name, key.role, key.queries) for key in holders if key] == [
        ("ann", "analyst", 5),
        ("carol", "custodian", None),
    ]
    swapped = ann[:20] + carol[20:]
    wrong = ("", "x", ann[:-1], ann + "0", ann.upper(), swapped, UNKNOWN, f"{ann}\n", "' OR 1=1 --")
    assert [keys.authenticate(token) for token in wrong] == [None] * len(wrong)
    secret, content = ann.rpartition("_")[2], (tmp_path / KEYS).read_bytes()
    assert secret.encode() not in content
    assert digest_of(secret).encode() in content
    assert (tmp_path / KEYS).stat().st_mode & 0o077 == 0
    with pytest.raises(InvalidInput, match="Revoke"):
        keys.add("ann", "analyst")
    other.revoke("ann")
    assert keys.authenticate(ann) is None
    assert keys.authenticate(other.add("ann", "analyst"))
    assert keys.authenticate(ann) is None


@pytest.mark.parametrize(
    ("expires", "now", "valid"),
    [
        ("2026-06-01T00:00:01", "2026-06-01T00:00:01", False),
        ("2030-01-01", "2029-12-31T23:59:59", True),
        ("2030-01-01", "2030-01-01T00:00", False),
        ("2030-01-01T00:00:00+02:00", "2029-12-31T22:00", False),
        (None, "2999-01-01T00:00", True),
    ],
)
def test_a_key_ends_at_its_moment(keys, clock, expires, now, valid):
    token = keys.add("ann", "analyst", expires=expires)
    clock(now)
    assert (keys.authenticate(token) is not None) == valid


def test_an_expired_key_does_not_come_back_with_the_clock(tmp_path, clock):
    """Neither in the process that saw it expire nor in one that starts before or afterwards."""
    keys, other = Keys(tmp_path), Keys(tmp_path)
    ann = keys.add("ann", "analyst", expires="2027-01-01")
    bob = keys.add("bob", "analyst", expires="2100-01-01")
    assert keys.authenticate(ann)
    clock("2099-01-01T00:00")
    assert keys.authenticate(bob)  # ann's key expires though another one is asked for
    clock("2026-06-01T00:00")
    for each in (keys, other, Keys(tmp_path)):
        assert each.authenticate(ann) is None
        assert each.authenticate(bob)
    assert "expired 2027-01-01" in render(Keys(tmp_path).listed())
    assert keys.authenticate(keys.add("ann", "analyst", expires="2027-01-01"))  # no need to revoke
    assert keys.authenticate(ann) is None


def test_a_service_sees_a_key_expire_if_nobody_asks(tmp_path, clock, monkeypatch):
    returned = Mock()
    monkeypatch.setattr("labelwall.teacher.service.app.UPKEEP_INTERVAL", 0.01)
    monkeypatch.setattr("labelwall.teacher.service.app.return_free_memory", returned)
    made = tiny.make(tmp_path)
    token = Keys(tmp_path).add("emil", "analyst", expires="2027-12-01")
    with served(made) as url:
        clock("2028-01-01T00:00")
        until(lambda: stored(tmp_path, "SELECT name FROM keys WHERE expired") == ["emil"])
        clock("2026-06-01T00:00")
        assert call(url, token).status_code == 401
        assert made.call("ann").status_code == 200
    assert returned.call_count > 0  # the other upkeep


def test_where_an_expiry_can_not_be_written_down_nobody_gets_in(tmp_path, clock, monkeypatch):
    monkeypatch.setitem(database.WAIT, "timeout", 0)
    keys = Keys(tmp_path)
    ann, bob = keys.add("ann", "analyst", expires="2027-01-01"), keys.add("bob", "analyst")
    clock("2027-01-01T00:00")
    with contextlib.closing(sqlite3.connect(tmp_path / KEYS)) as other:
        other.execute("BEGIN IMMEDIATE")
        for token in (ann, bob):
            with pytest.raises(LedgerMismatch, match=r"keys\.sqlite can not be written") as refusal:
                keys.authenticate(token)
            assert "\n" not in str(refusal.value)
        clock("2026-06-01T00:00")
        with pytest.raises(LedgerMismatch):  # what this process saw expire it does not forget
            keys.authenticate(ann)
    assert keys.authenticate(ann) is None
    assert keys.authenticate(bob)


WRONG = [("", "analyst"), ("a b", "analyst"), ("a" * 65, "analyst"), ("ann", "root")]
WRONG += [("ann", "analyst", 0), ("ann", "analyst", 1 << 63), ("ann", "analyst", None, "soon")]
WRONG += [("ann", "analyst", None, "2026-06-01")]


@pytest.mark.parametrize("settings", WRONG)
def test_settings_are_checked(keys, tmp_path, settings):
    with pytest.raises(InvalidInput):
        keys.add(*settings)
    assert not (tmp_path / KEYS).exists()
    with pytest.raises(InvalidInput):
        keys.revoke("nobody")


RENAMED = "UPDATE sqlite_master SET sql = replace(sql, 'expired', 'ended')"
DAMAGED = {
    "another table": "DROP TABLE keys",
    "a missing column": f"PRAGMA writable_schema = ON; {RENAMED}",  # a constraint names it
}


@pytest.mark.parametrize("name", ["text", *DAMAGED])
def test_a_damaged_file_lets_nobody_in(tmp_path, name, capsys):
    if name == "text":
        (tmp_path / KEYS).write_text("no database" * 100)
    else:
        Keys(tmp_path).add("ann", "analyst")
        with contextlib.closing(sqlite3.connect(tmp_path / KEYS)) as opened:
            opened.executescript(DAMAGED[name])
            opened.commit()
    with pytest.raises(LedgerMismatch):
        Keys(tmp_path).authenticate(UNKNOWN)
    assert pipeline.main(["keys", "list", "--custodian_dir", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "keys.sqlite is not readable" in error


def test_the_command_line(tmp_path, capsys):
    place = ["--custodian_dir", str(tmp_path)]
    assert pipeline.main(["keys", "add", "--name", "ann", "--queries", "10", *place]) == 0
    token = capsys.readouterr().out.strip()
    assert Keys(tmp_path).authenticate(token)
    assert pipeline.main(["keys", "list", *place]) == 0
    listed = capsys.readouterr().out
    assert "ann" in listed
    assert token.rpartition("_")[2] not in listed
    assert pipeline.main(["keys", "revoke", "--name", "ann", *place]) == 0
    assert Keys(tmp_path).authenticate(token) is None
    assert pipeline.main(["keys", "add", *place]) == 2
    assert "name" in capsys.readouterr().err
    assert stored(tmp_path, "SELECT revoked FROM keys") == [1]


def test_a_caller_gets_its_rate_and_no_more():
    now = [0.0]
    rates = RateLimiter(10, 20, "too_fast", lambda: now[0])
    taken = {"ann": 0, "bob": 0}
    for tenth in range(1000):  # 100 seconds, ann asks 50 times a second, bob 5 times
        now[0] = tenth / 10
        for name, times in (("ann", 5), ("bob", tenth % 2)):
            for _ in range(times):
                with contextlib.suppress(Refused):
                    rates.take(name)
                    taken[name] += 1
    assert taken["bob"] == 500
    assert 1000 <= taken["ann"] <= 1000 + 20  # the rate, and two seconds' worth at once
