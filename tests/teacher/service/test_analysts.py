"""A budget for each analyst in one service: no answer, charge or request of one reaches another."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.database import Place
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.service import models
from labelwall.wall.adversary import EACH, POOLED, single_analyst
from labelwall.wall.errors import LedgerMismatch, Refused
from labelwall.wall.messages import ExtractorSpec, Outcome, Queries
from labelwall.wall.wire import SAFETENSORS, encode
from tests.teacher.service import tiny
from tests.teacher.service.tiny import CLASSES, DIMENSIONS, SPEC, call, client, rows, served

OTHER = replace(SPEC, scale=2.0)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[tiny.Made, str]]:
    """(application, URL) after ann has asked 60 queries, and before bob has asked anything."""
    made = tiny.make(tmp_path_factory.mktemp("each"), adversary=EACH)
    with served(made) as url:
        with client(url, made.tokens["ann"]) as ann:
            ann.answer(Queries(rows(60, 1)))
        yield made, url


def test_the_same_queries_are_charged_and_drawn_for_each(tmp_path: Path, place: Place) -> None:
    """With real noise.

    There are at most 9 votes: at sigma 75 a query passes the threshold of 2 with a probability
    between 0.48 and 0.54, and at sigma 25 no class wins with more than 0.5. So two independent
    replies agree with a probability below 0.42, and all 60 with one below 1e-22.
    """
    made = tiny.make(tmp_path, adversary=EACH, place=place)
    with (
        served(made) as url,
        client(url, made.tokens["ann"]) as ann,
        client(url, made.tokens["bob"]) as bob,
    ):
        mine, other = ann.answer(Queries(rows(60, 1))), bob.answer(Queries(rows(60, 1)))
        again = ann.answer(Queries(rows(60, 1)[::-1]))
        copies = [tmp_path / "ann.sqlite", tmp_path / "bob.sqlite"]
        ann.export(copies[0])
        bob.export(copies[1])
        budgets = [ann.budget(), bob.budget()]
    for answers in (mine, other):
        assert (
            answers.receipt.asked,
            answers.receipt.served,
            answers.receipt.charged["screen"],
        ) == (60, 0, 60)
        assert answers.receipt.left["screen"] == 940
    assert mine.labels.tolist() != other.labels.tolist()
    assert again.labels.tolist() == mine.labels.tolist()[::-1]
    assert again.receipt.served == 60
    findings = [audit(path) for path in copies]
    for name, answers, finding, budget in zip(
        ("ann", "bob"), (mine, other), findings, budgets, strict=True
    ):
        assert (finding.problems, finding.charged["0/screen"]) == ([], 60)
        assert (
            single_analyst(name)
            == finding.adversary
            == answers.receipt.adversary
            == budget["adversary"]
        )
        assert budget["dataset"] == finding.dataset
        assert budget["ledger_head"] == finding.head
    assert findings[0].dataset != findings[1].dataset


def test_nothing_that_one_has_asked_or_sent_is_there_for_another(
    shared: tuple[tiny.Made, str],
) -> None:
    """Bob's replies are those of a service without ann.

    That is for stored answers, budget, receipts, ledger, jobs and extractors.
    """
    made, url = shared
    headers = {"authorization": f"Bearer {made.tokens['bob']}", "content-type": SAFETENSORS}
    body, parameters = encode({"inputs": rows(5, 1)}), {"extractor": SPEC.sha256()}
    reply = httpx.post(
        f"{url}/v1/labels",
        content=body,
        headers=headers,
        params=parameters,
        trust_env=False,
        timeout=60,
    )
    assert (reply.status_code, reply.json()["code"]) == (
        409,
        "unknown_extractor",
    )
    budget = call(url, made.tokens["bob"]).json()
    assert [(release["spent"], release["left"]) for release in budget["releases"]] == [
        (0, 1000),
        (0, 1000),
    ]
    assert (budget["ledger_position"], budget["charged"]) == (0, 0)
    assert call(url, made.tokens["bob"], path="receipts").json() == []
    done = next(iter(made.service.analysts.of("ann").queue._jobs))[1]
    assert call(url, made.tokens["bob"], path=f"jobs/{done}").json()["code"] == "unknown_job"
    assert call(url, made.tokens["ann"], path=f"jobs/{done}").status_code == 200


@pytest.mark.parametrize("path", ["budget", "receipts", "ledger"])
def test_whose_ledger_it_is_may_be_asked_by_a_custodian_alone(
    shared: tuple[tiny.Made, str], path: str
) -> None:
    made, url = shared
    for name in ("ann", "bob"):
        assert (
            call(url, made.tokens[name], path=f"{path}?analyst=ann").json()["code"] == "forbidden"
        )
    assert call(url, made.tokens["carol"], path=f"{path}?analyst=ann").status_code == 200
    assert call(url, made.tokens["carol"], path=f"{path}?analyst=nobody").status_code == 404
    assert call(url, made.tokens["carol"], path=f"{path}?analyst=../ann").status_code == 422
    assert "nobody" not in made.service.analysts.names()


def test_the_custodian_sees_each_ledger_and_what_they_cost_together(
    shared: tuple[tiny.Made, str], tmp_path: Path
) -> None:
    made, url = shared
    call(url, made.tokens["bob"])  # who has a ledger from now on
    found = models.Analysts.model_validate_json(
        call(url, made.tokens["carol"], path="analysts").content
    )
    assert [(own.name, own.adversary, own.charged) for own in found.analysts] == [
        ("ann", single_analyst("ann"), 60),
        ("bob", single_analyst("bob"), 0),
    ]
    assert (found.analysts[0].releases[0].spent, found.analysts[0].releases[0].cap) == (60, 1000)
    assert found.adversary == EACH
    assert found.pooled == {
        n: round_up(certified_epsilon(made.service.plan.pooled(n))) for n in (1, 2)
    }
    charges = call(url, made.tokens["carol"], path="receipts?analyst=ann").json()
    assert {entry["adversary"] for entry in charges} == {single_analyst("ann")}
    for whose, against in (("", EACH), ("?analyst=ann", single_analyst("ann"))):
        (tmp_path / "copy.sqlite").write_bytes(
            call(url, made.tokens["carol"], path=f"ledger{whose}").content
        )
        assert audit(tmp_path / "copy.sqlite").adversary == against
        assert audit(tmp_path / "copy.sqlite").problems == []
    text = call(url, made.tokens["carol"], path="metrics").text
    assert 'labelwall_releases_spent{analyst="ann",release="screen",slot="0"} 60.0' in text
    assert 'labelwall_releases_left{analyst="bob",release="screen",slot="0"} 1000.0' in text


def test_without_budgets_of_their_own_all_are_one_adversary(tmp_path: Path) -> None:
    made = tiny.make(tmp_path)
    with served(made) as url, client(url, made.tokens["ann"]) as ann:
        assert (
            ann.answer(Queries(rows(3, 1))).receipt.adversary == POOLED == ann.budget()["adversary"]
        )
        found = call(url, made.tokens["carol"], path="analysts").json()
        assert (found["adversary"], found["analysts"], found["pooled"]) == (POOLED, [], {})
        assert call(url, made.tokens["carol"], path="budget?analyst=ann").status_code == 404
    assert audit(tmp_path / "ledger.sqlite").adversary == POOLED


def test_pages_of_the_register_and_of_each_ledger(shared: tuple[tiny.Made, str]) -> None:
    made, url = shared

    def page(path: str, name: str = "carol", method: str = "GET") -> httpx.Response:
        site = {"sec-fetch-site": "same-origin"}
        return httpx.request(
            method,
            url + path,
            auth=("", made.tokens[name]),
            headers=site,
            trust_env=False,
            timeout=60,
        )

    def text(reply: httpx.Response) -> str:
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", reply.text))

    call(url, made.tokens["bob"])
    whole, own = page("/"), page("/?analyst=ann")
    assert f"Certificates here hold against {EACH} ." in text(whole)
    assert "if all 2 pool their answers" in text(whole)
    assert "screen slot 0 60 of 1,000" in text(whole)
    assert "screen slot 0 0 of 1,000" in text(whole)
    assert 'href="/?analyst=bob"' in whole.text
    assert f"Certificates here hold against {single_analyst('ann')} ." in text(own)
    assert re.search(
        r"ann analyst 60 – \d{4}-\d\d-\d\d \d\d:\d\d UTC .*bob analyst 0 – – .*"
        r"carol custodian 0 – –",
        text(whole),
    )
    assert "PRIVATE" in text(whole)  # how many records came and went, which is no analyst's
    assert "60 of 1,000" in text(own)
    audited = page("/audit?analyst=ann", method="POST")
    assert f"against {single_analyst('ann')}" in text(audited).partition("recomputed")[0]
    assert (
        page("/export?analyst=ann", method="POST").content
        == call(url, made.tokens["ann"], path="ledger").content
    )
    assert page("/?analyst=nobody").status_code == 404
    assert page("/?analyst=ann", "ann").status_code == 401


def test_caps_are_each_ones_own_and_a_new_key_of_the_same_name_has_the_same_ledger(
    tmp_path: Path,
) -> None:
    made = tiny.make(tmp_path, asked=20, answered=20, adversary=EACH)
    with served(made) as url:
        with client(url, made.tokens["ann"]) as ann, client(url, made.tokens["bob"]) as bob:
            assert (ann.answer(Queries(rows(30, 1))).outcomes[20:] == Outcome.CAP_REACHED).all()
            assert bob.answer(Queries(rows(20, 2))).receipt.charged["screen"] == 20
            assert bob.answer(Queries(rows(1, 1))).outcomes.tolist() == [Outcome.CAP_REACHED]
        keys = made.app.state.authenticator.keys
        keys.revoke("ann")
        with client(url, keys.add("ann", "analyst")) as ann:
            assert ann.answer(Queries(rows(30, 1)[::-1])).receipt.served == 30
            assert ann.answer(Queries(rows(1, 3))).outcomes.tolist() == [Outcome.CAP_REACHED]
    again = tiny.make(tmp_path, asked=20, answered=20, adversary=EACH)
    with served(again) as url, client(url, again.tokens["bob"]) as bob:
        assert bob.answer(Queries(rows(20, 2))).receipt.served == 20
        assert again.service.analysts.names() == ["ann", "bob"]


def test_records_come_and_go_for_all_at_once(tmp_path: Path, place: Place) -> None:
    """Also for an analyst whose ledger is opened later or was opened before a restart.

    Individual budgets are separate: what a record paid to one analyst it did not pay to another."""
    mechanism = IndKnn(threshold=0.1, sigma_label=0.3, sigma_count=2.0, rho=0.5)
    made = tiny.make(tmp_path, mechanism=mechanism, adversary=EACH, place=place)
    gone, come = np.array([3, 7]), np.array([900, 901])
    with served(made) as url, client(url, made.tokens["carol"], spec=None) as carol:
        with client(url, made.tokens["ann"]) as ann:
            ann.answer(Queries(rows(10, 1)))
            carol.remove(gone)
            carol.add(rows(2, 50), np.array([0, 1]), come)
            assert expected(made, "ann")
            ann.answer(Queries(rows(10, 2)))
        with client(url, made.tokens["bob"]):
            assert expected(made, "bob")
        paid = [ids_paid(made, name) for name in ("ann", "bob")]
    assert len(paid[0]) > 0
    assert paid[1] == []
    again = tiny.make(tmp_path, mechanism=mechanism, adversary=EACH, place=place)
    with served(again) as url, client(url, again.tokens["ann"]):
        assert expected(again, "ann")
        with client(url, again.tokens["carol"], spec=None) as carol:
            carol.remove(come)
        assert not np.isin(come, again.service.analysts.of("ann").teacher._index.ids).any()


def expected(made: tiny.Made, name: str) -> bool:
    """Whether a teacher votes with the source's records without 3 and 7, and with 900 and 901."""
    ids = made.service.analysts.of(name).teacher._index.ids
    return sorted(ids.tolist()) == sorted({*range(tiny.RECORDS), 900, 901} - {3, 7})


def ids_paid(made: tiny.Made, name: str) -> list[int]:
    """Positions of accounts from which something was paid."""
    service = made.service.analysts.of(name)
    spent = service.ledger.individual_budgets.spent.get(0, np.zeros(0))
    return np.flatnonzero(spent).tolist()


def test_a_teacher_that_can_not_take_the_records_in_answers_nothing_until_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny.make(tmp_path, adversary=EACH)
    with (
        served(made) as url,
        client(url, made.tokens["ann"]) as ann,
        client(url, made.tokens["bob"]) as bob,
        client(url, made.tokens["carol"], spec=None, patience=0.1) as carol,
    ):
        assert made.service.analysts is not None
        teacher = made.service.analysts.of("ann").teacher
        with monkeypatch.context() as patched:
            patched.setattr(
                teacher, "_prepare", lambda *_: (_ for _ in ()).throw(MemoryError("of record 5"))
            )
            with pytest.raises(Exception, match="could not complete"):
                carol.remove(np.array([5]))
        assert teacher._spec is None
        assert 5 not in made.service.analysts.of("bob").teacher._index.ids
        assert bob.answer(Queries(rows(3, 1))).receipt.charged["screen"] == 3
        assert ann.answer(Queries(rows(3, 1))).receipt.charged["screen"] == 3  # embedded anew
        assert 5 not in teacher._index.ids
        carol.remove(np.array([5]))
        assert not (tmp_path / "removing").exists()


def test_extractors_of_one_are_not_counted_against_another(tmp_path: Path) -> None:
    """Queues and extractors are separate: ann's load tells nothing of bob."""
    made = tiny.make(tmp_path, adversary=EACH)
    with (
        served(made) as url,
        client(url, made.tokens["ann"]) as ann,
        client(url, made.tokens["bob"], spec=OTHER) as bob,
    ):
        for seed in range(3):
            assert (
                len(ann.answer(Queries(rows(4, seed))).labels)
                == len(bob.answer(Queries(rows(4, seed))).labels)
                == 4
            )
        assert made.service.analysts is not None
        mine, other = (made.service.analysts.of(name) for name in ("ann", "bob"))
        kept = [set(each.extractors._kept) for each in (mine, other)]
        assert kept == [{SPEC.sha256()}, {OTHER.sha256()}]
        for apart in ("queue", "teacher", "ledger", "bodies", "directory", "extractors"):
            assert getattr(mine, apart) is not getattr(other, apart)
        assert mine.queue._settings is other.queue._settings is made.service.queue._settings


def test_a_ledger_that_is_gone_answers_nothing(tmp_path: Path) -> None:
    made = tiny.make(tmp_path, adversary=EACH)
    with served(made) as url:
        call(url, made.tokens["ann"])
    for ledger in (tmp_path / "analysts").glob("*/ledger.sqlite"):
        ledger.unlink()
    again = tiny.make(tmp_path, adversary=EACH)
    with served(again) as url:
        assert call(url, again.tokens["ann"]).json()["code"] == "ledger_refused"
        with (
            client(url, again.tokens["ann"], spec=None, patience=0) as ann,
            pytest.raises(LedgerMismatch),
        ):
            ann.use_extractor(SPEC)
        assert call(url, again.tokens["bob"]).status_code == 200


@pytest.mark.parametrize("adversary", [POOLED, EACH])
def test_of_two_services_over_copies_of_a_directory_one_answers(
    tmp_path: Path, adversary: str
) -> None:
    made = [tiny.make(tmp_path / "first", adversary=adversary, anchor=tmp_path / "anchor")]
    with served(made[0]) as url, client(url, made[0].tokens["ann"]) as ann:
        ann.answer(Queries(rows(4, 1)))
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    made = [
        tiny.make(tmp_path / name, adversary=adversary, anchor=tmp_path / "anchor")
        for name in ("first", "copy")
    ]
    with (
        served(made[0]) as url,
        served(made[1]) as other,
        client(url, made[0].tokens["ann"], patience=0) as late,
        client(other, made[1].tokens["ann"]) as ann,
    ):
        assert len(ann.answer(Queries(rows(4, 2))).labels) == 4
        for seed in (1, 3):  # what was answered before, and what is new
            with pytest.raises(LedgerMismatch):
                late.answer(Queries(rows(4, seed)))
        assert len(ann.answer(Queries(rows(4, 3))).labels) == 4


def test_an_extractor_has_to_fit_for_everybody(shared: tuple[tiny.Made, str]) -> None:
    made, url = shared
    with (
        client(url, made.tokens["bob"], spec=None) as bob,
        pytest.raises(Refused, match="backbone"),
    ):
        bob.use_extractor(ExtractorSpec("timm/resnet18", (DIMENSIONS,), CLASSES))
