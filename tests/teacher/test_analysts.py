"""A ledger for each analyst: who may open which, and against whom its certificate holds."""

import shutil
from contextlib import closing
from unittest.mock import Mock

import pytest

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.analysts import open_analyst
from labelwall.teacher.custodian import open_custodian
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.wall.errors import LedgerMismatch
from labelwall.wall.guarantee import EACH, POOLED, is_single_analyst, single_analyst
from tests.ledgers import identity, use_extractor
from tests.make import plan_of

MECHANISM = PrivateKnn(k=9, threshold=2, sigma_screen=75.0, sigma_vote=25.0, sample_rate=0.15)
QUERY = identity("q")
PLAN = plan_of(MECHANISM, 100)


def register(folder, place=None, adversary=EACH, anchor=None):
    url = place if isinstance(place, LedgerUrl) else None
    fixed = {"data": {}, "plan": PLAN, "unsafe": False, "anchor": anchor, "ledger_url": url}
    return open_custodian(folder, adversaries=[adversary], **fixed)


@pytest.fixture
def opened(tmp_path, place):
    with closing(register(tmp_path / "custody", place)) as custody:
        yield custody


def charge(ledger):
    use_extractor(ledger)
    ledger.record(ledger.charge(0, "screen", [QUERY]), {QUERY: 0})


def test_each_analyst_has_a_ledger_that_names_the_assumption(opened, tmp_path):
    ann, bob = open_analyst(opened, "ann"), open_analyst(opened, "bob@b")
    charge(ann.ledger)
    assert (ann.ledger.state.spent, bob.ledger.state.spent) == ({(0, "screen"): 1}, {})
    assert opened.ledger.analysts() == {"ann": ann.dataset, "bob@b": bob.dataset}
    for mine, name in ((ann, "ann"), (bob, "bob@b")):
        mine.ledger.export(tmp_path / "copy.sqlite")
        finding = audit(tmp_path / "copy.sqlite", expect_head=mine.ledger.state.head)
        assert finding.problems == []
        assert (finding.adversary, finding.dataset) == (single_analyst(name), mine.dataset)
        assert f"against analyst {name} alone; analysts do not pool answers" in finding.render()
        assert finding.to_json()["adversary"] == single_analyst(name)
        mine.close()
    opened.ledger.export(tmp_path / "copy.sqlite")
    finding = audit(tmp_path / "copy.sqlite")
    assert (finding.problems, finding.adversary, finding.charged) == ([], EACH, {})
    assert finding.pooled > finding.epsilon
    assert f"if all 2 pool their answers: epsilon {finding.pooled:.3f}" in finding.render()


def test_a_crash_before_the_register_knows_leaves_an_empty_ledger_that_is_entered_later(
    opened, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(opened.ledger, "enter_analyst", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            open_analyst(opened, "ann")
    assert opened.ledger.analysts() == {}
    with closing(open_analyst(opened, "ann")) as ann:
        charge(ann.ledger)
    with closing(open_analyst(opened, "ann")) as again:
        assert (again.dataset, again.ledger.state.spent) == (ann.dataset, {(0, "screen"): 1})
        assert opened.ledger.analysts() == {"ann": ann.dataset}


def test_a_ledger_that_is_gone_swapped_or_not_listed_is_refused(tmp_path):
    """Each would be a budget that is filled again, or one analyst's answers given to another."""
    custody = register(tmp_path / "custody")
    ann, bob = open_analyst(custody, "ann"), open_analyst(custody, "bob")
    charge(ann.ledger)
    a, b = ann.directory, bob.directory
    ann.close()
    bob.close()
    away = a.rename(tmp_path / "away")
    with pytest.raises(LedgerMismatch, match="is gone"):
        open_analyst(custody, "ann")
    shutil.rmtree(a, ignore_errors=True)
    shutil.copytree(b, a)
    with pytest.raises(LedgerMismatch, match="another data set"):
        open_analyst(custody, "ann")
    shutil.rmtree(a)
    away.rename(a)
    open_analyst(custody, "ann").close()
    custody.close()
    (tmp_path / "custody/ledger.sqlite").unlink()
    (tmp_path / "custody/dataset.json").unlink()
    custody = register(tmp_path / "custody")  # a register that forgot its analysts
    with pytest.raises(LedgerMismatch, match="does not list"):
        open_analyst(custody, "ann")
    custody.close()


@pytest.mark.parametrize("server", [False, True])
def test_each_analysts_ledger_has_an_anchor_that_lets_one_copy_go_on(tmp_path, postgres, server):
    """Two copies of the custodian's directory, register and ledgers, open at the same time."""
    anchor = postgres.schema() if server else tmp_path / "anchor"
    custody = register(tmp_path / "custody", anchor=anchor)
    for name in ("ann", "bob"):
        with closing(open_analyst(custody, name)) as mine:
            charge(mine.ledger)
    custody.close()
    shutil.copytree(tmp_path / "custody", tmp_path / "copy")
    first, second = (register(tmp_path / name, anchor=anchor) for name in ("custody", "copy"))
    ann, late = open_analyst(first, "ann"), open_analyst(second, "ann")
    assert ann.ledger.charge(0, "screen", ["a"]).granted
    with pytest.raises(LedgerMismatch, match="anchor"):
        late.ledger.charge(0, "screen", ["a"])
    bob = open_analyst(second, "bob")  # another ledger, whose copy here comes first
    assert bob.ledger.charge(0, "screen", ["a"]).granted
    with pytest.raises(LedgerMismatch, match="anchor"):
        open_analyst(first, "bob").ledger.charge(0, "screen", ["a"])
    new = open_analyst(first, "carl")
    with pytest.raises(LedgerMismatch, match="anchor"):
        open_analyst(second, "dora")
    for opened in (ann, late, bob, new, first, second):
        opened.close()


@pytest.mark.parametrize(("first", "then"), [(EACH, POOLED), (POOLED, EACH)])
def test_the_kind_of_budget_is_fixed(tmp_path, first, then):
    register(tmp_path, adversary=first).close()
    with pytest.raises(LedgerMismatch, match="holds against"):
        register(tmp_path, adversary=then)


def test_a_register_is_charged_for_nothing_and_a_budget_lists_nobody(tmp_path):
    kept, budget = register(tmp_path / "a"), register(tmp_path / "b", adversary=POOLED)
    kept.ledger.use_extractor({})
    with pytest.raises(LedgerMismatch, match="misplaced"):
        kept.ledger.charge(0, "screen", ["q"])
    with pytest.raises(LedgerMismatch, match="misplaced"):
        budget.ledger.enter_analyst("ann", "d")
    kept.ledger.enter_analyst("ann", "d")
    for name, dataset in (("ann", "e"), ("bob", "d"), ("a b", "e")):
        with pytest.raises(LedgerMismatch, match="analyst"):
            kept.ledger.enter_analyst(name, dataset)
    assert kept.ledger.analysts() == {"ann": "d"}
    kept.close()
    budget.close()


NAMES = [single_analyst(name) for name in ("a", "é", "ann.b-c@d_9", "a" * 64)]
OTHERS = [POOLED, EACH, *map(single_analyst, ("", "a b", "a" * 65)), NAMES[0] + " ", "", None, 1]


@pytest.mark.parametrize("text", NAMES + OTHERS, ids=str)
def test_names_that_keys_have_are_understood_and_no_other_texts(text):
    assert is_single_analyst(text) == (text in NAMES)


def test_several_ledgers_cost_together_what_their_caps_do():
    """Of one list, so many times over; individual budgets add up as well."""
    once, twice = certified_epsilon(PLAN.pooled(1)), certified_epsilon(PLAN.pooled(2))
    assert once == certified_epsilon(PLAN) < twice
    assert twice == certified_epsilon(plan_of(MECHANISM, 200))

    def individual(rho):
        return plan_of(IndKnn(threshold=0.1, sigma_label=0.3, sigma_count=2.0, rho=rho), 100)

    expected = certified_epsilon(individual(1.5))
    assert certified_epsilon(individual(0.5).pooled(3)) == pytest.approx(expected, rel=1e-12)


def test_a_register_of_analysts_is_not_told_to_be_removed(tmp_path):
    """It is charged for nothing itself: what they spent lies in their own ledgers."""
    fixed = {"plan": PLAN, "unsafe": False, "adversaries": [EACH]}
    custody = open_custodian(tmp_path / "custody", data={"label": "kind"}, **fixed)
    open_analyst(custody, "ann").close()
    custody.close()
    with pytest.raises(LedgerMismatch, match=r"data\.label differs") as told:
        open_custodian(tmp_path / "custody", data={"label": "grade"}, **fixed)
    assert "remove" not in str(told.value)
