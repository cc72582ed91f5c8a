"""Labels of public rows beside sums: never behind either, and no class is forgotten."""

import numpy as np
import pytest

from labelwall.experiment.linear.labelled import labelled
from labelwall.experiment.linear.model import fit
from tests.experiment import tiny
from tests.experiment.linear.test_fits import N, far_clusters, settings, teacher


def test_labelled_public_rows_are_learned_beside_the_sums() -> None:
    """As good as the better of the two, with little noise and with much."""
    rng, middles = np.random.default_rng(3), 1.2 * np.eye(4, 16)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 4, count)
        x = middles[labels] + rng.normal(size=(count, 16))
        return tiny.integers(x), labels

    (private, codes), public, (x, y) = drawn(4_000), drawn(160), drawn(4_000)
    for noise in (1.0, 200.0, 5_000.0):
        how, scores = settings("class", 4, noise, 20), []
        alone = labelled(*public, how.length, 4)
        assert alone is not None
        for known in (None, alone):
            models = [fit(teacher(codes, how, private, s), public[0], how, known) for s in range(3)]
            right = [(m.says(x).argmax(axis=1) == y).mean() for m in models if m is not None]
            scores.append(float(np.mean(right)))
        assert all(m is not None and m.known == alone.right for m in models)
        by_labels = float(((how.inputs(x) @ alone.weights).argmax(axis=1) == y).mean())
        assert alone.right == pytest.approx(by_labels, abs=0.1)
        assert scores[1] > max(scores[0], by_labels) - 0.006, noise


def test_a_class_without_public_labels_is_learned_from_the_sums() -> None:
    features, labels = far_clusters()
    labels = labels + (features[:, 1] > 0)  # three classes, of which the last has no label
    how, public = settings("class", 3, 1.0, 20), labels < 2
    known = labelled(features, np.where(public, labels, -1), how.length, 3)
    model = fit(teacher(labels, how, features), features, how, known)
    assert model is not None
    right = model.says(features).argmax(axis=1) == labels
    assert right[~public].mean() > 0.85
    assert model.known == 0.0  # its labels say nothing of the third class
    assert labelled(features, np.zeros(N, dtype=np.int64), how.length, 3) is None
