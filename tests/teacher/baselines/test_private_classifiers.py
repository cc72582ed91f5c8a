"""diffprivlib's classifiers: learning, public bounds and classes, noise, limits of the claim."""

import secrets
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from labelwall.teacher.baselines import private_classifiers
from labelwall.teacher.baselines.baseline_settings import (
    DpForest,
    DpLogisticRegression,
    DpNaiveBayes,
)
from labelwall.teacher.baselines.private_classifiers import fit_privately
from labelwall.wall.errors import LabelwallError, MissingData

KINDS = [DpLogisticRegression(), DpNaiveBayes(), DpForest(trees=1), DpForest(trees=4)]
NAMES = ["logistic", "bayes", "tree", "forest"]
DRAWN = {
    DpLogisticRegression: lambda model: model.coef_,
    DpNaiveBayes: lambda model: model.theta_,
    DpForest: lambda model: model.tree_.threshold,
}
EXACT = 1e6  # epsilon at which noise is below what these tests look at


def data(n):
    """Two corners of a square and a class for each: float64 [n, 2] in -1..1, int64 [n]."""
    labels = np.arange(n) % 2
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, (n, 2))
    return (labels[:, None] - 0.5) * 1.4 + noise, labels


def fit(config, rows, labels, epsilon, classes=2):
    return fit_privately(config, rows, labels, num_classes=classes, epsilon=epsilon)


def test_logistic_regression_is_scikit_learns_on_unit_rows_without_noise():
    rows, labels = data(400)
    model = fit(DpLogisticRegression(penalty=2.0), rows, labels, EXACT)
    unit = np.column_stack([rows, np.ones(400)]) / np.sqrt(3)
    oracle = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10).fit(unit, labels)
    np.testing.assert_allclose(model.models[0].coef_, oracle.coef_, atol=1e-3)
    corners = model.prepare(np.array([[1.0, -1.0], [1.0, 1.0]]))
    assert np.linalg.norm(corners, axis=1).max() <= 1 + 1e-12


def test_naive_bayes_has_the_means_of_its_classes_without_noise():
    rows, labels = data(400)
    (model,) = fit(DpNaiveBayes(), rows, labels, EXACT).models
    # 200 rows and the public one at zero
    expected = [rows[labels == c].sum(axis=0) / 201 for c in (0, 1)]
    np.testing.assert_allclose(model.theta_, expected, atol=1e-3)


def test_a_forest_splits_the_records_and_votes(monkeypatch):
    forest = private_classifiers.require_diffprivlib().models.forest
    sizes, own = [], forest.DecisionTreeClassifier.fit
    monkeypatch.setattr(
        forest.DecisionTreeClassifier,
        "fit",
        lambda self, x, y, *rest: sizes.append(len(x) - 2) or own(self, x, y, *rest),
    )
    rows, labels = data(400)
    model = fit(DpForest(trees=4), rows, labels, 3.0)
    assert len(sizes) == 4
    assert sum(sizes) == 400  # each record is in one tree, so that epsilons do not add up
    assert model.epsilon == 3.0
    voted = np.stack([tree.predict(rows) for tree in model.models]).sum(axis=0)
    assert (model.predict(rows) == (voted > 2)).all()  # ties to class 0


@pytest.mark.parametrize("config", KINDS, ids=NAMES)
@pytest.mark.parametrize("n", [0, 1, 7])
def test_classes_are_the_declared_ones_whatever_the_records(config, n):
    model = fit(config, np.full((n, 2), 0.5), np.ones(n, dtype=np.int64), 1.0, classes=3)
    assert all(list(part.classes_) == [0, 1, 2] for part in model.models)
    assert model.predict(np.zeros((4, 2))).shape == (4,)


@pytest.mark.parametrize("config", KINDS, ids=NAMES)
def test_noise_is_the_operating_systems_and_splits_have_no_public_seed(config, monkeypatch):
    """Continuous weights, means or thresholds of two fits are equal once in 10^9 at most."""
    base = private_classifiers.require_diffprivlib().mechanisms.base
    generators, own = [], base.DPMechanism.__init__

    def recorded(self, **settings):
        own(self, **settings)
        generators.append(self._rng)

    monkeypatch.setattr(base.DPMechanism, "__init__", recorded)
    rows, labels = data(60)
    drawn = []
    for _ in range(2):
        np.random.seed(0)
        before = np.random.get_state()[1].tolist()
        (model, *_) = fit(config, rows, labels, 20.0).models
        assert np.random.get_state()[1].tolist() == before  # other users of numpy are unaffected
        drawn.append(DRAWN[type(config)](model))
    assert generators
    assert all(isinstance(generator, secrets.SystemRandom) for generator in generators)
    assert not np.array_equal(*drawn)


@pytest.mark.parametrize("config", KINDS[1:3], ids=NAMES[1:3])
def test_a_bound_read_from_the_records_is_an_error(config, monkeypatch):
    monkeypatch.setattr(private_classifiers, "BOUNDS", None)
    with pytest.raises(LabelwallError, match="read bounds or classes from the records"):
        fit(config, *data(60), 1.0)


@pytest.mark.parametrize("missing", ["diffprivlib", "diffprivlib.models"])
def test_without_the_extra_it_says_what_to_install(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingData, match=r"labelwall\[compare\]"):
        fit(DpNaiveBayes(), *data(4), 1.0)
