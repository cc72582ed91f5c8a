"""The custodian's page: access, no scripts, agreement with the ledger and with receipts."""

import re
import time
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
import sqlalchemy as sa

from labelwall.teacher.accounting.accountant import odometer
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.ledger import ledger_tables
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.wall.messages import Queries
from tests.teacher.service import tiny
from tests.teacher.service.tiny import SPEC, clients, rows, served

WHEN = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A service after two rounds of two callers."""
    made = tiny.make(tmp_path_factory.mktemp("page"), asked=90, answered=30, quota=500)
    with clients(made, "ann", "bob", "carol") as (ann, bob, carol):
        ann.answer(Queries(rows(20, 1)))
        bob.answer(Queries(rows(10, 2)))
        ann.use_extractor(replace(SPEC, scale=2.0))
        ann.answer(Queries(rows(80, 3)))  # 20 of them, and more, past a cap
        carol.add(rows(3, 50), np.array([0, 1, 2]), np.array([500, 501, 502]))
        carol.remove(np.array([3, 500]))
        yield made


def test_the_page_is_for_a_custodian_in_a_browser(shown):
    bearer = f"Bearer {shown.tokens['carol']}"
    wrong = [shown.browse(name=name) for name in ("ann", "x")]
    for headers in ({}, {"authorization": "Basic ?"}, {"authorization": bearer}):
        wrong.append(tiny.HTTP.get(shown.url, headers=headers))
    for reply in wrong:
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"].startswith("Basic ")
        assert reply.json()["code"] == "sign_in"
    assert [shown.browse(method=m).status_code for m in ("GET", "POST")] == [200, 405]
    # What a browser adds by itself, whichever page makes the request, opens no other route.
    for path, entry in shown.app.openapi()["paths"].items():
        for method in set(entry) if path != "/v1/health" else ():
            reply = shown.browse(re.sub("{.*}", "0" * 64, path), method.upper())
            assert reply.status_code == 401


def test_nothing_runs_and_nothing_is_fetched(shown):
    reply = shown.browse()
    policy = dict(
        part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; ")
    )
    assert policy.pop("style-src").startswith("'sha256-")
    assert set(policy) == {"default-src", "form-action", "base-uri", "frame-ancestors"}
    assert set(policy.values()) == {"'none'"}
    assert reply.headers["cache-control"] == "no-store"
    assert not re.findall(
        r"<script|<link|<iframe|<img|<form|\bsrc=|\bon\w+=|\bstyle=|https?:|url\(", reply.text
    )


def test_the_figures_are_those_of_the_ledger_and_of_callers_receipts(shown):
    service, text = shown.service, tiny.text_of(shown.browse())
    assert "screen slot 0 90 of 90, 0 left" in text
    charged = audit(service.directory / "ledger.sqlite").charged
    assert f"aggregate slot 0 {charged['0/aggregate']} of 30" in text
    reading = odometer(service.plan, tuple(charged.values()))
    assert f"{round_up(min(reading, 1.0))} spent so far" in text
    assert "added 2 ids removed 2 PRIVATE" in text
    callers = f"ann analyst 80 500 {WHEN} no end bob analyst 10 – {WHEN} no end carol custodian 0 –"
    assert re.search(callers, text)
    assert re.search(f"{WHEN} removed 2 {WHEN} added 3", text)
    assert "last failure (errors.log) never" in text
    assert "at work (PRIVATE) nothing" in text
    for done, at_work in ((26, "embedding: 26 of 100"), (100, "nothing")):
        service.queue.progress("embedding", done, 100)
        assert f"at work (PRIVATE) {at_work}" in tiny.text_of(shown.browse())


def test_charges_stand_by_day_and_caller(shown):
    text = tiny.text_of(shown.browse())
    days = r"\d{4}-\d\d-\d\d ann 80, bob 10 90 The last 30 days"  # of receipts: 20 + 60, and 10
    assert re.search(f"New queries by day {days}", text)
    now, day = time.time(), ledger_tables.DAY
    dates = [datetime.fromtimestamp(now - ago * day, UTC).date().isoformat() for ago in (0, 2, 40)]

    def other_days(connection: sa.Connection) -> None:
        for ago, caller, size in ((2, "ann", 7), (2, "carol", 1000), (2, "ann", 5), (40, "bob", 9)):
            row = {"time": int(now) - ago * day, "kind": ledger_tables.CHARGED, "size": size}
            connection.execute(ledger_tables.event_times.insert(), row | {"caller": caller})

    shown.service.ledger.in_custody(other_days)
    text = tiny.text_of(shown.browse())
    assert f"{dates[1]} carol 1,000, ann 12 1,012" in text
    assert f"{dates[0]} ann 80, bob 10 90 {dates[1]}" in text
    assert dates[2] not in text


def test_names_are_text_and_a_revoked_key_ends_at_once(made):
    with served(made):
        keys = made.app.state.keys
        keeper = keys.add("dan", "custodian")
        # keys have no such names; a table could
        made.service.queue.usage.charged["<script>alert(1)</script>"] = 1
        text = made.browse(name=keeper).text
        assert "<script" not in text
        assert "&lt;script&gt;" in text
        keys.revoke("dan")
        assert made.browse(name=keeper).status_code == 401
