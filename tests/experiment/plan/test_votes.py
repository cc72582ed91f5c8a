"""The planner: forecasts against simulated and real votes, configurations, no private files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.experiment.config.settings import load_config
from labelwall.experiment.plan import votes as planner
from labelwall.experiment.plan.goal import Goal
from labelwall.experiment.plan.search import best_plan, planned_config
from labelwall.experiment.plan.votes import (
    CONTEST,
    SimulatedQueries,
    bit_rdp,
    rates,
    votes_among,
    votes_of,
)
from labelwall.teacher.accounting.accountant import certified_epsilon, odometer
from labelwall.teacher.accounting.curves import ORDERS, argmax_rdp
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN, PrivateKnn
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.int8_matmul import float32_product
from labelwall.wall.errors import BudgetRefused
from tests.experiment.plan import planning
from tests.experiment.plan.planning import CLASSES, PRIVATE, PUBLIC, TEST, Quiet, embedded
from tests.seeded_noise import SeededNoise


@pytest.fixture
def arrays_config(tmp_path: Path) -> Path:
    return planning.write(tmp_path, "budget: {epsilon: 3.0}")


def test_rates_are_those_of_simulated_multinomial_votes_and_discrete_noise():
    shares = np.random.default_rng(0).dirichlet(np.ones(4), 60)
    labels = shares.argmax(axis=1)
    labels[::5] = 0  # some answers that the votes do not favour
    proxy = SimulatedQueries(labels, lambda fraction: shares, math.inf, "exact shares")
    mechanism = PrivateKnn(k=80, threshold=35, sigma_screen=9.0, sigma_vote=12.0, sample_rate=0.3)
    rng, tape, repeats = np.random.default_rng(1), SeededNoise(2), 3000
    passed, right = np.empty((2, 60))
    for q in range(60):
        keys = [f"{q} {r}" for r in range(repeats)]
        screened, voted = rng.multinomial(80, shares[q], (2, repeats))
        passed[q] = (
            screened.max(axis=1) + tape.discrete_gaussian(9.0, keys, "screen", 1)[:, 0] > 35
        ).mean()
        right[q] = (
            (voted + tape.discrete_gaussian(12.0, keys, "vote", 4)).argmax(axis=1) == labels[q]
        ).mean()
    # 180,000 draws: a standard error below 0.0012; the rest is the normal approximation
    assert rates(proxy, mechanism, 10_000) == pytest.approx(
        (passed.mean(), (passed * right).mean()), abs=0.006
    )
    votes = votes_of(proxy, mechanism, 10_000)
    assert np.abs(votes.pass_rates(np.array([35]), np.array([9.0]))[0, 0] - passed).max() < 0.06
    assert np.abs(votes.right_rates(np.array([12.0]))[0] - right).max() < 0.06


def test_shares_are_those_of_the_nearest_part_of_the_other_rows():
    features, labels = embedded(4, 120)
    proxy = votes_among(features, labels, CLASSES)
    wide = features.astype(np.int64)
    for query in (0, 57, 119):
        others = [i for i in range(120) if i != query]
        others.sort(key=lambda i: (int(((wide[i] - wide[query]) ** 2).sum()), i))
        counts = np.bincount(labels[others[:11]], minlength=CLASSES).astype(float)
        counts[labels[others[11]]] += 0.9
        assert proxy.shares(11.9 / 119)[query] == pytest.approx(counts / 11.9)
        assert proxy.shares(1.0)[query] == pytest.approx(
            np.bincount(labels[others], minlength=CLASSES) / 119
        )


@pytest.mark.parametrize(
    "mechanism",
    [
        PrivateKnn(k=60, threshold=35, sigma_screen=10.0, sigma_vote=12.0, sample_rate=0.5),
        PrivateKnn(k=150, threshold=110, sigma_screen=6.0, sigma_vote=20.0, sample_rate=1.0),
        PrivateKnn(k=40, threshold=10, sigma_screen=8.0, sigma_vote=4.0, sample_rate=0.2),
        # more neighbours than the sample has
        PrivateKnn(k=900, threshold=40, sigma_screen=20.0, sigma_vote=15.0, sample_rate=0.1),
    ],
)
def test_forecast_is_close_to_the_real_mechanism_on_records_it_never_saw(mechanism):
    proxy = votes_among(*embedded(3, 800), CLASSES)
    passed, both = rates(proxy, mechanism, PRIVATE)
    (records, labels), (queries, truth) = embedded(1, PRIVATE), embedded(2, 1000)
    index = ExactIndex(records, np.arange(PRIVATE), product=float32_product, threads=1)
    voters = Voters(index, labels, CLASSES, queries)
    keys = [str(q) for q in range(len(queries))]
    tapes = [SeededNoise(seed) for seed in range(20)]  # one alone moves the rate by 2% of itself
    bits = np.array([mechanism.draw(SCREEN, voters, keys, tape) for tape in tapes])
    drawn = np.array([mechanism.draw(AGGREGATE, voters, keys, tape) for tape in tapes])
    assert passed == pytest.approx(bits.mean(), rel=0.1)
    assert both / passed == pytest.approx((drawn == truth)[bits == 1].mean(), abs=0.03)


def test_the_fast_price_of_an_argmax_is_within_one_percent():
    decides = (ORDERS >= 2) & (ORDERS <= 32)
    ratio = (
        CONTEST * bit_rdp(16 / math.sqrt(2), 0.5) / argmax_rdp(ORDERS, sigma=16.0, sample_rate=0.5)
    )
    assert np.abs(ratio[decides] - 1).max() < 0.01


def test_the_choice_fits_the_budget_and_no_affordable_neighbour_is_better(
    arrays_config, small_grids
):
    config, proxy = load_config(arrays_config), votes_among(*embedded(3, TEST), CLASSES)
    found = planner.optimise(PrivateKnn, proxy, Goal(3.0, 1e-5, PRIVATE, PUBLIC, 2))
    plan, best = planned_config(config, found.chosen).plan(), found.chosen
    assert 0.97 * 3 < certified_epsilon(plan) <= 3
    assert found.chosen.epsilon == certified_epsilon(plan)
    assert [release.cap for release in plan.releases()] == [best.asked, best.cap]
    rates_again = rates(proxy, found.chosen.mechanism, PRIVATE)
    assert best.accuracy == pytest.approx(rates_again[1] / rates_again[0])
    less = planner.optimise(PrivateKnn, proxy, Goal(1.0, 1e-5, PRIVATE, PUBLIC, 2)).chosen
    assert less.right < best.right
    assert best.cap > 10
    for change in (
        {"k": 1.5},
        {"k": 0.67},
        {"sigma_screen": 1.5},
        {"sigma_screen": 0.67},
        {"sigma_vote": 0.5},
        {"threshold": 0.5},
    ):
        other = replace(found.chosen.mechanism, **_scaled(found.chosen.mechanism, change))
        tried = [
            planner.forecast(3.0, other, asked, rates(proxy, other, PRIVATE), proxy.rows)
            for asked in range(20, PUBLIC + 1, 20)
        ]
        plans = [planned_config(config, choice).plan() for choice in tried]
        affordable = [
            f.right
            for f, p in zip(tried, plans, strict=True)
            if odometer(p, [r.cap for r in p.releases()]) <= 3
        ]
        assert max(affordable, default=0) <= 1.02 * best.right, change


def _scaled(mechanism: PrivateKnn, change: dict[str, float]) -> dict[str, float]:
    ((name, factor),) = change.items()
    value = getattr(mechanism, name)
    return {name: type(value)(value * factor)}


def test_a_floor_of_the_label_accuracy_buys_fewer_and_better_labels(small_grids):
    proxy = votes_among(*embedded(3, TEST), CLASSES)
    free, better = (
        planner.optimise(PrivateKnn, proxy, Goal(3.0, 1e-5, PRIVATE, PUBLIC, 2, floor)).chosen
        for floor in (0.0, 0.85)
    )
    assert free.accuracy < 0.85 <= better.accuracy + 0.005
    assert better.right < free.right


def test_a_budget_that_buys_nothing_is_refused_in_words():
    proxy = votes_among(*embedded(3, TEST), CLASSES)
    with pytest.raises(BudgetRefused, match=r"budget\.epsilon"):
        planner.optimise(PrivateKnn, proxy, Goal(3.0, 1e-5, 30, 30, 30, 0.9))


@pytest.mark.slow
def test_a_real_round_on_mnist5k_brings_what_was_forecast(tmp_path):
    """The quickstart's data and budget: answers within 20%, label accuracy within 3 points."""
    from labelwall.experiment.run.query_selection import choose_queries
    from labelwall.teacher.ledger.ledger import Ledger
    from labelwall.teacher.records.sources import open_records
    from labelwall.teacher.teacher import Teacher
    from labelwall.wall.datasets.sources import describe, read_public
    from labelwall.wall.messages import ABSTAINED, ExtractorSpec, Queries

    config = load_config(Path(__file__).parents[3] / "configs" / "quickstart_private_knn.yaml")
    planned, optimum = best_plan(config, Quiet(), min_accuracy=0.9)
    expected = optimum.chosen
    task, public = describe(planned.data), read_public(planned.data)
    ledger = Ledger.create(
        tmp_path / "ledger.sqlite", dataset="mnist5k", plan=planned.plan(), unsafe=True
    )
    teacher = Teacher(
        lambda: open_records(planned.data, task), ledger, tmp_path, task.num_classes, SeededNoise(0)
    )
    teacher.use_extractor(ExtractorSpec("hog", task.input_shape, task.num_classes))
    rows = choose_queries(
        planned.seed, 1, np.zeros(len(public.inputs), dtype=np.uint8), planned.rounds[0].queries
    )
    labels = teacher.answer(Queries(public.inputs[rows])).labels
    ledger.close()
    answered = labels != ABSTAINED
    assert answered.sum() == pytest.approx(expected.answered * len(rows) / expected.asked, rel=0.2)
    assert (labels == public.labels[rows])[answered].mean() == pytest.approx(
        expected.accuracy, abs=0.03
    )
