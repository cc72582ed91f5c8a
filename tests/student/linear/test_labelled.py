"""Labels and values of public rows beside sums: never behind either, no class is forgotten, few
labels win seldom, and values that differ are left.
"""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import r2_score

from labelwall.student.asking.features import extractor_of_round
from labelwall.student.linear.labelled import labelled_classes, labelled_values
from labelwall.student.linear.linear_model import LinearModel, fit
from labelwall.student.linear.measure import FitSettings, unit_inputs
from labelwall.student.linear.stored import as_network, stored_layer
from labelwall.student.student_model import outputs
from labelwall.wall.features.embedder import Embedder, unit_length
from labelwall.wall.label_kinds import ValueLabels
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.questions import SumsForm
from tests.experiment import tiny
from tests.student.linear.test_fits import N, far_clusters, settings, teacher

COLUMNS, PUBLIC, PRIVATE = 6, 200, 4_000
SPACE = ValueLabels(-1.0, 1.0)
WEIGHTS = np.linspace(0.3, -0.1, COLUMNS)
FORM = SumsForm(noise=None, steps=5, clip=0.25, labels="value", axes=COLUMNS, margin=0.0)


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


def test_classes_with_few_labels_do_not_win_where_the_sums_are_noise() -> None:
    """Fourteen classes have 0.5% of the rows each; they count as wrong in what labels give."""
    likely = np.repeat([0.31, 0.005], [3, 14])
    middles = np.vstack([1.2 * np.eye(3, 16), 0.6 * np.eye(14, 16, 2)])
    how, scores = settings("class", 17, 1_000.0, 20), []
    for seed in range(2):
        rng, rows = np.random.default_rng(seed), []
        for count in (4_000, 3_000, 300):
            labels = rng.choice(17, count, p=likely / likely.sum())
            rows.append((tiny.integers(middles[labels] + rng.normal(size=(count, 16))), labels))
        (private, codes), (x, y), (public, labels) = rows
        known = labelled_classes(public, labels, how.length, 17)
        assert known is not None
        assert len(known.labels) < len(labels)
        alone = (unit_inputs(x, how.length) @ known.weights)[:, known.classes].argmax(axis=1)
        right = float((known.classes[alone] == y).mean())
        assert known.right == pytest.approx(right, abs=0.025)
        model = fit(teacher(codes, how, private, seed), public, how, known)
        assert model is not None
        scores.append((right, (model.says(x).argmax(axis=1) == y).mean()))
    by_labels, both = np.mean(scores, axis=0)
    assert both > by_labels - 0.1


class Set:
    """Private, public and test rows of a linear value, whose length tells, and their features."""

    def __init__(self, seed: int, flipped: bool = False) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(PRIVATE + 2 * PUBLIC, COLUMNS)).astype(np.float32)
        values = np.clip(rows @ WEIGHTS + 0.1 * rng.normal(size=len(rows)), -1, 1)
        self.rows = np.split(rows, [PRIVATE, PRIVATE + PUBLIC])
        self.values = np.split(values, [PRIVATE, PRIVATE + PUBLIC])
        if flipped:
            self.values[1] = -self.values[1]
        raw = ExtractorSpec("raw", (COLUMNS,), 1)
        self.spec = extractor_of_round(raw, FORM, lambda _: self.rows[1])
        self.features = [Embedder(self.spec).embed(each)[0] for each in self.rows]
        self.codes = [SPACE.steps(each) for each in self.values]
        self.length = unit_length(self.spec, COLUMNS)

    def scores(self, noise: float, seed: int) -> tuple[float, float, float]:
        """R2 of the test rows by public values alone, by the sums alone and by both."""
        how = FitSettings("value", 1, self.length, noise, 0.25, 5)
        alone = labelled_values(self.features[1], self.codes[1], self.length)
        assert alone is not None
        ask = teacher(self.codes[0], how, self.features[0], seed, self.length)
        models = [fit(ask, self.features[1], how, known) for known in (None, alone)]
        said = [unit_inputs(self.features[2], how.length) @ alone.weights]
        said += [model.says(self.features[2]) for model in models if model is not None]
        by_labels, by_sums, both = (r2_score(self.values[2], each[:, 0]) for each in said)
        return by_labels, by_sums, both


@pytest.mark.parametrize("noise", [1.0, 100.0, 10_000.0])
def test_public_values_and_sums_together_are_as_good_as_the_better(noise: float) -> None:
    scores = np.mean([Set(seed).scores(noise, seed) for seed in range(6)], axis=0)
    by_labels, by_sums, both = scores
    assert both > max(by_labels, by_sums) - 0.02
    assert by_labels > 0.8


def test_values_of_rows_unlike_the_records_are_left() -> None:
    _, by_sums, both = Set(1, flipped=True).scores(1.0, 1)
    assert by_sums > 0.85
    assert both == pytest.approx(by_sums, abs=0.01)  # of other noise


def test_values_are_seldom_taken_for_unlike_by_chance() -> None:
    """In none of forty draws of like rows."""
    for seed in range(40):
        drawn = Set(seed)
        how = FitSettings("value", 1, drawn.length, 20.0, 0.25, 5)
        ask = teacher(drawn.codes[0], how, drawn.features[0], seed, drawn.length)
        alone = labelled_values(drawn.features[1], drawn.codes[1], drawn.length)
        model = fit(ask, drawn.features[1], how, alone)
        assert model is not None
        assert model.labels_given > 0, seed


def test_few_values_tell_nothing() -> None:
    drawn = Set(0)
    few = np.where(np.arange(PUBLIC) < 19, drawn.codes[1], -1)
    assert labelled_values(drawn.features[1], few, drawn.length) is None


def test_a_released_regression_is_a_network_that_keeps_lengths(tmp_path) -> None:
    """Rows up to the radius keep theirs; a value can not be told from a direction alone."""
    drawn = Set(2)
    assert drawn.spec.radius > 0
    how = FitSettings("value", 1, drawn.length, 1.0, 0.25, 5)
    model = fit(teacher(drawn.codes[0], how, drawn.features[0], 1, drawn.length),
                drawn.features[1], how)  # fmt: skip
    assert isinstance(model, LinearModel)
    path = tmp_path / "classifier.safetensors"
    path.write_bytes(model.to_bytes(drawn.spec.sha256()))
    stored = stored_layer(path)
    assert stored is not None
    network = as_network(stored, drawn.spec)
    assert network is not None
    rows = np.concatenate([drawn.rows[2], 10 * drawn.rows[2], 0 * drawn.rows[2][:1]])
    said = outputs(network, rows)
    np.testing.assert_allclose(
        np.clip(said, -1, 1), model.says(Embedder(drawn.spec).embed(rows)[0]), atol=0.03
    )
    right = r2_score(drawn.values[2], said[: len(drawn.rows[2]), 0])
    directions = replace(drawn.spec, radius=0.0)
    features = Embedder(directions).embed(drawn.rows[2])[0].astype(float)
    best = np.linalg.lstsq(features, drawn.values[2], rcond=None)[0]
    assert right > r2_score(drawn.values[2], features @ best) + 0.03
