"""Labels of public rows beside sums: never behind either, and no class is forgotten."""

import numpy as np
import pytest

from labelwall.student.linear.labelled import labelled_classes
from labelwall.student.linear.linear_model import fit
from labelwall.student.linear.measure import unit_inputs
from tests.experiment import tiny
from tests.student.linear.test_fits import N, far_clusters, settings, teacher


def test_labelled_public_rows_are_learned_beside_the_sums() -> None:
    """As good as the better of the two, with little noise and with much, on the mean of draws."""
    rng, middles = np.random.default_rng(3), 1.2 * np.eye(4, 16)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 4, count)
        x = middles[labels] + rng.normal(size=(count, 16))
        return tiny.integers(x), labels

    (private, codes), (x, y) = drawn(4_000), drawn(4_000)
    publics = [drawn(300) for _ in range(4)]
    for noise in (1.0, 200.0, 5_000.0):
        how, scores = settings("class", 4, noise, 20), []
        for seed, (features, labels) in enumerate(publics):
            alone = labelled_classes(features, labels, how.length, 4)
            assert alone is not None
            right = [
                float(((unit_inputs(x, how.length) @ alone.weights).argmax(axis=1) == y).mean())
            ]
            for known in (None, alone):
                model = fit(teacher(codes, how, private, seed), features, how, known)
                assert model is not None
                right.append(float((model.says(x).argmax(axis=1) == y).mean()))
            if model.shares is None or not model.shares.foreign:  # else the sums' own are left
                assert model.labels_given == pytest.approx(right[-1], abs=0.12)
            scores.append(right)
        by_labels, by_sums, both = np.mean(scores, axis=0)
        assert both > max(by_labels, by_sums) - 0.006, noise


def test_a_class_without_public_labels_is_learned_from_the_sums() -> None:
    features, labels = far_clusters()
    labels = labels + (features[:, 1] > 0)  # three classes, of which the last has no label
    how, public = settings("class", 3, 1.0, 20), labels < 2
    known = labelled_classes(features, np.where(public, labels, -1), how.length, 3)
    model = fit(teacher(labels, how, features), features, how, known)
    assert model is not None
    right = model.says(features).argmax(axis=1) == labels
    assert right[~public].mean() > 0.85
    assert right.mean() > 0.8
    assert model.labels_given == 0.0  # its labels say nothing of the third class
    assert labelled_classes(features, np.zeros(N, dtype=np.int64), how.length, 3) is None
