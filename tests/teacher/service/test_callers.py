"""Who may ask a service for what, how much and how often."""

import re
from dataclasses import replace

import numpy as np
import pytest

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.teacher.service.usage import ChargedCall, OverCap, Usage
from labelwall.wall.errors import LedgerMismatch, Refused
from labelwall.wall.matrices import Cells
from labelwall.wall.messages import Queries
from tests.ledgers import created
from tests.teacher.service import tiny
from tests.teacher.service.tiny import DIMENSIONS, call, clients, rows, served

NOTHING = "0" * 64
# What an analyst and a custodian get; None: neither 401 nor 403.
RULES = {
    ("GET", "budget"): (200, 200),
    ("GET", "receipts"): (200, 200),
    ("GET", "ledger"): (200, 200),
    ("GET", f"jobs/{NOTHING}"): (404, 404),
    ("GET", "metrics"): (403, 200),
    ("GET", "analysts"): (403, 200),
    ("POST", f"labels?extractor={NOTHING}"): (None, 403),
    ("POST", f"cells?extractor={NOTHING}"): (None, 403),
    ("POST", f"weights?extractor={NOTHING}"): (None, 403),
    ("PUT", f"extractors/{NOTHING}"): (None, 403),
    ("POST", "records"): (403, None),
    ("POST", "records/removals"): (403, None),
}


def test_who_may_do_what(shared):
    ann = shared.tokens["ann"]
    wrong = (None, "x", "lw_1_2", f"lw_{NOTHING[:16]}_{NOTHING}", ann[:-1], ann[:20])
    for (method, path), statuses in RULES.items():
        for token in wrong:
            assert call(shared.url, token, method, path).status_code == 401, (method, path)
        for name, status in zip(("ann", "carol"), statuses, strict=True):
            reply = shared.call(name, path, method).status_code
            assert reply == status or (status is None and reply not in (401, 403)), (path, name)
    assert call(shared.url, None, path="health").json() == {"status": "ok", "version": "1"}


def test_every_route_has_a_rule(shared):
    documented = {
        (method.upper(), re.sub("{.*}", NOTHING, path.removeprefix("/v1/")))
        for path, entry in shared.app.openapi()["paths"].items()
        for method in entry
    }
    named = {(method, path.partition("?")[0]) for method, path in RULES}
    assert documented == named | {("GET", "health")}


def test_a_keys_cap_is_below_the_plans_and_a_refused_request_is_not_charged(tmp_path, place):
    made = tiny.make(tmp_path, quota=30, place=place)
    with clients(made, "ann", "bob") as (ann, bob):
        ann.answer(Queries(rows(25, 1)))
        before = Ledger(place).state.head
        with pytest.raises(Refused, match="fewer new queries left") as refusal:
            ann.answer(Queries(rows(40, 2)))
        assert refusal.value.code == "quota_reached"
        assert Ledger(place).state.head == before
        mixed = ann.answer(Queries(np.concatenate([rows(25, 1), rows(5, 3)])))
        assert mixed.receipt.charged["screen"] == 5
        bob.answer(Queries(rows(40, 2)))
        receipt = ann.answer(Queries(rows(40, 2))).receipt
        assert receipt.served == 40  # known by now, so nothing is charged
        assert ann.budget()["charged"] == ann.budget()["queries"] == 30
        assert [entry["caller"] for entry in ann.receipts()] == ["ann"] * len(ann.receipts())
    again = tiny.make(tmp_path, place=place)  # the cap survives a restart
    assert again.service.queue.usage.charged == {"ann": 30, "bob": 40}
    again.custodian.close()


def test_a_matrix_counts_against_a_keys_cap(tmp_path):
    mechanism = ReverseKnn(centroids=5, neighbours=2, sigma=2.0)
    one, other = (Cells(np.full((5, DIMENSIONS), entry, np.int8)) for entry in (1, 2))
    with clients(tiny.make(tmp_path, mechanism=mechanism, quota=1), "ann") as ann:
        assert ann.count(one).receipt.served == 0
        with pytest.raises(Refused, match="fewer new queries left"):
            ann.count(other)
        assert ann.count(one).receipt.served == 1


def noted(usage, ledger, *requested):
    """Note calls with a charge: the positions of those over their caps, of which none is noted."""
    try:
        with usage.noted(requested):
            ledger.charge(0, "screen", ["a"])
    except OverCap as error:
        return error.positions
    return ()


def test_a_cap_is_kept_by_services_that_share_a_ledger(place):
    """Neither process's memory knows of the other's charges; the charge's transaction decides."""
    ledger, theirs = created(place), Ledger(place)
    one, other = Usage(ledger), Usage(theirs)
    call, fewer = ChargedCall("ann", 0, 20, 0, 50), ChargedCall("ann", 0, 10, 0, 50)
    assert noted(one, ledger, call, replace(call, caller="bob", cap=None), call) == ()
    assert other.charged["ann"] == 0
    head = Ledger(place).state.head
    none = replace(call, queries=0, cap=1)
    assert noted(other, theirs, call, fewer, none, call) == [0, 3]
    assert Ledger(place).state.head == head  # undone, with what was noted
    assert [each.size for each in one.calls("ann")] == [20, 20]
    assert noted(other, theirs, fewer, none) == ()
    assert other.charged["ann"] == 50
    assert [each.size for each in one.calls("ann")] == [20, 20, 10]


def test_a_note_is_stored_with_the_first_entry_alone(place):
    ledger = created(place)
    usage, call = Usage(ledger), ChargedCall("ann", 0, 1, 0)
    with usage.noted([call]):
        ledger.catch_up()
        assert Usage(Ledger(place)).charged["ann"] == 0  # nothing is written yet
        charge = ledger.charge(0, "screen", ["a"])
        assert Usage(Ledger(place)).charged["ann"] == 1
        ledger.record(charge, {"a": 1})
    with pytest.raises(LedgerMismatch), usage.noted([call]):
        ledger.charge(0, "no such release", ["b"])
    ledger.charge(0, "screen", ["b"])  # no note waits for it
    assert usage.charged["ann"] == Usage(Ledger(place)).charged["ann"] == 1


def test_a_caller_that_another_service_charged_meanwhile_is_refused(tmp_path, place):
    made = tiny.make(tmp_path, quota=30, place=place)
    with clients(made, "ann", "bob") as (ann, bob):
        theirs = Ledger(place)
        assert noted(Usage(theirs), theirs, ChargedCall("ann", 0, 25, 0)) == ()
        before = Ledger(place).state.head
        with pytest.raises(Refused) as refusal:
            ann.answer(Queries(rows(10, 1)))
        assert refusal.value.code == "quota_reached"
        assert "Nothing more was charged" in str(refusal.value)
        assert Ledger(place).state.head == before
        assert ann.answer(Queries(rows(5, 1))).receipt.charged["screen"] == 5
        assert bob.answer(Queries(rows(10, 1))).receipt.charged["screen"] == 5


def test_a_fast_caller_is_told_to_come_back(tmp_path):
    made = tiny.make(tmp_path, config=ServiceConfig(requests_per_second=0.001))
    with served(made):
        statuses = [made.call("ann").status_code for _ in range(12)]
        assert statuses == [200] * 10 + [429] * 2  # ten at once, then one in a thousand seconds
        assert made.call("bob").status_code == 200
        assert made.call("ann").headers["retry-after"] == "1"
