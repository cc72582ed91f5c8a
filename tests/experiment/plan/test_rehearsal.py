"""Rehearsals: the law of what stands for sums and votes, and how near forecasts are to a run's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import cross_val_score

from labelwall.experiment.config.config import Config
from labelwall.experiment.plan.planner import Choice, Goal, Optimum
from labelwall.experiment.plan.rehearsal import LabelledRows, Rehearsal, labelled_rows, public_box
from labelwall.experiment.plan.show import reason
from labelwall.experiment.plan.stand_ins import (
    MIN_VARIANCE,
    RehearsingTeacher,
    ScaledVoters,
    StandInNoise,
)
from labelwall.student.asking.boosted import Boosted
from labelwall.student.asking.matrix_round import MatrixRound, ask_matrices
from labelwall.student.linear.tuning import RADIUS
from labelwall.teacher.custody.groups import RoundConfig
from labelwall.teacher.custody.solver import solved
from labelwall.teacher.mechanisms import sums
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN, PrivateKnn, PrivateRadius
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.datasets.data_config import PublicData, Task
from labelwall.wall.features.embedder import Embedder, unit_length
from labelwall.wall.label_kinds import label_space
from labelwall.wall.matrices import Cells
from labelwall.wall.progress import no_progress
from tests.experiment.plan.planning import (
    CASES,
    CLASSES,
    DIMENSIONS,
    EMBEDDER,
    PRIVATE,
    embedded,
    staged,
    vectors,
)
from tests.seeded_noise import SeededNoise

RECORDS = 2_000


def teacher(rows: int, seed: int, sigma: float, records: int) -> RehearsingTeacher:
    x, y = vectors(1, rows)
    mechanism = sums.ReverseKnn(centroids=2, sigma=sigma)
    rng = np.random.default_rng(seed)
    return RehearsingTeacher(mechanism, EMBEDDER.embed(x)[0], y, CLASSES, 63.0, records, rng)


def counts(sigma: float, records: int, draws: int = 400) -> np.ndarray:
    """Histograms of two cells that 200 rows stand for: float64 [draws, 2 * CLASSES]."""
    centers = EMBEDDER.embed(vectors(5, 2)[0])[0]
    found = [teacher(200, n, sigma, records).count(Cells(centers)).counts for n in range(draws)]
    return np.array(found, dtype=float).reshape(draws, -1)


@pytest.mark.parametrize(("records", "left"), [(200, 1.0), (5_000, MIN_VARIANCE**0.5)])
def test_what_few_rows_vary_by_is_taken_off_the_noise_on_sums(records: int, left: float) -> None:
    """Nothing for as many records as there are rows; 200 vary by more than the noise for 5,000."""
    found = counts(sigma=30.0, records=records)
    assert found.mean(axis=0).sum() == pytest.approx(records, abs=15)
    assert found.std(axis=0) == pytest.approx(np.full(6, 30.0 * left), rel=0.15)


LINEAR_VALUE = sums.PrivateLinearValue(steps=2, axes=8)


@pytest.mark.parametrize(
    "mechanism",
    [
        sums.PrivateLinear(steps=2, axes=8),
        sums.ReverseKnn(centroids=20, neighbours=2, row_neighbours=2),
        LINEAR_VALUE,
        sums.PrivateLinearAttributes(steps=2, axes=8),
    ],
)
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_a_forecast_is_near_a_round_of_a_run(tmp_path, mechanism, epsilon) -> None:
    """600 labelled rows foretell rounds over 2,000 records, with new rows, or a little less."""
    stage = staged(tmp_path, mechanism, records=RECORDS, epsilon=epsilon)
    schedule, case = solved(stage.settings.schedule), CASES[mechanism.label_space]
    view = stage.views[0]
    forecast = stage.score(view, schedule.mechanism, range(8), 0).accuracy
    (x, y), (test, truth) = case.rows(6, RECORDS), case.rows(7, 2_000)
    seen = stage._seen(0, schedule.mechanism.query_form)
    spec, rows = seen.spec, seen.public
    embedder, outputs = Embedder(spec), case.space.outputs
    right, length = [], unit_length(spec, rows.shape[1])
    for seed in range(8):
        codes, rng = case.space.encode("y", y), np.random.default_rng(seed)
        records = RehearsingTeacher(
            schedule.mechanism, embedder.embed(x)[0], codes, outputs, length, RECORDS, rng
        )
        folder = tmp_path / f"round_{seed}"
        folder.mkdir()
        asked = embedder.embed(test)[0]
        current = MatrixRound(
            count=records.count,
            planned=schedule.asked_rounds(stage.settings.seed)[0],
            extractor=spec,
            features=rows,
            rows=asked,
            folder=folder,
        )
        answers, _ = ask_matrices(current)
        right.append(case.right(answers.labels, truth))
    assert -0.08 < forecast - np.mean(right) < 0.04


KNN = PrivateKnn(k=60, threshold=35, sigma_screen=10.0, sigma_vote=12.0, sample_rate=0.5)


@pytest.mark.parametrize(
    "mechanism",
    [
        KNN,
        replace(KNN, k=150, threshold=110, sigma_screen=6.0, sigma_vote=20.0, sample_rate=1),
        replace(KNN, k=40, threshold=10, sample_rate=0.2),
        replace(KNN, k=900, threshold=40, sigma_screen=20.0, sample_rate=0.1),  # of 200
        PrivateRadius(share=0.1, threshold=60, sigma_screen=10.0, sigma_vote=9.0, sample_rate=0.5),
        PrivateKnnMean(k=60, sigma_mean=2.0, sample_rate=0.3),
        PrivateKnnMedian(k=60, epsilon=1.0, sample_rate=0.3),
    ],
    ids=lambda mechanism: f"{mechanism.kind} {vars(mechanism).get('k')}",
)
def test_a_forecast_of_queries_is_near_the_mechanism_on_records_it_never_saw(
    tmp_path, mechanism
) -> None:
    stage, case = staged(tmp_path, mechanism, 1_000), CASES[mechanism.label_space]
    forecast = stage.score(stage.views[0], mechanism, range(8), 0)
    (x, y), (test, truth) = case.rows(1, PRIVATE), case.rows(7, 1_000)
    spec = stage._seen(0, mechanism.query_form).spec
    (records, queries), codes = (EMBEDDER.embed(v)[0] for v in (x, test)), case.space.encode("y", y)
    index = ExactIndex(records, np.arange(PRIVATE), threads=1)
    voters = Voters(index, codes, CLASSES, queries, landmarks=spec.landmarks)
    keys, right, passed = [str(q) for q in range(len(queries))], [], []
    tapes = 10 if mechanism.stages[0] == SCREEN else 1  # one moves the share by 2% of itself
    for tape in map(SeededNoise, range(tapes)):
        drawn = {stage: mechanism.draw(stage, voters, keys, tape) for stage in mechanism.stages}
        labels = np.array([mechanism.label(v) for v in drawn[mechanism.stages[-1]].tolist()])
        has = drawn.get(SCREEN, np.ones(len(keys))) == 1
        passed.append(has.mean())
        right.append(case.right(labels[has], truth[has]))
    assert forecast.answered == pytest.approx(np.mean(passed), rel=0.1)
    assert forecast.accuracy == pytest.approx(np.mean(right), abs=0.05)


def test_votes_are_those_of_the_part_of_the_rows_that_stands_for_the_voters() -> None:
    """100 of 1,000 sampled records are the nearest tenth: 12 rows of 120, or 12.5 of 125."""
    for rows in (120, 125):
        features, labels = (part[:rows] for part in embedded(4, 125))
        index, noise = ExactIndex(features, np.arange(rows)), StandInNoise(np.random.default_rng(0))
        voters = ScaledVoters(index, labels, CLASSES, features[:3], records=2000)
        votes = voters.votes(100, 0.5, ["", "", ""], SCREEN, noise)
        for query, found in enumerate(votes):
            apart = ((features.astype(int) - features[query]) ** 2).sum(axis=1)
            near = labels[np.lexsort((np.arange(rows), apart))]
            counts = np.bincount(near[:12], minlength=CLASSES).astype(float)
            counts[near[12]] += rows / 10 - 12
            assert found == pytest.approx(counts * 1000 / rows, abs=0.5)


@pytest.mark.parametrize("records", [100, 5_000])
def test_noise_on_votes_lacks_what_few_rows_vary_by(records: int) -> None:
    """20 of 200 rows stand for 10 votes, which vary more, or for 500, which vary less."""
    features, labels = embedded(4, 200)
    index, sigma = ExactIndex(features, np.arange(200)), 9.0
    noise = StandInNoise(np.random.default_rng(0))
    voters = ScaledVoters(index, labels, CLASSES, features[:1].repeat(4000, 0), records=records)
    votes = voters.votes(records // 10, 1.0, [""] * 4000, AGGREGATE, noise)[0]
    drawn = noise.discrete_gaussian(sigma, [""] * 4000, AGGREGATE, CLASSES)
    expected = sigma**2 + votes * (1 - records / 10 / 20)
    expected = np.maximum(expected, MIN_VARIANCE * sigma**2) + 1 / 12  # rounding
    assert drawn.var(axis=0) == pytest.approx(expected, rel=0.1)


def test_with_little_noise_a_forecast_of_values_is_that_of_least_squares(tmp_path: Path) -> None:
    """By sklearn's regression of the values on vectors up to the radius that a run regresses on."""
    stage = staged(tmp_path, LINEAR_VALUE, 2_000, RECORDS, epsilon=200.0)
    mechanism, rows = solved(stage.settings.schedule).mechanism, CASES["value"].rows
    forecast = stage.score(stage.views[0], mechanism, range(4), 0)
    (x, y), (test, truth) = rows(6, RECORDS), rows(7, 2_000)
    radius = RADIUS * np.sqrt((x**2).sum(axis=1).mean())
    x, asked = (v / np.maximum(np.linalg.norm(v, axis=1), radius)[:, None] for v in (x, test))
    best = LinearRegression().fit(x, y).score(asked, truth)
    assert forecast.answered == 1.0
    assert forecast.accuracy == pytest.approx(best, abs=0.04)


def test_no_more_axes_than_the_public_rows_spread_in(tmp_path: Path) -> None:
    """Constant columns and copies of others, as tables have: each view can be rehearsed."""
    (public, _), (x, y) = vectors(2, 400), vectors(3, 200)
    wide = [np.hstack([rows, rows, np.ones((len(rows), 4), np.float32)]) for rows in (public, x)]
    mechanism = sums.ReverseKnn(centroids=5, sigma=9.0)
    config = Config(data=CASES["class"].data, rounds=[RoundConfig()], mechanism=mechanism)
    task = Task(CASES["class"].space, (2 * DIMENSIONS + 4,))
    stage = Rehearsal(
        settings=config,
        task=task,
        public=wide[0],
        labelled=LabelledRows(inputs=wide[1], labels=y, source=""),
        goal=Goal(1.0, 1e-5, RECORDS, 400, 1),
        progress=no_progress,
        scratch=tmp_path,
    )
    views = stage.views
    assert [(view.whiten, view.axes) for view in views] == [(0, DIMENSIONS), (DIMENSIONS,) * 2]
    for view in views:
        assert stage.score(view, config.mechanism, range(1), 0).accuracy > 0.5


@pytest.mark.parametrize(
    ("away", "classes", "foreign"),
    [(0.0, range(CLASSES), False), (0.0, range(1), False), (5.0, range(CLASSES), True)],
    ids=["alike", "a class", "moved"],
)
def test_public_rows_unlike_the_test_split_are_seen(tmp_path, away, classes, foreign) -> None:
    stage = staged(tmp_path, sums.ReverseKnn(centroids=5, sigma=9.0))
    public, labels = vectors(2, 1_000)
    moved = public[np.isin(labels, classes)] + np.float32(away) * np.eye(DIMENSIONS)[-1]
    rows = (moved.astype(np.float32), stage.labelled.inputs)
    stage.__dict__["computed"] = rows
    assert stage.foreign(stage.views[0]) is foreign


def test_what_public_labels_alone_give_is_forecast_and_said(tmp_path: Path) -> None:
    """A hundred labels tell more of three classes than a tiny budget: by axes, columns or trees.
    Too few ones count as wrong, and labels that serve metrics alone give nothing.
    """
    stage = staged(tmp_path, sums.PrivateLinear(noise_multiplier=20.0))
    taught = replace(stage.settings, public_labels="train")
    learned = replace(stage, settings=taught, labelled=replace(stage.labelled, public=True))
    view, form = stage.views[0], sums.PrivateLinear().query_form
    assert stage.alone(view, form) == 0.0
    right = learned.alone(view, form)
    x, y = learned.labelled.inputs, learned.labelled.labels
    assert right == pytest.approx(cross_val_score(LogisticRegression(), x, y).mean(), abs=0.06)
    one_axis = sums.PrivateLinear(axes=1).query_form  # says less than columns as they are
    assert learned.alone(view, one_axis) > right - 0.02
    assert learned.alone(view, form, Boosted({}, x, right=0.99)) == pytest.approx(0.99)
    unknown = np.where(y == 2, 2 + np.arange(len(y)) % 200, y)  # a third, in many classes
    many = replace(learned.task, labels=label_space("class", [*map(str, range(202))], []))
    few = replace(learned, task=many, labelled=replace(learned.labelled, labels=unknown))
    assert few.alone(view, form) < 0.7
    choice = Choice(1.0, view, sums.PrivateLinear(), 9, 9, 9.0, right - 0.1, 0.02)
    told = Optimum(goal=stage.goal, tried=(choice,), source="600 rows", alone=right)
    assert f"the public labels alone give more, {right:.1%} right" in reason(told)
    assert "alone" not in reason(replace(told, alone=right - 0.09))


def test_labelled_public_rows_come_before_the_test_split() -> None:
    inputs, labels = vectors(1, 300)
    some = np.where(np.arange(300) < 150, labels, -1)
    found = labelled_rows(PublicData(inputs, some, inputs[:200], labels[:200]), 120, 0)
    assert found is not None
    assert len(found.labels) == 120
    assert (found.labels >= 0).all()
    assert "public rows" in found.source
    none = PublicData(inputs, np.full(300, -1), inputs[:200], labels[:200])
    by_test = labelled_rows(none, 4_000, 0)
    assert by_test is not None
    assert "test split" in by_test.source
    assert labelled_rows(PublicData(inputs, None, inputs[:9], labels[:9]), 120, 0) is None


def test_a_box_holds_all_public_rows() -> None:
    inputs, _ = vectors(1, 50)
    box = np.array(public_box(inputs))
    assert (inputs > box[:, 0]).all()
    assert (inputs < box[:, 1]).all()
    assert (np.ptp(public_box(np.ones((3, 2), np.float32)), axis=1) > 0).all()
