"""Who may ask a service for what, how much and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.ledger.database import Place
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.service.config import ServiceConfig
from labelwall.teacher.service.usage import Call, OverCap, Usage
from labelwall.wall.errors import LedgerMismatch, Refused
from labelwall.wall.messages import Queries
from tests.teacher.ledger.test_ledger import plan
from tests.teacher.service import tiny
from tests.teacher.service.tiny import call, client, rows, served


def test_who_may_do_what(shared: tuple[tiny.Made, str]) -> None:
    made, url = shared
    everyone = {"ann": 200, "carol": 200}
    asks = {"ann": 0, "carol": 403}
    keeps = {"ann": 403, "carol": 0}
    rules = {
        ("GET", "budget"): everyone,
        ("GET", "receipts"): everyone,
        ("GET", "ledger"): everyone,
        ("GET", f"jobs/{'0' * 64}"): {"ann": 404, "carol": 404},
        ("GET", "metrics"): {"ann": 403, "carol": 200},
        ("GET", "analysts"): {"ann": 403, "carol": 200},
        ("POST", f"labels?extractor={'0' * 64}"): asks,
        ("POST", f"cells?extractor={'0' * 64}"): asks,
        ("POST", f"weights?extractor={'0' * 64}"): asks,
        ("PUT", f"extractors/{'0' * 64}"): asks,
        ("POST", "records"): keeps,
        ("POST", "records/removals"): keeps,
    }
    documented = {
        (method.upper(), path.removeprefix("/v1/"))
        for path, entry in made.app.openapi()["paths"].items()
        for method in entry
    }
    named = {(method, path.partition("?")[0].replace("0" * 64, "{}")) for method, path in rules}
    assert named | {("GET", "health")} == {
        (method, _blank(path)) for method, path in documented
    }  # no route without a rule
    for (method, path), expected in rules.items():
        for token in (
            None,
            "x",
            "lw_1_2",
            "lw_" + "0" * 16 + "_" + "0" * 64,
            made.tokens["ann"][:-1],
            made.tokens["ann"][:20],
        ):
            assert call(url, token, method, path).status_code == 401, (method, path)
        for name, status in expected.items():
            found = call(url, made.tokens[name], method, path).status_code
            assert found == status or (status == 0 and found not in (401, 403)), (
                method,
                path,
                name,
            )
    assert call(url, None, path="health").json() == {"status": "ok", "version": "1"}


def _blank(path: str) -> str:
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


def test_a_swapped_secret_an_expired_and_a_revoked_key_are_no_keys(
    shared: tuple[tiny.Made, str],
) -> None:
    made, url = shared
    keys = made.app.state.authenticator.keys
    dora, emil = keys.add("dora", "analyst"), keys.add("emil", "analyst", expires="2020-01-01")
    assert call(url, dora).status_code == 200
    assert call(url, emil).status_code == 401
    assert call(url, dora[:20] + made.tokens["ann"][20:]).status_code == 401
    keys.revoke("dora")
    assert call(url, dora).status_code == 401
    assert (
        len(
            {
                call(url, token).text
                for token in (dora, emil, "x", dora[:20] + made.tokens["ann"][20:])
            }
        )
        == 1
    )


def test_a_keys_cap_is_below_the_plans_and_a_refused_request_is_not_charged(
    tmp_path: Path, place: Place
) -> None:
    made = tiny.make(tmp_path, quota=30, place=place)
    with (
        served(made) as url,
        client(url, made.tokens["ann"]) as ann,
        client(url, made.tokens["bob"]) as bob,
    ):
        ann.answer(Queries(rows(25, 1)))
        before = Ledger(place).state.head
        with pytest.raises(Refused, match="more new queries") as refusal:
            ann.answer(Queries(rows(40, 2)))
        assert refusal.value.code == "quota_reached"
        assert Ledger(place).state.head == before
        assert (
            ann.answer(Queries(np.concatenate([rows(25, 1), rows(5, 3)]))).receipt.charged["screen"]
            == 5
        )
        bob.answer(Queries(rows(40, 2)))
        receipt = ann.answer(Queries(rows(40, 2))).receipt
        assert receipt.served == 40  # known by now, so nothing is charged
        assert ann.budget()["charged"] == ann.budget()["queries"] == 30
        assert [entry["caller"] for entry in ann.receipts()] == ["ann"] * len(ann.receipts())
    again = tiny.make(tmp_path, place=place)  # the cap survives a restart
    assert again.service.queue.usage.charged == {"ann": 30, "bob": 40}
    again.custodian.close()


def noted(usage: Usage, ledger: Ledger, *requested: tuple[Call, int | None]) -> Sequence[int]:
    """Note calls with a charge. Returns the positions of those over their caps; nothing is noted
    then."""
    try:
        with usage.noted(requested):
            ledger.charge(0, "screen", ["a"])
    except OverCap as error:
        return error.positions
    return ()


def test_a_cap_is_kept_by_services_that_share_a_ledger(place: Place) -> None:
    """Neither process's memory knows of the other's charges; the charge's transaction decides."""
    ledger, theirs = Ledger.create(place, dataset="d", plan=plan(), unsafe=False), Ledger(place)
    one, other = Usage(ledger), Usage(theirs)
    call, fewer = Call("ann", 0, 20, 0), Call("ann", 0, 10, 0)
    assert noted(one, ledger, (call, 50), (replace(call, caller="bob"), None), (call, 50)) == ()
    assert other.charged["ann"] == 0
    head = Ledger(place).state.head
    none = replace(call, queries=0)
    assert noted(other, theirs, (call, 50), (fewer, 50), (none, 1), (call, 50)) == [0, 3]
    assert Ledger(place).state.head == head  # undone, with what was noted
    assert [found.queries for found in one.calls("ann")] == [20, 20]
    assert noted(other, theirs, (fewer, 50), (none, 1)) == ()
    assert other.charged["ann"] == 50
    assert [found.queries for found in one.calls("ann")] == [20, 20, 10]


def test_a_note_is_stored_with_the_first_entry_alone(place: Place) -> None:
    ledger = Ledger.create(place, dataset="d", plan=plan(), unsafe=False)
    usage, call = Usage(ledger), Call("ann", 0, 1, 0)
    with usage.noted([(call, None)]):
        ledger.catch_up()
        assert Usage(Ledger(place)).charged["ann"] == 0  # nothing is written yet
        charge = ledger.charge(0, "screen", ["a"])
        assert Usage(Ledger(place)).charged["ann"] == 1
        ledger.record(charge, {"a": 1})
    with pytest.raises(LedgerMismatch), usage.noted([(call, None)]):
        ledger.charge(0, "no such release", ["b"])
    ledger.charge(0, "screen", ["b"])  # no note waits for it
    assert usage.charged["ann"] == Usage(Ledger(place)).charged["ann"] == 1


def test_a_caller_that_another_service_charged_meanwhile_is_refused(
    tmp_path: Path, place: Place
) -> None:
    made = tiny.make(tmp_path, quota=30, place=place)
    with (
        served(made) as url,
        client(url, made.tokens["ann"]) as ann,
        client(url, made.tokens["bob"]) as bob,
    ):
        theirs = Ledger(place)
        assert noted(Usage(theirs), theirs, (Call("ann", 0, 25, 0), None)) == ()
        before = Ledger(place).state.head
        with pytest.raises(Refused) as refusal:
            ann.answer(Queries(rows(10, 1)))
        assert refusal.value.code == "quota_reached"
        assert Ledger(place).state.head == before
        assert ann.answer(Queries(rows(5, 1))).receipt.charged["screen"] == 5
        assert bob.answer(Queries(rows(10, 1))).receipt.charged["screen"] == 5


def test_a_fast_caller_is_told_to_come_back(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, config=ServiceConfig(requests_per_second=0.001))
    with served(made) as url:
        statuses = [call(url, made.tokens["ann"]).status_code for _ in range(12)]
        assert statuses == [200] * 10 + [429] * 2  # ten at once, then one in a thousand seconds
        assert call(url, made.tokens["bob"]).status_code == 200
        assert call(url, made.tokens["ann"]).headers["retry-after"] == "1"
