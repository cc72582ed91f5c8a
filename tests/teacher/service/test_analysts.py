"""A budget for each analyst in one service: no answer, charge or request of one reaches another."""

import re
from unittest.mock import Mock

import numpy as np
import pytest

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.service import replies
from labelwall.wall.guarantee import EACH, POOLED, single_analyst
from labelwall.wall.messages import Outcome, Queries
from tests.teacher.service import tiny
from tests.teacher.service.tiny import client, clients, rows, served

ANN = single_analyst("ann")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A service after ann has asked 60 queries, and before bob has asked anything."""
    made = tiny.make(tmp_path_factory.mktemp("each"), adversary=EACH)
    with clients(made, "ann") as ann:
        ann.answer(Queries(rows(60, 1)))
        yield made


def test_the_same_queries_are_charged_and_drawn_for_each(tmp_path, place):
    """With real noise: of at most 9 votes, all 60 replies agree by chance once in 10^22."""
    with clients(tiny.make(tmp_path, adversary=EACH, place=place), "ann", "bob") as (ann, bob):
        answers = {"ann": ann.answer(Queries(rows(60, 1))), "bob": bob.answer(Queries(rows(60, 1)))}
        again = ann.answer(Queries(rows(60, 1)[::-1]))
        budgets = {"ann": ann.budget(), "bob": bob.budget()}
        for name, each in (("ann", ann), ("bob", bob)):
            each.export(tmp_path / name)
    for name, budget in budgets.items():
        receipt, finding = answers[name].receipt, audit(tmp_path / name)
        assert (receipt.asked, receipt.served) == (60, 0)
        assert (receipt.charged["screen"], receipt.left["screen"]) == (60, 940)
        assert (finding.problems, finding.charged["0/screen"]) == ([], 60)
        against = {finding.adversary, receipt.adversary, budget["adversary"]}
        assert against == {single_analyst(name)}
        assert (budget["dataset"], budget["ledger_head"]) == (finding.dataset, finding.head)
    assert answers["ann"].labels.tolist() != answers["bob"].labels.tolist()
    assert again.labels.tolist() == answers["ann"].labels.tolist()[::-1]
    assert again.receipt.served == 60
    assert budgets["ann"]["dataset"] != budgets["bob"]["dataset"]


def test_nothing_that_one_has_asked_or_sent_is_there_for_another(shared):
    """Stored answers, budget, receipts, jobs and extractors are those of a service without ann."""
    reply = tiny.ask(shared.url, shared.tokens["bob"], rows(5, 1))
    assert (reply.status_code, reply.json()["code"]) == (409, "unknown_extractor")
    budget = shared.call("bob").json()
    assert [(each["spent"], each["left"]) for each in budget["releases"]] == [(0, 1000)] * 2
    assert (budget["ledger_position"], budget["charged"]) == (0, 0)
    assert shared.call("bob", "receipts").json() == []
    done = next(iter(shared.own("ann").queue._jobs))[1]
    assert shared.call("bob", f"jobs/{done}").json()["code"] == "unknown_job"
    assert shared.call("ann", f"jobs/{done}").status_code == 200


@pytest.mark.parametrize("path", ["budget", "receipts", "ledger"])
def test_whose_ledger_it_is_may_be_asked_by_a_custodian_alone(shared, path):
    for name, whose, status in (
        ("ann", "ann", 403),
        ("bob", "ann", 403),
        ("carol", "ann", 200),
        ("carol", "nobody", 404),
        ("carol", "../ann", 422),
    ):
        assert shared.call(name, f"{path}?analyst={whose}").status_code == status
    assert "nobody" not in shared.service.analysts.names()


def test_the_custodian_sees_each_ledger_and_what_they_cost_together(shared, tmp_path):
    shared.call("bob")  # who has a ledger from now on
    listed = replies.AnalystsSpent.model_validate_json(shared.call("carol", "analysts").content)
    assert [(own.name, own.adversary, own.charged) for own in listed.analysts] == [
        ("ann", ANN, 60),
        ("bob", single_analyst("bob"), 0),
    ]
    first = listed.analysts[0].releases[0]
    assert (first.spent, first.cap, listed.adversary) == (60, 1000, EACH)
    together = {n: round_up(certified_epsilon(shared.service.plan.pooled(n))) for n in (1, 2)}
    assert listed.pooled == together
    charges = shared.call("carol", "receipts?analyst=ann").json()
    assert {entry["adversary"] for entry in charges} == {ANN}
    for whose, against in (("", EACH), ("?analyst=ann", ANN)):
        (tmp_path / "copy").write_bytes(shared.call("carol", f"ledger{whose}").content)
        finding = audit(tmp_path / "copy")
        assert (finding.adversary, finding.problems) == (against, [])
    text = shared.call("carol", "metrics").text
    assert 'labelwall_releases_spent{analyst="ann",release="screen",slot="0"} 60.0' in text
    assert 'labelwall_releases_left{analyst="bob",release="screen",slot="0"} 1000.0' in text


def test_without_budgets_of_their_own_all_are_one_adversary(made):
    with served(made):
        assert made.call("ann").json()["adversary"] == POOLED
        listed = made.call("carol", "analysts").json()
        assert (listed["adversary"], listed["analysts"], listed["pooled"]) == (POOLED, [], {})
        assert made.call("carol", "budget?analyst=ann").status_code == 404


def test_pages_of_the_register_and_of_each_ledger(shared):
    shared.call("bob")
    page = shared.browse()
    whole, own = tiny.text_of(page), tiny.text_of(shared.browse("/?analyst=ann"))
    for text in (
        f"Certificates here hold against {EACH} .",
        "if all 2 pool their answers",
        "screen slot 0 60 of 1,000",
        "screen slot 0 0 of 1,000",
        "PRIVATE",  # how many records came and went, which is no analyst's
    ):
        assert text in whole
    assert 'href="/?analyst=bob"' in page.text
    assert re.search("ann analyst 60 – .* UTC .*bob analyst 0 – – .*carol custodian 0 – –", whole)
    assert f"Certificates here hold against {ANN} ." in own
    assert "60 of 1,000" in own
    assert shared.browse("/?analyst=nobody").status_code == 404
    assert shared.browse("/?analyst=ann", name="ann").status_code == 401


def test_caps_are_each_ones_own_and_a_new_key_of_the_same_name_has_the_same_ledger(tmp_path):
    made = tiny.make(tmp_path, asked=20, answered=20, adversary=EACH)
    with clients(made, "ann", "bob") as (ann, bob):
        assert (ann.answer(Queries(rows(30, 1))).outcomes[20:] == Outcome.CAP_REACHED).all()
        assert bob.answer(Queries(rows(20, 2))).receipt.charged["screen"] == 20
        assert bob.answer(Queries(rows(1, 1))).outcomes.tolist() == [Outcome.CAP_REACHED]
        keys = made.app.state.keys
        keys.revoke("ann")
        with client(made.url, keys.add("ann", "analyst")) as ann:
            assert ann.answer(Queries(rows(30, 1)[::-1])).receipt.served == 30
            assert ann.answer(Queries(rows(1, 3))).outcomes.tolist() == [Outcome.CAP_REACHED]


def test_records_come_and_go_for_all_at_once(tmp_path, place):
    """Also for an analyst whose ledger is opened later; what a record paid to one is no other's."""
    mechanism = IndKnn(threshold=0.1, sigma_label=0.3, sigma_count=2.0, rho=0.5)
    made = tiny.make(tmp_path, mechanism=mechanism, adversary=EACH, place=place)
    gone, come = np.array([3, 7]), np.array([900, 901])
    voters = sorted({*range(tiny.RECORDS), 900, 901} - {3, 7})

    def index(made, name):
        return sorted(made.own(name).teacher._index.ids.tolist())

    with clients(made, "carol", "ann") as (carol, ann):
        ann.answer(Queries(rows(10, 1)))
        carol.remove(gone)
        carol.add(rows(2, 50), np.array([0, 1]), come)
        assert index(made, "ann") == voters
        ann.answer(Queries(rows(10, 2)))
        with client(made.url, made.tokens["bob"]):
            assert index(made, "bob") == voters
        spent = [made.own(name).ledger.individual_budgets.spent for name in ("ann", "bob")]
        assert [np.any(each.get(0, 0)) for each in spent] == [True, False]


def test_a_teacher_that_can_not_take_the_records_in_answers_nothing_until_it_has(
    tmp_path, monkeypatch
):
    made = tiny.make(tmp_path, adversary=EACH)
    with clients(made, "ann", "bob", "carol", patience=0.1) as (ann, bob, carol):
        teacher = made.own("ann").teacher
        with monkeypatch.context() as patched:
            patched.setattr(teacher, "_prepare", Mock(side_effect=MemoryError))
            with pytest.raises(Exception, match="could not complete"):
                carol.remove(np.array([5]))
        for each in (bob, ann):  # whose rows are embedded anew
            assert each.answer(Queries(rows(3, 1))).receipt.charged["screen"] == 3
        assert 5 not in teacher._index.ids
        carol.remove(np.array([5]))
        assert not (tmp_path / "removing").exists()
