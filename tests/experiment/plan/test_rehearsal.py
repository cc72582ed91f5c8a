"""Rehearsals: the law of their sums, and how near their forecasts are to rounds of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.groups import BudgetConfig, RoundConfig
from labelwall.experiment.plan.rehearsal import (
    MIN_VARIANCE,
    Labelled,
    Rehearsal,
    RehearsingTeacher,
    labelled_rows,
    public_box,
)
from labelwall.experiment.run.matrices import ask_matrices, question_of
from labelwall.teacher.features.embedder import Embedder, unit_length
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.sums import (
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
    ReverseKnn,
)
from labelwall.wall.datasets.config import DataConfig, PublicData, Task
from labelwall.wall.label_kinds import label_space
from labelwall.wall.labels import LabelSpace
from labelwall.wall.matrices import Cells
from labelwall.wall.progress import no_progress
from tests.experiment.plan.planning import CLASSES, DIMENSIONS, EMBEDDER, vectors

RECORDS = 2_000


def teacher(rows: int, seed: int, sigma: float, records: int) -> RehearsingTeacher:
    x, y = vectors(1, rows)
    mechanism = ReverseKnn(centroids=2, sigma=sigma)
    rng = np.random.default_rng(seed)
    return RehearsingTeacher(mechanism, EMBEDDER.embed(x)[0], y, CLASSES, 63.0, records, rng)


def counts(sigma: float, records: int, draws: int = 400) -> np.ndarray:
    """Histograms of two cells that 200 rows stand for: float64 [draws, 2 * CLASSES]."""
    centers = EMBEDDER.embed(vectors(5, 2)[0])[0]
    found = [teacher(200, n, sigma, records).count(Cells(centers)).counts for n in range(draws)]
    return np.array(found, dtype=float).reshape(draws, -1)


def test_sums_stand_for_all_records_under_the_mechanisms_noise() -> None:
    """For as many records as there are rows, nothing but the noise is added."""
    found = counts(sigma=30.0, records=200)
    assert found.mean(axis=0).sum() == pytest.approx(200, abs=15)
    assert found.std(axis=0) == pytest.approx(np.full(6, 30.0), rel=0.15)


def test_what_few_rows_vary_by_is_taken_off_the_noise() -> None:
    """5,000 records by 200 rows: their own variance is above the noise's, of which a part stays."""
    found = counts(sigma=30.0, records=5_000)
    assert found.mean(axis=0).sum() == pytest.approx(5_000, abs=15)
    assert found.std(axis=0) == pytest.approx(np.full(6, 30.0 * MIN_VARIANCE**0.5), rel=0.15)


@dataclass(frozen=True)
class Case:
    """Rows of one kind of labels. ``rows``: a function of a seed and a count, as ``vectors``."""

    data: DataConfig
    space: LabelSpace
    rows: Callable[[int, int], tuple[np.ndarray, np.ndarray]]

    def right(self, labels: np.ndarray, truth: np.ndarray) -> float:
        """The share of right labels; R2 of values, by its definition."""
        if self.space.kind == "value":
            away = self.space.decode(labels) - truth
            return float(1 - (away**2).mean() / truth.var())
        return float((labels == truth).mean())


def priced(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors whose values are linear, with noise of a tenth of their variance: float64 [n]."""
    x, _ = vectors(seed, n)
    noise = np.random.default_rng([seed, 1]).normal(size=n)
    return x, x[:, :4] @ [1.0, -1.0, 0.5, 0.5] + 0.55 * noise


def marked(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors with three attributes, one of them noisy: int64 [n, 3] of 0 and 1."""
    x, _ = vectors(seed, n)
    flipped = np.random.default_rng([seed, 2]).random(n) < 0.2
    found = np.stack([x[:, 0] > 0.5, x[:, 1] + x[:, 2] > 1, (x[:, 3] > 0) ^ flipped], axis=1)
    return x, found.astype(np.int64)


BOUNDS = [-8.0, 8.0]
CASES = {
    "class": Case(DataConfig("arrays", path="-"), label_space("class", list("abc"), []), vectors),
    "attributes": Case(
        DataConfig("arrays", path="-", labels="attributes"),
        label_space("attributes", list("abc"), []),
        marked,
    ),
    "value": Case(
        DataConfig("arrays", path="-", labels="value", bounds=BOUNDS),
        label_space("value", [], BOUNDS),
        priced,
    ),
}
LINEAR_VALUE = PrivateLinearValue(steps=2, axes=8)


def staged(
    tmp_path: Path, mechanism: Mechanism, epsilon: float, labelled: int = 600
) -> tuple[Config, Rehearsal]:
    """A rehearsal of one round with so many labelled rows."""
    case = CASES[mechanism.label_space]
    config = Config(
        case.data,
        [RoundConfig()],
        budget=BudgetConfig(epsilon),
        mechanism=mechanism,
        features="raw",
    ).solved()
    task, (public, _) = Task(case.space, (DIMENSIONS,)), case.rows(2, 500)
    rows = Labelled(*case.rows(3, labelled), "")
    return config, Rehearsal(config, task, public, rows, RECORDS, no_progress, tmp_path)


@pytest.mark.parametrize(
    "mechanism",
    [
        PrivateLinear(steps=2, axes=8),
        ReverseKnn(centroids=20, neighbours=2, row_neighbours=2),
        LINEAR_VALUE,
        PrivateLinearAttributes(steps=2, axes=8),
    ],
)
@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_a_forecast_is_near_a_round_of_a_run(
    tmp_path: Path, mechanism: Mechanism, epsilon: float
) -> None:
    """600 labelled rows foretell rounds over 2,000 records, with new rows, or a little less."""
    config, stage = staged(tmp_path, mechanism, epsilon)
    case = CASES[mechanism.label_space]
    view = stage.features.views()[0]
    forecast = stage.score(view, config.mechanism, 8).accuracy
    (x, y), (test, truth) = case.rows(6, RECORDS), case.rows(7, 2_000)
    spec, rows, _ = stage._seen(0, config.mechanism.query_form.axes)
    embedder = Embedder(spec, probe=None)
    right = []
    for seed in range(8):
        records = RehearsingTeacher(
            config.mechanism,
            embedder.embed(x)[0],
            case.space.encode("y", y),
            case.space.outputs,
            unit_length(spec, rows.shape[1]),
            RECORDS,
            np.random.default_rng(seed),
        )
        folder = tmp_path / f"round_{seed}"
        folder.mkdir()
        asked = embedder.embed(test)[0]
        outputs = case.space.outputs
        current = config.public_side().rounds[0]
        question = question_of(current, outputs, spec, rows.shape[1], folder)
        answers, _ = ask_matrices(records, question, rows, asked)
        right.append(case.right(answers.labels, truth))
    assert -0.08 < forecast - np.mean(right) < 0.04


def test_with_little_noise_a_forecast_of_values_is_that_of_least_squares(tmp_path: Path) -> None:
    """By sklearn's regression of the values on the unit vectors that a run regresses on."""
    config, stage = staged(tmp_path, LINEAR_VALUE, 200.0, labelled=2_000)
    forecast = stage.score(stage.features.views()[0], config.mechanism, 4)
    (x, y), (test, truth) = priced(6, RECORDS), priced(7, 2_000)
    rows, asked = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, test))
    best = LinearRegression().fit(rows, y).score(asked, truth)
    assert forecast.answered == 1.0
    assert forecast.accuracy == pytest.approx(best, abs=0.04)


def test_no_more_axes_than_the_public_rows_spread_in(tmp_path: Path) -> None:
    """Constant columns and copies of others, as tables have: each view can be rehearsed."""
    (public, _), (x, y) = vectors(2, 400), vectors(3, 200)
    wide = [np.hstack([rows, rows, np.ones((len(rows), 4), np.float32)]) for rows in (public, x)]
    config = Config(
        CASES["class"].data, [RoundConfig()], mechanism=ReverseKnn(centroids=5, sigma=9.0)
    )
    task = Task(CASES["class"].space, (2 * DIMENSIONS + 4,))
    labelled = Labelled(wide[1], y, "")
    stage = Rehearsal(config, task, wide[0], labelled, RECORDS, no_progress, tmp_path)
    views = stage.features.views()
    assert [(view.whiten, view.axes) for view in views] == [(0, DIMENSIONS), (DIMENSIONS,) * 2]
    for view in views:
        assert stage.score(view, config.mechanism, 1).accuracy > 0.5


def test_labelled_public_rows_come_before_the_test_split() -> None:
    inputs, labels = vectors(1, 300)
    some = np.where(np.arange(300) < 150, labels, -1)
    found = labelled_rows(PublicData(inputs, some, inputs[:200], labels[:200]), 100, 120, 0)
    assert found is not None
    assert len(found.labels) == 120
    assert (found.labels >= 0).all()
    assert "public rows" in found.source
    none = PublicData(inputs, np.full(300, -1), inputs[:200], labels[:200])
    by_test = labelled_rows(none, 100, 4_000, 0)
    assert by_test is not None
    assert "test split" in by_test.source
    assert labelled_rows(PublicData(inputs, None, inputs[:9], labels[:9]), 100, 120, 0) is None


def test_a_box_holds_all_public_rows() -> None:
    inputs, _ = vectors(1, 50)
    box = np.array(public_box(inputs))
    assert (inputs > box[:, 0]).all()
    assert (inputs < box[:, 1]).all()
    assert (np.ptp(public_box(np.ones((3, 2), np.float32)), axis=1) > 0).all()
