"""Boosted trees as a network are scikit-learn's, of rows with gaps and categories, too; no row of
public ones is told by trees that learned its label."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, StratifiedKFold

from labelwall.student.asking import boosted as boosting
from labelwall.student.asking.boosted import Boosted, boosted
from labelwall.student.asking.features import PublicFeatures, first_extractor
from labelwall.student.linear.tuning import FOLDS
from labelwall.student.public_settings import FirstFeatures
from labelwall.wall import networks
from labelwall.wall.computing import Computing
from labelwall.wall.datasets.columns import Encoding, encoding_of
from labelwall.wall.datasets.data_config import Task
from labelwall.wall.errors import InvalidInput
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.label_kinds import ClassLabels, ValueLabels, half_ranges
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.progress import no_progress

COUNT = 240
TWO, THREE = ClassLabels.of(2), ClassLabels.of(3)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch) -> None:
    """Of the boosting, in a smaller network."""
    monkeypatch.setattr(boosting, "STEPS", 10)
    monkeypatch.setattr(networks, "TREES", (10 * FOLDS, networks.TREES[1]))


def cells(seed: int) -> dict[str, np.ndarray]:
    """Columns of numbers, one of them with gaps, and of words."""
    rng = np.random.default_rng(seed)
    gaps = np.where(rng.random(COUNT) < 0.2, np.nan, rng.normal(size=COUNT))
    words = rng.choice(["red", "green", "blue"], COUNT)
    return {"size": rng.normal(size=COUNT), "age": gaps, "colour": words}


def table(classes: int) -> tuple[Encoding, np.ndarray, np.ndarray]:
    """The encoding of a public table, its rows, and their classes, which follow from all columns.

    The last class has no row.
    """
    public = cells(1)
    encoding = encoding_of(public)
    score = public["size"] + 2 * np.isnan(public["age"]) + (public["colour"] == "red")
    return encoding, encoding.inputs("public", public), np.digitize(score, range(1, classes - 1))


def of(rows: np.ndarray, trees: Boosted, classes: int) -> ExtractorSpec:
    task = Task(ClassLabels(tuple(map(str, range(classes)))), rows.shape[1:])
    return first_extractor(FirstFeatures(features="trees"), task, rows, trees)


@pytest.mark.parametrize("classes", [3, 4])  # two and three of them have rows
def test_a_private_row_gets_the_mean_of_the_folds_decision_functions(classes: int) -> None:
    encoding, rows, labels = table(classes)
    trees = boosted(rows, labels, ClassLabels.of(classes))
    assert trees is not None
    private = encoding.inputs("private", cells(2))
    private = np.concatenate([private, rows, 1e30 * private])
    found = Embedder(of(rows, trees, classes)).features(private)
    np.testing.assert_array_equal(found[:, : rows.shape[1]], private)
    expected, held = np.zeros((len(private), classes)), np.zeros((COUNT, classes))
    own = [1] if classes == 3 else [0, 1, 2]
    for others, fold in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(rows, labels):
        model = HistGradientBoostingClassifier(max_iter=10, max_depth=4, random_state=0)
        model.fit(rows[others], labels[others])
        expected[:, own] += model.decision_function(private).reshape(-1, len(own)) / FOLDS
        held[np.ix_(fold, own)] = model.decision_function(rows[fold]).reshape(-1, len(own))
    unit = (rows.var(axis=0).sum() / held.var(axis=0).sum()) ** 0.5
    np.testing.assert_allclose(found[:, rows.shape[1] :], unit * expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(trees.held, unit * held, rtol=1e-4, atol=1e-5)
    right = held[:, : classes - 1].argmax(axis=1) == labels
    assert trees.right == pytest.approx(right.mean())
    assert trees.right > 0.8
    alone = np.concatenate([Embedder(of(rows, trees, classes)).features(r[None]) for r in rows[:9]])
    np.testing.assert_array_equal(alone, found[COUNT : COUNT + 9])


def test_a_private_row_gets_the_mean_of_the_folds_values() -> None:
    encoding, rows, _ = table(3)
    space = ValueLabels(-2.0, 6.0)
    codes = space.steps(rows[:, 0] + 2 * (rows[:, 1] > 0))
    trees = boosted(rows, codes, space)
    assert trees is not None
    private, values = encoding.inputs("private", cells(2)), half_ranges(codes)
    expected, held = np.zeros(len(private)), np.zeros(COUNT)
    for others, fold in KFold(FOLDS, shuffle=True, random_state=0).split(rows):
        model = HistGradientBoostingRegressor(max_iter=10, max_depth=4, random_state=0)
        model.fit(rows[others], values[others])
        expected += model.predict(private) / FOLDS
        held[fold] = model.predict(rows[fold])
    unit = 0.5 * (rows.var(axis=0).sum() / held.var()) ** 0.5
    spec = first_extractor(
        FirstFeatures(features="trees"), Task(space, rows.shape[1:]), rows, trees
    )
    found = Embedder(spec).features(private)
    np.testing.assert_array_equal(found[:, :-1], private)
    np.testing.assert_allclose(found[:, -1], unit * expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(trees.held[:, 0], unit * held, rtol=1e-4, atol=1e-4)
    assert trees.right == pytest.approx(r2_score(values, held))
    assert trees.right > 0.4
    assert boosted(rows, np.full(COUNT, 7), space) is None  # all values are alike


def test_a_float32_is_above_a_threshold_of_float64_exactly() -> None:
    """Edges lie between neighbouring floats, where a rounded threshold would be the upper one."""
    low = np.float32(1.0)
    rows = np.repeat([low, np.nextafter(low, np.float32(2))], COUNT // 2)[:, np.newaxis]
    trees = boosted(rows, np.repeat([0, 1], COUNT // 2), TWO)
    assert trees is not None
    assert trees.right == 1.0
    said = Embedder(of(rows, trees, 2)).features(rows)[:, 2]
    assert (said[: COUNT // 2] < 0).all()
    assert (said[COUNT // 2 :] > 0).all()


def test_labels_of_classes_with_few_count_as_wrong() -> None:
    rows = np.repeat(np.float32([0, 1]), COUNT // 2)[:, np.newaxis]
    labels = np.where(np.arange(COUNT) < FOLDS - 1, 2, np.repeat([0, 1], COUNT // 2))
    trees = boosted(rows, labels, ClassLabels.of(3))
    assert trees is not None
    assert trees.right == 1 - (FOLDS - 1) / COUNT


def test_trees_learn_nothing_where_labels_are_chance() -> None:
    """By the trees of all folds public rows would seem to be known."""
    _, rows, _ = table(3)
    labels = np.random.default_rng(3).integers(0, 2, COUNT)
    trees = boosted(rows, labels, TWO)
    assert trees is not None
    assert trees.right < 0.6
    spec = of(rows, trees, 2)
    features = PublicFeatures(Computing(), {"public": rows, "test": rows}, no_progress, trees)
    public, test = features.plain(spec), features.plain(spec, "test")
    right = [((plain[:, -1] > 0) == labels).mean() for plain in (public, test)]
    assert right[0] < 0.56
    assert right[1] > 0.62
    unlabelled = np.where(np.arange(COUNT) % 2, labels, -1)
    held = boosted(rows, unlabelled, TWO)
    assert held is not None
    said = Embedder(of(rows, held, 2)).features(rows)
    np.testing.assert_allclose(held.beside(rows)[::2], said[::2], rtol=1e-4, atol=1e-5)
    assert not np.allclose(held.beside(rows)[1::2], said[1::2])


def test_there_are_no_trees_of_few_labels_many_columns_or_images() -> None:
    _, rows, labels = table(3)
    few = np.where(np.arange(COUNT) < boosting.LEAST_ROWS - 1, labels, -1)
    assert boosted(rows, None, THREE) is None
    assert boosted(rows, few, THREE) is None
    assert boosted(rows, np.zeros(COUNT, dtype=np.int64), THREE) is None
    assert boosted(np.tile(rows, (1, 50)), labels, THREE) is None
    assert boosted(np.zeros((COUNT, 8, 8, 1), dtype=np.uint8), labels, THREE) is None
    with pytest.raises(InvalidInput, match="at least 100 labelled public rows"):
        first_extractor(FirstFeatures(features="trees"), Task(ClassLabels(("a", "b")), (3,)), rows)


def test_any_tensors_of_the_right_shape_are_trees_of_a_row_and_others_are_refused() -> None:
    """A private row may not decide whether a forged extractor fails."""
    spec = ExtractorSpec("trees", (3,), 2)
    network = networks.build("trees", input_shape=(3,), num_classes=2)
    for values in network.state_dict().values():
        values.copy_(torch.randn(values.shape) * 1e30)
    forged = replace(spec, weights=networks.to_safetensors(network))
    rows = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    found = Embedder(forged).features(rows)
    assert found.shape == (50, 5)
    one = np.concatenate([Embedder(forged).features(row[None]) for row in rows])
    np.testing.assert_array_equal(found, one)
    larger = networks.Backbone(networks.Trees(2, 10 * FOLDS + 1, 4), 5, 2)
    deeper = networks.Backbone(networks.Trees(2, 10 * FOLDS, 5), 5, 2)
    for other in (larger, deeper):
        with pytest.raises(InvalidInput, match=r"extractor\.weights\[trunk\."):
            Embedder(replace(spec, weights=networks.to_safetensors(other)))
