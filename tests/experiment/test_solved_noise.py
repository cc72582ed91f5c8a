"""One number to set: noise that follows from the budget is printed, recorded, and never drifts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from labelwall import pipeline
from labelwall.experiment.config.settings import load_config
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.custody.solver import solved
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.calibration import calibrate
from tests.experiment import tiny
from tests.experiment.checks import QUICK, check_one_error, shown

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
RUNS = [path for path in CONFIGS if not path.stem.startswith("compare_")]
# Those whose contests take minutes at little budget.
SLOW = {path.stem for path in RUNS if "kind: private_knn\n" in path.read_text()}
RUN = ["run", "--config", "config.yaml", *QUICK, "--run_dir", "out"]
CELLS = {"kind": "reverse_knn", "centroids": 9, "neighbours": 2}
OTHERS = ({"kind": "ind_knn", "threshold": 0.2}, {"kind": "radius"})


def write(**settings: object) -> None:
    known = {"mechanism": CELLS, "rounds": [{}, {}], "budget": {"epsilon": 30.0}, "caps": None}
    tiny.configure(**known | settings)


@pytest.fixture
def folder(folder: Path) -> Path:
    write()
    return folder


def sigma_of(path: Path) -> float:
    plan = Ledger(path).state.plan
    assert plan is not None
    return plan.slots[0].mechanism["sigma"]


def otherwise(monkeypatch) -> None:
    """Another version, which solves another noise."""

    def other(*given: Any) -> list[Any]:
        return [replace(m, sigma=1.5 * m.require("sigma")) for m in calibrate(*given)]

    monkeypatch.setattr("labelwall.teacher.mechanisms.calibration.calibrate", other)


def unfinished(folder: Path) -> None:
    """As if killed before the second round was trained."""
    (folder / "out" / "round_2" / "metrics.json").unlink()


def test_it_is_printed_recorded_and_fixed_at_the_genesis(folder: Path, capsys) -> None:
    plan = ["plan", "--config", "config.yaml"]
    told = json.loads(shown(capsys, *plan, "--json"))
    sigma = told["rounds"][0]["solved"]["sigma"]
    assert 0.99 * 30 <= told["epsilon"] <= 30
    for command in (plan, RUN):
        assert f"noise from the budget: sigma {sigma:g}" in shown(capsys, *command)
    assert yaml.safe_load(Path("out/config.yaml").read_text())["mechanism"]["sigma"] == sigma
    assert sigma_of(Path("out/ledger.sqlite")) == sigma
    assert sigma_of(Path("out.custodian/ledger.sqlite")) == sigma


def test_a_resumed_run_keeps_what_was_solved(folder: Path, monkeypatch, capsys) -> None:
    shown(capsys, *RUN)
    sigma = sigma_of(Path("out/ledger.sqlite"))
    unfinished(folder)
    otherwise(monkeypatch)
    assert solved(load_config(Path("config.yaml")).schedule).mechanism.require("sigma") != sigma
    assert f"noise from the budget: sigma {sigma:g}" in shown(capsys, *RUN)
    assert sigma_of(Path("out/ledger.sqlite")) == sigma
    for setting, value, named in (
        ("budget.epsilon", "29", "budget"),
        ("mechanism.neighbours", "1", "mechanism"),
    ):
        check_one_error([*RUN, f"--{setting}", value], f"other settings ({named})", capsys)


def test_another_run_of_the_same_custodian_has_the_ledgers_noise(
    folder, monkeypatch, capsys
) -> None:
    custody = ["--custodian_dir", "custody"]
    shown(capsys, *RUN, *custody)
    sigma = sigma_of(Path("custody/ledger.sqlite"))
    otherwise(monkeypatch)
    text = shown(capsys, *RUN[:-1], "again", *custody)
    assert f"as the ledger fixed it, noise from the budget: sigma {sigma:g}" in text
    assert yaml.safe_load(Path("again/config.yaml").read_text())["mechanism"]["sigma"] == sigma
    third = [*RUN[:-1], "third", *custody, "--budget.epsilon", "29"]
    check_one_error(third, "another budget", capsys)


def test_a_run_of_before_resumes_with_its_numbers(folder: Path, capsys) -> None:
    """A configuration that gives all numbers is priced as it is, and refused where it is dear."""
    write(mechanism={**CELLS, "sigma": 5.0})
    assert "noise from the budget" not in shown(capsys, *RUN)
    unfinished(folder)
    shown(capsys, *RUN)
    assert sigma_of(Path("out/ledger.sqlite")) == 5.0
    dear = ["plan", "--config", "config.yaml", "--budget.epsilon", "0.1"]
    check_one_error(dear, "`budget.epsilon` must be at least", capsys)


def test_a_mixed_plan_splits_the_budget(folder: Path, capsys) -> None:
    write(rounds=[{}, *({"queries": 9, "mechanism": other} for other in OTHERS)])
    config = load_config(folder / "config.yaml")
    assert [entry.share for entry in config.schedule.priced()] == [1 / 3] * 3
    assert 0.99 * 30 <= certified_epsilon(config.plan()) <= 30
    known = solved(config.schedule)
    assert not any(entry.mechanism.uncalibrated for entry in known.priced())
    assert solved(known) is known
    assert pipeline.main(["plan", "--config", "config.yaml"]) == 0
    (line,) = (text for text in capsys.readouterr().out.splitlines() if "sigma_count" in text)
    assert all(word in line for word in ("rho", "(slot 0)", "epsilon", "(slot 2)"))


@pytest.mark.parametrize("epsilon", ["0.1", "2"])
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] if p.stem in SLOW else []) for p in RUNS],
    ids=lambda path: path.stem,
)
def test_one_number_plans_every_configuration(path: Path, epsilon: str, capsys) -> None:
    args = ["plan", "--config", str(path), "--budget.epsilon", epsilon, "--json"]
    assert pipeline.main(args) == 0
    shown = json.loads(capsys.readouterr().out)
    assert 0.99 * float(epsilon) <= shown["epsilon"] <= float(epsilon)
    assert all(entry["solved"] for entry in shown["rounds"])
