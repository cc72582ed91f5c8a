"""Updates: a plan keeps parts for records that come and go, and each is spent once."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.custody.recorded import recorded
from labelwall.teacher.custody.solver import solved
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.wall.errors import BudgetRefused, InvalidInput
from tests.experiment import tiny
from tests.experiment.checks import QUICK, check_one_error, killed, run, shown, summary
from tests.programs import environment

pytestmark = pytest.mark.usefixtures("one_budget")
ROOT = Path(__file__).parents[2]
UPDATE = ("update", "--run_dir", "out", "--quiet")
STEPS = 4


def configured(**changed) -> None:
    settings = {
        "mechanism": {"kind": "private_linear", "steps": STEPS},
        "budget": {"epsilon": 8.0, "delta": 1e-5, "periods": 3},
        "caps": None,
        "rounds": [{}],
    }
    tiny.write(**(settings | changed))


def other_rows(count: int = 260) -> None:
    x, y = tiny.rows(count, 5)
    tiny.change(private_x=x, private_y=y, private_id=np.arange(count))


def spent() -> dict[tuple[int, str], int]:
    return Ledger(Path("data.npz.custodian/ledger.sqlite")).state.spent


@pytest.fixture
def finished(folder):
    """A run whose first period is finished, and whose private rows changed then."""
    configured()
    assert run(*QUICK) == 0
    other_rows()
    return folder


def test_each_update_spends_its_own_part_of_one_certificate(finished, capsys):
    assert spent() == {(0, "sum"): STEPS}
    assert pipeline.main([*UPDATE]) == 0
    assert pipeline.main([*UPDATE]) == 0  # of rows that did not change: it spends all the same
    assert spent() == {(slot, "sum"): STEPS for slot in range(3)}
    plan, told = Ledger(Path("out/ledger.sqlite")).state.plan, summary()
    assert plan is not None
    assert 7.9 < told["epsilon"] <= 8.0
    assert told["epsilon"] == pytest.approx(certified_epsilon(plan), abs=1e-3)
    assert [entry["left"] for entry in told["periods"]] == [2, 1, 0]
    assert len({entry["epsilon"] for entry in told["periods"]}) == 3
    report = Path("out/report.html").read_text()
    assert "By period" in report
    audited = shown(capsys, "audit", "out/ledger.sqlite")
    assert f"period 3: {STEPS} releases charged, 0 left" in audited
    check_one_error([*UPDATE], "no period is left of the 3", capsys)
    assert spent() == {(slot, "sum"): STEPS for slot in range(3)}


def test_nothing_that_a_run_says_or_does_depends_on_whether_private_files_changed(folder, capsys):
    configured()
    again = ("run", "--config", "config.yaml", "--run_dir", "out", *QUICK)
    assert run(*QUICK) == 0
    before = shown(capsys, *again)
    other_rows()
    assert shown(capsys, *again) == before
    assert "updates left: 2 (`labelwall update`). Ask on dates that were fixed" in before
    assert spent() == {(0, "sum"): STEPS}
    assert "updates left: 1" in shown(capsys, "update", "--run_dir", "out")
    assert "updates left" not in shown(capsys, "update", "--run_dir", "out")


def test_a_run_without_periods_has_no_update(folder, capsys):
    configured(budget={"epsilon": 8.0, "delta": 1e-5})
    assert run(*QUICK) == 0
    check_one_error([*UPDATE], "this run has no periods", capsys)


def test_an_update_killed_before_its_report_is_finished_by_the_same_command(finished, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("labelwall.experiment.report.report.write_report", killed)
        assert pipeline.main([*UPDATE]) == 130
    two = {(0, "sum"): STEPS, (1, "sum"): STEPS}
    assert (spent(), len(summary()["periods"])) == (two, 2)
    assert pipeline.main([*UPDATE]) == 0
    assert spent() == two
    assert "By period" in Path("out/report.html").read_text()
    assert pipeline.main([*UPDATE]) == 0
    assert spent() == two | {(2, "sum"): STEPS}


@pytest.mark.parametrize("killed_by", ["update", "run"])
def test_a_killed_update_continues_at_no_second_charge(finished, monkeypatch, killed_by):
    with monkeypatch.context() as patched:
        patched.setattr("labelwall.experiment.run.rounds.learn", killed)
        assert pipeline.main([*UPDATE]) == 130
    assert spent()[1, "sum"] == STEPS  # all sums are paid for, and none is asked again
    again = [*UPDATE] if killed_by == "update" else ["run", "--config", "config.yaml"]
    again += [] if killed_by == "update" else ["--run_dir", "out", "--quiet", *QUICK]
    assert pipeline.main(again) == 0
    assert spent() == {(0, "sum"): STEPS, (1, "sum"): STEPS}
    assert len(summary()["periods"]) == 2


@pytest.mark.parametrize(
    ("changed", "mentioned"),
    [
        ({"mechanism": {"kind": "reverse_knn"}}, "with more private_linear"),
        ({"budget": {"epsilon": 1.0, "periods": 0}}, "budget.periods"),
        ({"budget": {"epsilon": 1.0, "reserve": 0.5}}, "`budget.periods` is 1"),
        ({"scale": {"shards": 2}}, "1 with scale.shards"),
    ],
)
def test_what_can_not_be_updated_is_one_line(folder, capsys, changed, mentioned):
    configured(**changed)
    check_one_error(["plan", "--config", "config.yaml"], mentioned, capsys)


def test_a_folder_without_a_run_and_other_public_rows_are_refused(finished, capsys):
    check_one_error(["update", "--run_dir", "nowhere"], "must be the folder of a run", capsys)
    tiny.change(public_x=tiny.rows(40, 9)[0])
    check_one_error([*UPDATE], "the rows of the first period", capsys)
    assert spent() == {(0, "sum"): STEPS}


@pytest.mark.parametrize("reserve", [None, 0.5])
def test_the_plan_shows_the_price_by_period_and_an_oracle_agrees(folder, capsys, reserve):
    budget = {"epsilon": 8.0, "delta": 1e-5, "periods": 3, "reserve": reserve}
    configured(evaluate={"share": 0.1}, budget=budget)
    text = shown(capsys, "plan", "--config", "config.yaml", "--json")
    plan = json.loads(text)
    assert plan["periods"] == sorted(plan["periods"])
    assert plan["periods"][-1] == plan["epsilon"] <= 8.0
    assert [entry["slot"] for entry in plan["rounds"]] == [0, 2, 4]
    assert [entry["slot"] for entry in plan["scores"]] == [1, 3, 5]
    checked = subprocess.run(
        [sys.executable, ROOT / "docs" / "check_epsilon.py"],
        input=text,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(checked.stdout) == pytest.approx(plan["epsilon"], rel=0.01)
    shown_text = shown(capsys, "plan", "--config", "config.yaml")
    assert f"1 {plan['periods'][0]:8.3f}" in shown_text
    assert ("later periods: noise" in shown_text) == bool(reserve)


@pytest.mark.parametrize("reserve", [0.1, 0.67, 0.95])
def test_all_updates_together_have_the_reserve(folder, reserve):
    """Squares of deviations add up inversely in a Gaussian's Renyi divergence."""
    budget = {"epsilon": 3.0, "delta": 1e-5, "periods": 4, "reserve": reserve}
    configured(budget=budget, evaluate={"share": 0.1})
    config = load_config(Path("config.yaml"))
    plan, spent = config.plan(), np.zeros((2, 4))
    for slot, entry in enumerate(plan.slots):
        (release,) = entry.releases
        relative = release.parameters["sigma"] / release.parameters["sensitivity"]
        spent[slot % 2, plan.period_of(slot) - 1] = release.cap / relative**2
    assert (spent[:, 1:] == spent[:, 1:2]).all()
    np.testing.assert_allclose(spent[:, 1:].sum(axis=1) / spent.sum(axis=1), reserve, rtol=0.01)
    np.testing.assert_allclose(spent[1].sum() / spent.sum(), 0.1, rtol=0.01)
    assert 0.99 * 3.0 <= certified_epsilon(plan) <= 3.0
    noises = [r.form.noise for r in solved(config.schedule).asked_rounds(0)]
    drawn = [entry.releases[0].parameters["sigma"] for entry in plan.slots[::2]]
    np.testing.assert_allclose(np.array(noises) / noises[0], np.array(drawn) / drawn[0])
    again = recorded(config.schedule, plan)
    assert again.plan() == plan
    assert again.asked_score(3) == solved(config.schedule).asked_score(3)


@pytest.mark.parametrize(("periods", "reserve"), [(3, None), (2, 0.3)])
def test_each_period_buys_a_score_by_the_noise_of_its_part(folder, periods, reserve):
    budget = {"epsilon": 8.0, "delta": 1e-5, "periods": periods, "reserve": reserve}
    configured(budget=budget, evaluate={"share": 0.2})
    assert run(*QUICK) == 0
    other_rows()
    assert pipeline.main([*UPDATE]) == 0
    assert spent() == {(0, "sum"): STEPS, (1, "score"): 1, (2, "sum"): STEPS, (3, "score"): 1}
    assert all(entry["private_score"] is not None for entry in summary()["periods"])
    assert lw.audit("out/ledger.sqlite").consistent


def test_what_a_kill_between_charge_and_record_cost_is_said(folder, capsys, monkeypatch):
    """A score has one release: it stays unknown, and the model is none the worse."""
    configured(evaluate={"share": 0.2})
    record = Ledger.record

    def kill(ledger, charge, *rest):
        if ledger.state.open_charges[charge.seq][1] == "score":
            raise KeyboardInterrupt
        return record(ledger, charge, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record", kill)
        assert run(*QUICK) == 130
    text = shown(capsys, "run", "--config", "config.yaml", "--run_dir", "out", *QUICK)
    assert "charged and never answered, as a call was cut off: 1 score" in text
    assert summary()["lost"] == {"score": 1}
    assert summary()["private_score"] is None
    assert spent() == {(0, "sum"): STEPS, (1, "score"): 1}
    assert lw.audit("out/ledger.sqlite").consistent
    other_rows()
    assert pipeline.main([*UPDATE]) == 0
    assert summary()["private_score"] is not None
    assert summary()["lost"] == {"score": 1}


def test_where_a_kill_lost_the_only_release_the_error_says_it(folder, capsys, monkeypatch):
    configured(mechanism={"kind": "private_linear", "steps": 1}, budget={"epsilon": 8.0})
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "record", killed)
        assert run(*QUICK) == 130
    command = ["run", "--config", "config.yaml", "--run_dir", "out", *QUICK]
    check_one_error(command, "never answered, as a call was cut off: 1 sum", capsys)
    check_one_error([*UPDATE], "this run has no periods", capsys)
    assert spent() == {(0, "sum"): 1}


def test_rows_in_memory_are_replaced_for_an_update(folder):
    (x, y), (public, _), test = tiny.rows(200, 1), tiny.rows(40, 2), tiny.rows(30, 3)
    data = lw.Data((x, y), public, test)
    settings = yaml.safe_load(tiny.CONFIG)["student"] | {"doubtful_folds": 0}
    mechanism = {"kind": "private_linear", "steps": STEPS}
    arguments = {"custody": "custody", "run_dir": "run", "quiet": True, "threads": 1}
    arguments |= {"periods": 2, "mechanism": mechanism, "student": settings}
    model = lw.fit(data, 8.0, **arguments)
    more = tiny.rows(300, 7)
    with pytest.raises(InvalidInput, match=r"model\.update"):
        lw.fit(lw.Data(more, public, test), 8.0, **arguments)
    for name in ("private.npz.part", "killed.part/private.npz"):  # as a kill leaves them
        left = Path("custody/rows", name)
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(b"")
    updated = model.update(more, quiet=True)
    assert not [*Path("custody").rglob("*.part")]
    assert len(np.load("custody/rows/private.npz")["private_y"]) == 300
    assert [entry.period for entry in updated.summary.periods] == [1, 2]
    with pytest.raises(BudgetRefused, match="no period is left"):
        updated.update(quiet=True)
    assert load_config(Path("run/config.yaml")).budget.periods == 2


def test_no_update_and_no_run_takes_the_persons_of_other_rows(tmp_path):
    rows, public = tiny.rows(40, 1), tiny.rows(20, 2)[0]
    lw.Data(rows, public, person=np.arange(40) % 20).options(tmp_path)
    with pytest.raises(InvalidInput, match="these private rows"):
        lw.Data(rows, public).options(tmp_path)
    assert "private_person" in np.load(tmp_path / "private.npz")
    lw.Data(tiny.rows(40, 3), classes=["0", "1", "2"]).replace_private(tmp_path)
    assert "private_person" not in np.load(tmp_path / "private.npz")


@pytest.mark.parametrize("kind", ["arrays", "tables", "texts"])
def test_rows_in_memory_are_replaced_by_one_rename(tmp_path, monkeypatch, kind):
    """Old inputs with new labels would be another data set, in which one record moves many rows."""
    kinds = {
        "arrays": lambda x, y: lw.Data((x, y), x.copy(), person=np.arange(len(x)) % 7),
        "tables": lambda x, y: lw.Data((pd.DataFrame(x), y), pd.DataFrame(x)),
        "texts": lambda x, y: lw.Data((list(map(str, x)), y), list(map(str, x))),
    }
    kinds[kind](*tiny.rows(40, 1)).options(tmp_path)
    rename, renamed = Path.replace, list[Path]()
    monkeypatch.setattr(Path, "replace", lambda self, to: renamed.append(to) or rename(self, to))
    (file,) = tmp_path.glob("private.*")
    old = file.read_bytes()
    kinds[kind](*tiny.rows(30, 2)).replace_private(tmp_path)
    assert [path for path in renamed if path.parent == tmp_path] == [file]
    assert [*tmp_path.glob("private*")] == [file]
    assert file.read_bytes() != old


def test_a_period_that_a_kill_lost_whole_is_over_and_the_update_asks_the_next(
    folder, monkeypatch, capsys
):
    configured(mechanism={"kind": "private_linear", "steps": 1})
    with monkeypatch.context() as patched:  # after the charge, before the draw
        patched.setattr("labelwall.teacher.mechanisms.sums.NoisySum.draw", killed)
        assert run(*QUICK) == 130
    assert spent() == {(0, "sum"): 1}
    again = ["run", "--config", "config.yaml", "--run_dir", "out", "--quiet", *QUICK]
    for _ in range(2):  # it spends no other period, however often it is tried
        check_one_error(again, "`labelwall update` asks the next one", capsys)
        assert spent() == {(0, "sum"): 1}
    with monkeypatch.context() as patched:
        patched.setattr("labelwall.experiment.run.rounds.learn", killed)
        assert pipeline.main([*UPDATE]) == 130
    two = {(0, "sum"): 1, (1, "sum"): 1}
    for command in (again, again, UPDATE):  # the killed update, its result, and the next one
        assert spent() == two
        assert pipeline.main([*command]) == 0
    assert spent() == two | {(2, "sum"): 1}
    assert [(p["period"], p["left"]) for p in summary()["periods"]] == [(2, 1), (3, 0)]
    check_one_error([*UPDATE], "no period is left of the 3", capsys)
