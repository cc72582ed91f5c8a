"""Classifiers that favour each class alike: against balanced regressions of the same rows."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, recall_score

from labelwall.student.linear.linear_model import LinearModel, fit
from labelwall.student.linear.shares import favour_alike
from labelwall.student.linear.stored import StoredFit, stored_fit, stored_layer
from tests.student.linear.test_fits import settings, teacher
from tests.student.linear.test_shift import rows

SHARES = [0.65, 0.32, 0.03]
PRIVATE, PUBLIC = rows(SHARES, 6_000, 1), rows(SHARES, 2_000, 2)


def fitted(balanced: bool, earlier: StoredFit | None = None, noise: float = 5.0) -> LinearModel:
    how = settings("class", 3, noise, 20, balanced=balanced)
    model = fit(teacher(PRIVATE[1], how, PRIVATE[0]), PUBLIC[0], how, earlier=earlier)
    assert model is not None
    return model


def test_classes_are_found_as_often_as_by_a_balanced_regression() -> None:
    """And its certainty is how often its labels are right, not how often they would be."""
    oracle = LogisticRegression(C=1e3, max_iter=2000, class_weight="balanced").fit(*PRIVATE)
    features, labels = rows(SHARES, 6_000, 3)
    given, usual = (fitted(b).says(features).argmax(axis=1) for b in (True, False))
    best = balanced_accuracy_score(labels, oracle.predict(features))
    assert balanced_accuracy_score(labels, given) > best - 0.02
    found, before = (recall_score(labels, said, average=None).min() for said in (given, usual))
    assert found > before + 0.1
    model = fitted(True)
    right = (given == labels).mean()
    assert model.certainty(model.says(features)).mean() == pytest.approx(right, abs=0.03)


def test_a_file_says_what_the_model_says_and_averages_without_offsets(tmp_path: Path) -> None:
    balanced, usual = fitted(True), fitted(False)
    for name, model in (("balanced", balanced), ("usual", usual)):
        (tmp_path / name).write_bytes(model.to_bytes("00"))
    stored = stored_layer(tmp_path / "balanced")
    assert stored is not None
    assert np.allclose(stored.probabilities(PUBLIC[0]), balanced.says(PUBLIC[0]), atol=1e-4)
    first, second = (stored_fit(tmp_path / name, "00") for name in ("balanced", "usual"))
    assert first is not None
    assert second is not None
    assert np.allclose(first.weights, second.weights, atol=1e-6)
    later = fitted(True, first), fitted(True, second)
    assert np.allclose(later[0].says(PUBLIC[0]), later[1].says(PUBLIC[0]), atol=1e-3)


def test_offsets_divide_by_shares_that_noise_does_not_hide() -> None:
    logits = np.log([[0.5, 0.49, 0.01]])
    assert favour_alike(logits, 0.0) == pytest.approx(-logits[0] + logits.mean())
    hidden = np.log([0.5, 0.49, 0.1])
    assert favour_alike(logits, 0.1) == pytest.approx(-hidden + hidden.mean())
    assert favour_alike(np.zeros((1, 3)), 0.9) == pytest.approx(np.zeros(3))
