"""A ledger for each analyst: who may open which, and against whom its certificate holds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.analysts import open_analyst
from labelwall.teacher.custodian import Custodian, open_custodian
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.database import Place
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.ledger.url import LedgerUrl
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.private_knn import PrivateKnn
from labelwall.wall.adversary import EACH, POOLED, is_single_analyst, single_analyst
from labelwall.wall.errors import LedgerMismatch
from tests import ledgers
from tests.ledgers import identity, use_extractor
from tests.postgres import Server

MECHANISM = PrivateKnn(
    k=9, threshold=2, sigma_screen=75.0, sigma_vote=25.0, sampling_probability=0.15
)
QUERY = identity("q")
PLAN = Plan(1e9, 1e-5, (Slot(MECHANISM.fields(), MECHANISM.releases(100, 100)),))


def register(
    folder: Path, place: Place | None = None, adversary: str = EACH, anchor: Place | None = None
) -> Custodian:
    url = place if isinstance(place, LedgerUrl) else None
    fixed = {"data": {}, "plan": PLAN, "unsafe": False, "anchor": anchor}
    return open_custodian(folder, ledger_url=url, adversaries=[adversary], **fixed)


@pytest.fixture
def opened(tmp_path: Path, place: Place) -> Iterator[Custodian]:
    found = register(tmp_path / "custody", place)
    yield found
    found.close()


def charge(mine: Custodian) -> None:
    use_extractor(mine.ledger)
    mine.ledger.record(mine.ledger.charge(0, "screen", [QUERY]), {QUERY: 0})


def test_each_analyst_has_a_ledger_that_names_the_assumption(
    opened: Custodian, tmp_path: Path
) -> None:
    ann, bob = open_analyst(opened, "ann"), open_analyst(opened, "bob@b")
    charge(ann)
    assert (ann.ledger.state.spent, bob.ledger.state.spent) == ({(0, "screen"): 1}, {})
    assert opened.ledger.analysts() == {"ann": ann.dataset, "bob@b": bob.dataset}
    for mine, name in ((ann, "ann"), (bob, "bob@b")):
        mine.ledger.export(tmp_path / "copy.sqlite")
        finding = audit(tmp_path / "copy.sqlite", expect_head=mine.ledger.state.head)
        assert (finding.problems, finding.adversary, finding.dataset) == (
            [],
            single_analyst(name),
            mine.dataset,
        )
        assert f"against analyst {name} alone; analysts do not pool answers" in finding.render()
        assert finding.to_json()["adversary"] == single_analyst(name)
        mine.close()
    opened.ledger.export(tmp_path / "copy.sqlite")
    finding = audit(tmp_path / "copy.sqlite")
    assert (finding.problems, finding.adversary, finding.charged) == ([], EACH, {})
    assert finding.pooled is not None
    assert finding.epsilon is not None
    assert finding.pooled > finding.epsilon
    assert f"if all 2 pool their answers: epsilon {finding.pooled:.3f}" in finding.render()


def test_opened_again_it_is_the_same_ledger(opened: Custodian) -> None:
    ann = open_analyst(opened, "ann")
    charge(ann)
    ann.close()
    again = open_analyst(opened, "ann")
    assert (again.dataset, again.ledger.state.spent) == (ann.dataset, {(0, "screen"): 1})
    again.close()


def test_a_crash_before_the_register_knows_leaves_an_empty_ledger_that_is_entered_later(
    opened: Custodian, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(opened.ledger, "enter_analyst", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_analyst(opened, "ann")
    assert opened.ledger.analysts() == {}
    ann = open_analyst(opened, "ann")
    assert opened.ledger.analysts() == {"ann": ann.dataset}
    ann.close()


def test_a_ledger_that_is_gone_swapped_or_not_listed_is_refused(tmp_path: Path) -> None:
    """Each would be a budget that is filled again, or one analyst's answers given to another."""
    custody = register(tmp_path / "custody")
    ann, bob = open_analyst(custody, "ann"), open_analyst(custody, "bob")
    charge(ann)
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


def test_an_anchor_guards_the_register_and_every_ledger(tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    custody = register(tmp_path / "custody", anchor=anchor)
    early = (tmp_path / "custody/ledger.sqlite").read_bytes()
    ann = open_analyst(custody, "ann")
    before = (ann.directory / "ledger.sqlite").read_bytes()
    charge(ann)
    ann.close()
    (ann.directory / "ledger.sqlite").write_bytes(before)
    with pytest.raises(LedgerMismatch, match="anchor"):
        open_analyst(custody, "ann")
    custody.close()
    (tmp_path / "custody/ledger.sqlite").write_bytes(early)
    with pytest.raises(LedgerMismatch, match="anchor"):
        register(tmp_path / "custody", anchor=anchor)


@pytest.mark.parametrize("copy_first", [False, True])
@pytest.mark.parametrize("server", [False, True])
def test_each_analysts_ledger_has_an_anchor_that_lets_one_copy_go_on(
    tmp_path: Path, postgres: Server, copy_first: bool, server: bool
) -> None:
    """Two copies of the custodian's directory, register and ledgers, open at the same time."""
    anchor = postgres.schema() if server else tmp_path / "anchor"
    custody = register(tmp_path / "custody", anchor=anchor)
    for name in ("ann", "bob"):
        mine = open_analyst(custody, name)
        charge(mine)
        mine.close()
    custody.close()
    shutil.copytree(tmp_path / "custody", tmp_path / "copy")
    registers = [register(tmp_path / name, anchor=anchor) for name in ("custody", "copy")]
    first, second = reversed(registers) if copy_first else registers
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


def test_the_kind_of_budget_is_fixed(tmp_path: Path) -> None:
    for number, (first, then) in enumerate(
        [(EACH, POOLED), (POOLED, EACH), (single_analyst("ann"), single_analyst("bob"))]
    ):
        register(tmp_path / str(number), adversary=first).close()
        with pytest.raises(LedgerMismatch, match="holds against"):
            register(tmp_path / str(number), adversary=then)


def test_a_register_is_charged_for_nothing_and_a_budget_lists_nobody(tmp_path: Path) -> None:
    kept, budget = register(tmp_path / "a"), register(tmp_path / "b", adversary=POOLED)
    for extractor in (False, True):
        if extractor:
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


Entries = list[tuple[str, dict]]


def _without(entries: Entries) -> None:
    del entries[0][1]["adversary"]


def _pooled(entries: Entries) -> None:
    entries[0][1]["adversary"] = POOLED


FORGED: dict[str, tuple[str, Callable[[Entries], None]]] = {
    "left out": ("missing", _without),
    "softened": ("adversary", lambda e: e[0][1].update(adversary="analyst ann alone")),
    "one line more": (
        "adversary",
        lambda e: e[0][1].update(adversary=single_analyst("ann") + "\n"),
    ),
    "null": ("adversary", lambda e: e[0][1].update(adversary=None)),
    "a register with charges": ("register", lambda e: e[0][1].update(adversary=EACH)),
    "an analyst in a budget": (
        "register",
        lambda e: e.append(("analyst", {"name": "bob", "dataset": "d"})),
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_an_adversary_that_is_left_out_or_changed_is_found(tmp_path: Path, name: str) -> None:
    """Even with recomputed hashes. Neither the auditor nor the ledger accepts such a file."""
    problem, forge = FORGED[name]
    path = forged(tmp_path, forge)
    finding = audit(path)
    assert any(problem in found for found in finding.problems), finding.problems
    assert finding.epsilon is finding.pooled is None
    with pytest.raises(LedgerMismatch):
        Ledger(path)


def test_a_ledger_forged_to_hold_against_all_has_another_head(tmp_path: Path) -> None:
    """Whoever may write the whole file can write another ledger; a head from a receipt tells."""
    path = forged(tmp_path, _pooled)
    assert audit(path).problems == []
    assert audit(path, expect_head=Ledger(tmp_path / "true.sqlite").state.head).problems != []


def forged(folder: Path, forge: Callable[[Entries], None]) -> Path:
    """A ledger of ann with one answer (true.sqlite), its entries changed and hashed anew."""
    ledger = Ledger.create(
        folder / "true.sqlite",
        dataset="d",
        plan=PLAN,
        unsafe=False,
        adversary=single_analyst("ann"),
    )
    use_extractor(ledger)
    ledger.record(ledger.charge(0, "screen", [QUERY]), {QUERY: 0})
    ledger.export(folder / "forged.sqlite")
    entries = ledgers.parsed(folder / "forged.sqlite")
    forge(entries)
    bodies = [json.dumps(body, sort_keys=True, separators=(",", ":")) for _, body in entries]
    kinds = [kind for kind, _ in entries]
    ledgers.write(folder / "forged.sqlite", list(zip(kinds, bodies, strict=True)))
    return folder / "forged.sqlite"


@pytest.mark.parametrize("name", ["a", "é", "ann.b-c@d_9", "a" * 64])
def test_names_that_keys_have_are_understood(name: str) -> None:
    assert is_single_analyst(single_analyst(name))


@pytest.mark.parametrize(
    "text",
    [
        POOLED,
        EACH,
        single_analyst(""),
        single_analyst("a b"),
        single_analyst("a") + " ",
        single_analyst("a" * 65),
        "",
        None,
        1,
    ],
)
def test_other_texts_are_no_analyst(text: object) -> None:
    assert not is_single_analyst(text)


def test_several_ledgers_cost_together_what_their_caps_do() -> None:
    """Of one list, so many times over; individual budgets add up as well."""
    doubled = Plan(
        PLAN.epsilon, PLAN.delta, (Slot(MECHANISM.fields(), MECHANISM.releases(200, 200)),)
    )
    assert (
        certified_epsilon(PLAN.pooled(2))
        == certified_epsilon(doubled)
        > certified_epsilon(PLAN.pooled(1))
    )
    assert certified_epsilon(PLAN.pooled(1)) == certified_epsilon(PLAN)

    def individual(rho: float) -> Plan:
        mechanism = IndKnn(threshold=0.1, sigma_label=0.3, sigma_count=2.0, rho=rho)
        return Plan(1e9, 1e-5, (Slot(mechanism.fields(), mechanism.releases(100, 100)),))

    assert certified_epsilon(individual(0.5).pooled(3)) == pytest.approx(
        certified_epsilon(individual(1.5)), rel=1e-12
    )
