"""The search for Ind-KNN: forecasts come true, budgets deplete as a run's, no private data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.experiment.plan import stand_ins
from labelwall.experiment.plan.candidates import threshold_at
from labelwall.experiment.plan.planner import Goal, PublicRows
from labelwall.experiment.plan.search import planned_config
from labelwall.experiment.plan.stand_ins import ScaledVoters, StandInNoise, conversations
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.features.embedder import unit_length
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.search.cpu import ExactIndex
from tests.experiment.plan import planning
from tests.experiment.plan.planning import CLASSES, PRIVATE, PUBLIC, TEST, embedded, staged
from tests.seeded_noise import SeededNoise

LENGTH = unit_length(planning.EMBEDDER.spec, planning.DIMENSIONS)
RBF = IndKnn(kernel="rbf", bandwidth=0.6, near=0.7, threshold=0.1)
SMALL = IndKnn(threshold=0.3, sigma_label=0.3, sigma_count=20.0, rho=0.08)


def asked_for_real(mechanism: IndKnn, asked: int) -> float:
    """Share of right answers of the mechanism, with a repeatable tape, on records of no search.

    400 queries here and 100 rows in a rehearsal: a deviation of 0.05 between the two shares.
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
def test_the_forecast_comes_true_and_no_neighbour_is_better(tmp_path: Path, kernel: dict) -> None:
    stage = staged(tmp_path, mechanism := IndKnn(**kernel), TEST)
    public = PublicRows(lambda: stage.views[:1], stage.score)
    goal = Goal(1.0, 1e-5, PRIVATE, PUBLIC, 2, asked=PUBLIC)
    best = planning.planned(mechanism, goal, public).chosen
    config = planned_config(replace(stage.settings, rounds=stage.settings.rounds * 2), best)
    assert 0.99 < best.epsilon == certified_epsilon(config.plan()) <= 1
    assert best.mechanism.rho == pytest.approx(0.0305527, abs=1e-7)  # all that the budget buys
    assert best.answered == best.cap == best.asked == PUBLIC
    assert [r.queries for r in config.rounds] == [PUBLIC // 2, PUBLIC // 2]
    assert best.accuracy == pytest.approx(asked_for_real(best.mechanism, PUBLIC), abs=0.08)
    less = planning.planned(mechanism, replace(goal, epsilon=0.25), public).chosen
    assert less.right < best.right
    for name, factor in (
        ("threshold", 0.5),
        ("threshold", 1.3),
        ("sigma_label", 0.4),
        ("sigma_label", 2.5),
        ("sigma_count", 0.2),
        ("sigma_count", 3.0),
    ):
        other = replace(best.mechanism, **{name: factor * getattr(best.mechanism, name)})
        score = stage.score(best.view, other, range(20, 36), PUBLIC)
        assert score.accuracy <= best.accuracy + 0.02, name


def voters(records: int) -> ScaledVoters:
    (x, y), (asked, _) = embedded(1, 120), embedded(2, 120)
    index = ExactIndex(x, np.arange(120), threads=1)
    return ScaledVoters(index, y, CLASSES, asked, LENGTH, records=records)


def labels(mechanism: IndKnn, records: int, asked: int, seed: int = 4) -> np.ndarray:
    noise = StandInNoise(np.random.default_rng(seed))
    return conversations(mechanism, voters(records), asked, noise)


@pytest.mark.parametrize("mechanism", [SMALL, replace(RBF, sigma_count=20.0, rho=0.08)])
def test_a_row_that_counts_several_times_answers_as_its_copies(
    monkeypatch, mechanism: IndKnn
) -> None:
    """Shares of each class, over 40 conversations of 120 queries: deviations below 0.01."""

    def shares() -> np.ndarray:
        drawn = [labels(mechanism, 3600, 120, seed) for seed in range(40)]
        return np.bincount(np.concatenate(drawn), minlength=CLASSES) / (40 * 120)

    copied = shares()
    monkeypatch.setattr(stand_ins, "MOST_COPIED", 1800)  # 15 copies, each of which counts twice
    assert shares() == pytest.approx(copied, abs=0.03)


def test_more_queries_than_rows_spend_budgets_as_fast() -> None:
    half = replace(SMALL, rho=0.04)
    once, truth = labels(half, 600, 120), embedded(2, 120)[1]
    assert labels(SMALL, 600, 240).tolist() == once.tolist()
    rich, again = labels(SMALL, 600, 120), labels(SMALL, 600, 30)  # four conversations
    assert np.mean(once == truth) < np.mean(rich == truth) < np.mean(again == truth)


def test_a_level_is_the_threshold_at_that_cosine() -> None:
    angle = np.arccos(0.4)
    distance = (1 - np.cos(angle)) ** 2 + np.sin(angle) ** 2
    assert threshold_at(IndKnn(), 0.4) == 0.4
    assert threshold_at(RBF, 0.4) == pytest.approx(np.exp(-(distance - 0.49) / 0.36))
    assert threshold_at(RBF, 0.99) == 1.0
