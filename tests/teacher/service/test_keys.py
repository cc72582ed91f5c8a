"""API keys: shown once, kept as hashes, valid for as long as they should be."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from labelwall import pipeline
from labelwall.teacher.service.auth import Rates
from labelwall.teacher.service.keys import KEYS, Keys, digest_of
from labelwall.wall.errors import InvalidInput, LedgerMismatch, Refused


def test_a_token_finds_its_key_and_nothing_else_does(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    ann, carol = keys.add("ann", "analyst", queries=5), keys.add("carol", "custodian")
    assert [
        (key.name, key.role, key.queries) for key in (keys.who(ann), keys.who(carol)) if key
    ] == [
        ("ann", "analyst", 5),
        ("carol", "custodian", None),
    ]
    swapped = ann[:20] + carol[20:]
    for token in (
        "",
        "x",
        ann[:-1],
        ann + "0",
        ann.upper(),
        swapped,
        "lw_" + "0" * 16 + "_" + "0" * 64,
        f"{ann}\n",
        "' OR 1=1 --",
    ):
        assert keys.who(token) is None


def test_the_file_holds_hashes_alone_and_is_for_its_owner(tmp_path: Path) -> None:
    token = Keys(tmp_path).add("ann", "analyst")
    secret, text = token.rpartition("_")[2], (tmp_path / KEYS).read_text()
    assert secret not in text
    assert digest_of(secret) in text
    assert (tmp_path / KEYS).stat().st_mode & 0o077 == 0


def test_another_process_changes_are_seen_at_once(tmp_path: Path) -> None:
    here, there = Keys(tmp_path), Keys(tmp_path)
    token = there.add("ann", "analyst")
    assert here.who(token)
    there.revoke("ann")
    assert here.who(token) is None
    renewed = there.add("ann", "analyst")
    assert here.who(renewed)
    assert here.who(token) is None


@pytest.mark.parametrize(
    ("expires", "valid"), [("2020-01-01", False), ("2999-01-01T00:00:00+02:00", True), (None, True)]
)
def test_a_key_ends(tmp_path: Path, expires: str | None, valid: bool) -> None:
    keys = Keys(tmp_path)
    assert (keys.who(keys.add("ann", "analyst", expires=expires)) is not None) == valid


def test_a_key_ends_at_its_moment(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    (key,) = (keys.add("ann", "analyst", expires="2030-01-01"), *keys.listed().values())[1:]
    assert key.expires == 1893456000.0  # 2030-01-01T00:00Z
    assert key.valid(1893455999.9)
    assert not key.valid(1893456000.0)
    assert not replace(key, revoked=True).valid(0)


@pytest.mark.parametrize(
    ("name", "role", "queries", "expires"),
    [
        ("", "analyst", None, None),
        ("a b", "analyst", None, None),
        ("a" * 65, "analyst", None, None),
        ("ann", "root", None, None),
        ("ann", "analyst", 0, None),
        ("ann", "analyst", None, "soon"),
    ],
)
def test_settings_are_checked(
    tmp_path: Path, name: str, role: str, queries: int | None, expires: str | None
) -> None:
    with pytest.raises(InvalidInput):
        Keys(tmp_path).add(name, role, queries, expires)
    assert not (tmp_path / KEYS).exists()


def test_one_valid_key_a_name(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.add("ann", "analyst")
    with pytest.raises(InvalidInput, match="Revoke"):
        keys.add("ann", "analyst")
    with pytest.raises(InvalidInput):
        keys.revoke("bob")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": 2, "keys": {}}', '{"format": 1, "keys": {"x": {"name": "ann"}}}']
)
def test_a_damaged_file_lets_nobody_in(tmp_path: Path, text: str) -> None:
    (tmp_path / KEYS).write_text(text)
    with pytest.raises(LedgerMismatch):
        Keys(tmp_path).who("lw_" + "0" * 16 + "_" + "0" * 64)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--custodian_dir", str(tmp_path)]
    assert pipeline.main(["keys", "add", "--name", "ann", "--queries", "10", *place]) == 0
    token = capsys.readouterr().out.strip()
    assert Keys(tmp_path).who(token)
    assert pipeline.main(["keys", "list", *place]) == 0
    listed = capsys.readouterr().out
    assert "ann" in listed
    assert token.rpartition("_")[2] not in listed
    assert pipeline.main(["keys", "revoke", "--name", "ann", *place]) == 0
    assert Keys(tmp_path).who(token) is None
    assert pipeline.main(["keys", "add", *place]) == 2
    assert "name" in capsys.readouterr().err
    assert [
        entry["revoked"] for entry in json.loads((tmp_path / KEYS).read_text())["keys"].values()
    ] == [True]


def test_a_caller_gets_its_rate_and_no_more() -> None:
    now = [0.0]
    rates = Rates(10, clock=lambda: now[0])
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
