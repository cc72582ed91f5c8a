"""The search for Ind-KNN: forecasts come true, configurations load and fit, no private data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.experiment.config.groups import RoundConfig
from labelwall.experiment.config.settings import load_config
from labelwall.experiment.plan import ind_knn as planner
from labelwall.experiment.plan.auto import mechanisms_for, planned_config
from labelwall.experiment.plan.goal import Goal
from labelwall.experiment.plan.ind_knn import best_level, optimise
from labelwall.experiment.plan.ind_knn_rehearsal import SimulatedRecords, threshold_at
from labelwall.experiment.plan.optimise import Request, best_plan
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import STEPS
from labelwall.wall.errors import BudgetRefused, InvalidInput
from tests.experiment.plan import planning
from tests.experiment.plan.planning import (
    CLASSES,
    DIMENSIONS,
    PRIVATE,
    PUBLIC,
    TEST,
    Quiet,
    embedded,
)
from tests.seeded_noise import SeededNoise

LENGTH = planning.EMBEDDER.length(DIMENSIONS)
GOAL = Goal(1.0, 1e-5, PRIVATE, PUBLIC, 2, shares=(0.25, 1.0))


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return planning.write(
        tmp_path, "mechanism: {kind: ind_knn, threshold: 0.4}\nbudget: {epsilon: 1.0}"
    )


@pytest.fixture
def small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds instead of a minute."""
    monkeypatch.setattr(planner, "LABEL_NOISE", planner.LABEL_NOISE[::2])
    monkeypatch.setattr(planner, "ASKED", (0.25, 1.0))


def simulated(kernel: IndKnn) -> SimulatedRecords:
    return SimulatedRecords.of(*embedded(3, TEST), PRIVATE, CLASSES, kernel, LENGTH)


def asked_for_real(mechanism: IndKnn, asked: int) -> float:
    """Share of right answers of the mechanism, with a repeatable tape, on records of no search.

    400 queries here and 400 rows in the search: a deviation of 0.034 between the two shares.
    """
    (records, labels), (queries, truth) = embedded(1, PRIVATE), embedded(2, asked)
    similar = ExactIndex(records, np.arange(PRIVATE), threads=1).similar(
        queries, mechanism.select(LENGTH)
    )
    keys = [str(q) for q in range(asked)]
    values, _ = mechanism.answer(
        similar, np.full(PRIVATE, FULL), labels, CLASSES, keys, SeededNoise(5)
    )
    return float((values[:, 1] == truth).mean())


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param({}, id="cosine"),
        pytest.param(
            {"kernel": "rbf", "bandwidth": 0.8, "near": 0.3}, id="rbf", marks=pytest.mark.slow
        ),
    ],
)
def test_the_forecast_comes_true_and_no_neighbour_is_better(
    config_file: Path, small_grids, kernel: dict
) -> None:
    config = load_config(config_file)
    config = replace(config, mechanism=replace(config.mechanism, **kernel))
    records = simulated(config.mechanism)
    found = optimise(config.mechanism, records, GOAL)
    planned = planned_config(config, found.chosen)
    plan, best, mechanism = planned.plan(), found.chosen.forecast, found.chosen.mechanism
    assert 0.99 < found.chosen.epsilon == certified_epsilon(plan) <= 1
    assert mechanism.rho == pytest.approx(0.0305527, abs=1e-7)  # all that the budget buys
    assert (best.passed, best.answered, best.cap) == (1.0, best.asked, best.asked)
    assert [r.queries for r in planned.rounds] == [best.asked // 2, best.asked // 2]
    assert best.accuracy == pytest.approx(asked_for_real(mechanism, best.asked), abs=0.08)
    assert len(found.frontier) == 2
    assert found.frontier[0].forecast.right < found.frontier[-1].forecast.right
    for name, factor in (
        ("threshold", 0.5),
        ("threshold", 1.3),
        ("sigma_label", 0.4),
        ("sigma_label", 2.5),
        ("sigma_count", 0.2),
    ):
        other = replace(mechanism, **{name: factor * getattr(mechanism, name)})
        (right,) = records.ind_knn([other], best.asked, 9, np.random.default_rng(9))
        assert right <= best.accuracy + 0.02, name


def test_the_first_round_finds_the_best_threshold_without_noise() -> None:
    for kernel in (IndKnn(), IndKnn(kernel="rbf", bandwidth=0.6)):
        records = simulated(kernel)
        level, share = best_level(records, kernel)
        tried = [
            records.without_noise(max(1 / STEPS, threshold_at(kernel, step / 20)))
            for step in range(1, 20)
        ]
        assert share == max(tried)
        assert share == pytest.approx(records.without_noise(threshold_at(kernel, level)), abs=0.01)
        assert share > 1.1 / CLASSES


def test_a_floor_of_the_accuracy_buys_fewer_and_better_labels(
    small_grids,
) -> None:
    kernel, goal = IndKnn(threshold=0.4), replace(GOAL, epsilon=0.2)
    records = simulated(kernel)
    free = optimise(kernel, records, goal).chosen.forecast
    floor = free.accuracy + 0.06
    better = optimise(kernel, records, replace(goal, min_accuracy=floor)).chosen.forecast
    assert better.accuracy > free.accuracy + 0.02
    assert better.asked < free.asked
    with pytest.raises(BudgetRefused, match=r"budget\.epsilon"):
        optimise(kernel, records, replace(goal, min_accuracy=0.999))


def test_the_command_writes_a_configuration_that_loads_and_fits(
    config_file: Path, small_grids, tmp_path: Path, capsys
) -> None:
    out, plot = tmp_path / "best.yaml", tmp_path / "frontier.png"
    arguments = [
        "plan",
        "--config",
        str(config_file),
        "--optimise",
        "--expected_records",
        str(PRIVATE),
    ]
    assert pipeline.main([*arguments, "--out", str(out), "--plot", str(plot), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    loaded = load_config(out)
    assert 0.99 < shown["epsilon"] <= loaded.budget.epsilon == 1.0
    assert (
        loaded.mechanism.fields()
        == shown["optimised"]["mechanism"]
        == shown["rounds"][0]["mechanism"]
    )
    assert (
        sum(r.queries for r in loaded.rounds)
        == loaded.caps.asked
        == shown["optimised"]["expected"]["asked"]
    )
    assert loaded.caps.answered is None
    assert shown["proxy"]["votes"].startswith("a rehearsal among 400 labelled public rows")
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert pipeline.main(["plan", "--config", str(out), "--json"]) == 0
    capsys.readouterr()
    assert pipeline.main(arguments) == 0
    text = capsys.readouterr().out
    assert "sigma_label" in text
    assert "1500 private records expected" in text
    assert text.count("│") >= 2 * 8


def test_what_can_not_be_records_is_refused(config_file: Path, tmp_path: Path) -> None:
    config = load_config(config_file)
    with pytest.raises(InvalidInput, match="mean_accuracy"):
        best_plan(config, Request(mean_accuracy=0.8), Quiet())
    own = replace(
        config,
        rounds=[RoundConfig(9), RoundConfig(9, replace(config.mechanism, rho=0.001))],
        mechanism=replace(config.mechanism, rho=0.001),
    )
    with pytest.raises(InvalidInput, match="all rounds share"):
        mechanisms_for(own)
    with pytest.raises(InvalidInput, match="expected_records"):
        optimise(config.mechanism, simulated(config.mechanism), replace(GOAL, expected_records=1))
    with np.load(tmp_path / "data.npz") as data:
        few = {name: data[name][:99] for name in data.files}
    np.savez(tmp_path / "data.npz", **few)
    with pytest.raises(InvalidInput, match=r"data\.test.*at least 100"):
        best_plan(replace(config, expected_records=500), Request(), Quiet())
