"""Linear models from sums: against regressions of the same rows, and with an absurd teacher."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, Ridge

from labelwall.student.asking.features import extractor_of_round
from labelwall.student.linear import descent, fit_classes
from labelwall.student.linear.fit_classes import gaussian_classes
from labelwall.student.linear.linear_model import LinearModel, fit, with_neighbours
from labelwall.student.linear.measure import FitSettings, Measurements, unit_inputs
from labelwall.student.linear.moments import class_probabilities
from labelwall.student.linear.stored import after_features, as_network, stored_layer
from labelwall.student.linear.tuning import NEIGHBOURS
from labelwall.student.linear.tuning import NEIGHBOURS_SHARE as SHARE
from labelwall.student.student_model import outputs
from labelwall.teacher.mechanisms.gradient import gradient_sums
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.features.embedder import Embedder, unit_length
from labelwall.wall.label_kinds import STEPS, pack
from labelwall.wall.matrices import CLIP, COUNT, SENSITIVITY, Weights, bias, residual_unit
from labelwall.wall.messages import ABSTAINED, ExtractorSpec, Outcome
from labelwall.wall.networks import build, to_safetensors
from tests.experiment import tiny

N, LENGTH = 3000, 63.0
RNG = np.random.default_rng(0)
FEATURES = tiny.integers(RNG.normal(size=(N, 4)))
UNITS = FEATURES / LENGTH


CLIPS = {"class": 0.1, "attributes": 0.1, "value": 0.25}


def settings(
    labels: str, outputs: int, noise: float, steps: int, balanced: bool = False
) -> FitSettings:
    return FitSettings(labels, outputs, LENGTH, noise, CLIPS[labels], steps, balanced=balanced)


def teacher(
    codes: np.ndarray,
    how: FitSettings,
    features: np.ndarray = FEATURES,
    seed: int = 1,
    length: float = LENGTH,
) -> Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Sums by the teacher's code, with the noise of the settings."""
    rng, index = np.random.default_rng(seed), ExactIndex(features, np.arange(len(features)))

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        Weights(weights)
        unit = residual_unit(weights, how.clip, length, how.labels)
        asked = weights[np.newaxis], (unit,), bias(length), how.labels, 1
        total = gradient_sums(*asked, index, codes)[0]
        noise = rng.normal(0, how.noise_multiplier * SENSITIVITY, total.shape)
        return weights, total + np.rint(noise).astype(np.int64)

    return ask


def fitted(
    labels: str,
    outputs: int,
    codes: np.ndarray,
    steps: int,
    noise: float,
    features: np.ndarray = FEATURES,
    seed: int = 1,
) -> LinearModel:
    how = settings(labels, outputs, noise, steps)
    model = fit(teacher(codes, how, features, seed), features, how)
    assert model is not None
    return model


def attributes() -> np.ndarray:
    logits = 4 * UNITS @ RNG.normal(size=(4, 3)) + np.array([0.0, -1.0, 2.0])
    return (RNG.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.int64)


def values() -> np.ndarray:
    """In half ranges: linear with an offset, and some noise."""
    linear = UNITS @ np.array([0.3, -0.2, 0.1, 0.05]) - 0.2
    return np.clip(linear + RNG.normal(0, 0.05, N), -1, 1)


def steps_of(values: np.ndarray) -> np.ndarray:
    return np.rint((values + 1) / 2 * STEPS).astype(np.int64)


def far_clusters() -> tuple[np.ndarray, np.ndarray]:
    """(features, labels) of two far clusters in 20 dimensions, which are the classes."""
    rng, labels = np.random.default_rng(4), np.arange(N) % 2
    x = rng.normal(size=(N, 20)) + np.outer(2 * labels - 1, 2.5 * np.eye(20)[0])
    return tiny.integers(x), labels


def right_share(features: np.ndarray, labels: np.ndarray, steps: int, noise: float) -> float:
    """Of the rows of a model of two classes, over five seeds of the noise."""
    models = [fitted("class", 2, labels, steps, noise, features, seed) for seed in range(5)]
    return float(np.mean([(m.says(features)[:, 1] > 0.5) == labels for m in models]))


@pytest.mark.parametrize("noise", [0.001, 5.0, 30.0])
def test_attributes_are_those_of_logistic_regressions(noise: float) -> None:
    """As often right, and as sure as they are right."""
    bits = attributes()
    model = fitted("attributes", 3, pack(bits), 30, noise)
    predicted = model.says(FEATURES)
    oracles = [LogisticRegression(C=1e3, max_iter=2000).fit(UNITS, b) for b in bits.T]
    best = [oracle.score(UNITS, b) for oracle, b in zip(oracles, bits.T, strict=True)]
    assert ((predicted > 0.5) == bits).mean() > np.mean(best) - 0.01
    chances = np.stack([oracle.predict_proba(UNITS)[:, 1] for oracle in oracles], axis=1)
    assert np.abs(predicted - chances).mean() < 0.05
    assert model.certainty(predicted).mean() == pytest.approx(np.mean(best), abs=0.03)


def test_attributes_have_factors_of_their_own() -> None:
    """A clear attribute and a vague one: probabilities of both are near the truth."""
    bits = (RNG.random((N, 2)) < 1 / (1 + np.exp(-UNITS[:, :1] * [2.0, 12.0]))).astype(np.int64)
    model = fitted("attributes", 2, pack(bits), 20, 1.0)
    predicted = model.says(FEATURES)
    for column in range(2):
        oracle = LogisticRegression(C=1e3, max_iter=2000).fit(UNITS, bits[:, column])
        assert np.abs(predicted[:, column] - oracle.predict_proba(UNITS)[:, 1]).mean() < 0.05
    assert np.abs(model.weights[0, 1]) > 2 * np.abs(model.weights[0, 0])


@pytest.mark.parametrize(("noise", "tolerance"), [(1e-6, 0.01), (10.0, 0.03)])
def test_values_are_those_of_a_linear_regression(noise: float, tolerance: float) -> None:
    true = values()
    model = fitted("value", 1, steps_of(true), 2, noise)
    predicted = model.says(FEATURES)[:, 0]
    oracle = Ridge(1e-6).fit(UNITS, true).predict(UNITS)
    assert np.sqrt(((predicted - oracle) ** 2).mean()) < tolerance
    labels, outcomes = model.to_labels(predicted[:, np.newaxis], 0.0)
    assert np.abs(labels - steps_of(predicted)).max() <= 1
    assert (outcomes == Outcome.ANSWERED).all()
    assert model.explained is not None
    variance, deviation = model.explained
    assert abs(variance - oracle.var()) < 4 * np.hypot(deviation, variance * np.sqrt(2 / N))


def test_noise_alone_gives_the_middle_of_the_range() -> None:
    model = fitted("value", 1, steps_of(values()), 2, 1e5)
    assert np.abs(model.says(FEATURES)).mean() < 0.2


def test_absurd_sums_give_weights_in_range() -> None:
    extremes = (10**6 * CLIP, -(10**6) * CLIP, 0)

    def absurd(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        Weights(weights)
        return weights, np.full(weights.size + 1, extremes[step - 1])

    for labels, count in (("value", 1), ("attributes", 3), ("class", 3)):
        model = fit(absurd, FEATURES, settings(labels, count, 1.0, 3))
        assert model is not None
        assert np.isfinite(model.says(FEATURES)).all()


def test_many_classes_and_steps_look_at_fewer_public_rows(monkeypatch) -> None:
    """What the factor of logits is found on is bounded in memory."""
    monkeypatch.setattr(descent, "MAX_ENTRIES", 2000)
    labels = (UNITS[:, 0] > 0).astype(np.int64)
    model = fitted("class", 2, labels, 20, 1.0)
    assert ((model.says(FEATURES)[:, 1] > 0.5) == labels).mean() > 0.95
    how = settings("class", 2, 1.0, 20)
    path = descent.descend(
        Measurements(teacher(labels, how), how), unit_inputs(FEATURES, how.length), how
    )
    assert path is not None
    assert len(path.inputs) == 2000 // (2 * len(path.asked))


def test_public_rows_refine_classes_that_noise_hides(monkeypatch) -> None:
    """Public rows show the border, sums hardly do."""
    features, labels = far_clusters()
    refined = right_share(features, labels, 10, 1000.0)
    monkeypatch.setattr(fit_classes, "REFINEMENTS", 0)
    assert refined > right_share(features, labels, 10, 1000.0) + 0.02


def test_public_rows_do_not_overrule_what_sums_tell_clearly() -> None:
    """Classes are halves of one cluster, across the axis of its two bumps."""
    rng = np.random.default_rng(5)
    bump = np.arange(N) % 2
    x = rng.normal(size=(N, 4)) + np.outer(2 * bump - 1, [2.5, 0.0, 0.0, 0.0])
    features = tiny.integers(x)
    labels = (features[:, 1] > 0).astype(np.int64)
    model = fitted("class", 2, labels, 20, 5.0, features)
    assert ((model.says(features)[:, 1] > 0.5) == labels).mean() > 0.95


def test_gaussian_classes_are_those_of_linear_discriminants() -> None:
    labels = RNG.integers(0, 3, N)
    x = RNG.normal(size=(N, 4)) + 1.5 * np.eye(4)[labels]
    inputs = np.column_stack([x, np.full(N, 0.25)])
    oracle = LinearDiscriminantAnalysis(solver="lsqr").fit(x, labels)
    logits = inputs @ gaussian_classes(inputs, np.eye(3)[labels])
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(chances, oracle.predict_proba(x), atol=1e-3)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9, 30])
def test_truth_misses_the_gradients_by_their_noise(steps: int) -> None:
    """Squared, over what is expected: what decides whether public rows may refine a classifier."""
    labels = (UNITS[:, 0] > 0).astype(np.int64)
    how = settings("class", 2, 30.0, steps)
    path = descent.descend(
        Measurements(teacher(labels, how), how), unit_inputs(FEATURES, how.length), how
    )
    assert path is not None
    truth = np.eye(2)[labels]
    residuals = np.zeros((N, 2))
    for step in path.asked:
        away = class_probabilities(path.inputs @ step.weights) - truth
        lengths = np.linalg.norm(away, axis=1, keepdims=True)
        residuals += away * np.minimum(1, step.clip / np.maximum(lengths, 1e-9)) / len(path.asked)
    missed = ((path.inputs.T @ residuals / N - path.gradient) ** 2).sum()
    assert 0.05 < missed / (path.deviation**2 * path.gradient.size) < 2.5


@pytest.mark.parametrize("noise", [0.01, 300.0])
def test_one_sum_gives_gaussian_classes(noise: float) -> None:
    """The noise of one sum alone would hide the border."""
    assert right_share(*far_clusters(), 1, noise) > 0.99


@pytest.mark.parametrize("labels", ["class", "value"])
def test_a_count_within_its_noise_does_not_tell_records_from_none(labels: str) -> None:
    codes = np.zeros(N, dtype=np.int64)
    for noise, some in ((1.0, True), (3e4, False)):
        assert fitted(labels, 1 + (labels == "class"), codes, 2, noise).some_records == some


def test_what_is_within_the_margin_is_abstained() -> None:
    attributes = LinearModel("attributes", LENGTH, np.zeros((5, 3)))
    chances = np.array([[0.9, 0.52, 0.1], [0.48, 0.5, 0.51]], dtype=np.float32)
    labels, outcomes = attributes.to_labels(chances, 0.1)
    assert labels.tolist() == [[1, ABSTAINED, 0], [ABSTAINED] * 3]
    assert outcomes.tolist() == [Outcome.ANSWERED, Outcome.ABSTAINED]
    chances = np.array([[0.5, 0.3, 0.2], [0.4, 0.35, 0.25], [0.5, 0.5, 0.0]], dtype=np.float32)
    classes = LinearModel("class", LENGTH, np.zeros((5, 3)))
    labels, outcomes = classes.to_labels(chances, 0.1)
    assert labels.tolist() == [0, ABSTAINED, ABSTAINED]
    assert outcomes.tolist() == [Outcome.ANSWERED, Outcome.ABSTAINED, Outcome.ABSTAINED]
    assert classes.to_labels(chances, 0.0)[0].tolist() == [0, 0, ABSTAINED]


def test_no_margin_takes_all_labels_of_a_class() -> None:
    doubted = 0.7 - np.arange(10) / 100  # one class leads by 0.31 to 0.4, the other by 0.98
    chances = np.concatenate([np.c_[doubted, 1 - doubted], np.tile([[0.01, 0.99]], (10, 1))])
    labels, _ = LinearModel("class", LENGTH, np.zeros((5, 2))).to_labels(chances, 0.9)
    assert labels.tolist() == [0] * 5 + [ABSTAINED] * 5 + [1] * 10


def test_a_model_of_exact_sums_fits_its_rows() -> None:
    """The sums by floats, without the teacher's code."""
    x, labels = tiny.rows(300, 3)
    features = tiny.integers(x)
    inputs = np.pad(features.astype(float), ((0, 0), (0, 1)), constant_values=16)

    def exact(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        unit = residual_unit(weights, 0.1, 63.0)
        residuals = softmax(inputs @ weights / 2**16, axis=1) - np.eye(tiny.CLASSES)[labels]
        lengths = np.linalg.norm(residuals, axis=1, keepdims=True)
        residuals *= np.minimum(1, 0.1 / np.maximum(lengths, 1e-9))
        if not weights.any():  # the first step: see residual_unit
            residuals *= lengths / 0.1
        sums = np.rint(unit * (inputs.T @ residuals))
        return weights, np.append(sums, 300 * COUNT).astype(np.int64)

    model = fit(exact, features, settings("class", tiny.CLASSES, 0.001, 30))
    assert model is not None
    oracle = LogisticRegression(C=1e3, max_iter=2000).fit(features / 63, labels)
    likely = model.says(features)
    assert (likely.argmax(axis=1) == oracle.predict(features / 63)).mean() > 0.96
    assert np.abs(likely - oracle.predict_proba(features / 63)).mean() < 0.03


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-63, 64, (count, 5)).astype(np.int8)


def says(features: np.ndarray) -> np.ndarray:
    scores = np.exp(features[:, :3] / 20.0)
    return np.asarray(scores / scores.sum(axis=1, keepdims=True), np.float32)


@pytest.mark.parametrize("count", [60, 3])
def test_a_row_is_mixed_with_the_mean_of_its_nearest_public_rows(count: int) -> None:
    """Against all squared distances, equal ones by their number; few public rows are all near."""
    public, asked = rows(count, 0), rows(20, 1)
    away = asked.astype(int)[:, np.newaxis] - public.astype(int)
    nearest = np.argsort((away**2).sum(axis=2), axis=1, kind="stable")[:, :NEIGHBOURS]
    expected = (1 - SHARE) * says(asked) + SHARE * says(public)[nearest].mean(axis=1)
    mixed = with_neighbours(says, public)(asked)
    np.testing.assert_allclose(mixed, expected, atol=1e-6)
    assert mixed.dtype == np.float32
    assert np.array_equal(mixed[7:9], with_neighbours(says, public)(asked[7:9]))


@pytest.mark.parametrize(("records", "noise"), [(6_000, 3.0), (600, 3.0), (60, 3.0)])
def test_an_estimate_covers_how_many_are_right_or_says_nothing(records: int, noise: float) -> None:
    """By gradients that the weights were not fitted to: over fifteen draws, within two deviations
    of the noise where it is known, while probabilities alone would be far too sure.
    """
    covered, sure, known = 0, [], 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        middles = 1.2 * np.eye(4, 16)
        sides = [(labels := rng.integers(0, 4, n), middles[labels]) for n in (records, 800, 2_000)]
        rows = [(labels, x + rng.normal(size=x.shape)) for labels, x in sides]
        features = [tiny.integers(x) for _, x in rows]
        how = settings("class", 4, noise * 20**0.5, 20)
        model = fit(teacher(rows[0][0], how, features[0], seed), features[1], how)
        assert model is not None
        predicted = model.says(features[2])
        right = float((predicted.argmax(axis=1) == rows[2][0]).mean())
        sure.append(float(predicted.max(axis=1).mean()) - right)
        if model.doubt is None:
            continue
        best, low, high = (float(model.certainty(predicted, f).mean()) for f in model.doubt)
        known += high - low < 0.2
        error = max(high - best, best - low, 0.025)
        covered += (abs(best - right) < 2 * error) or high - low >= 0.2
        assert model.records[0] == pytest.approx(records, abs=5 * model.records[1])
    if records >= 600:
        assert known > 12
    else:
        assert max(sure) > 0.15
    assert covered >= 0.8 * max(known, 1)


@pytest.mark.parametrize(
    ("backbone", "kept"),
    [("raw", None), ("raw", 5), ("small_cnn", None), ("small_cnn", 5), ("hog", 5)],
)
def test_a_released_classifier_is_a_network_that_says_the_same(tmp_path, backbone, kept) -> None:
    rng, shape = np.random.default_rng(0), (12,) if backbone == "raw" else (12, 12, 1)
    spec, rows = ExtractorSpec("raw", shape, 3), rng.normal(1, 1, (200, 12)).astype(np.float32)
    if backbone == "small_cnn":
        network = to_safetensors(build(backbone, input_shape=shape, num_classes=3))
        spec = ExtractorSpec(backbone, shape, 3, network, (0.4,), (0.3,))
    if backbone != "raw":
        spec = replace(spec, backbone=backbone)
        rows = rng.integers(0, 256, (200, *shape), dtype=np.uint8)
    if kept is not None:
        form = PrivateLinear(axes=kept, noise_multiplier=1.0).query_form
        spec = extractor_of_round(spec, form, lambda s: Embedder(s).features(rows))
    features, _ = Embedder(spec).embed(rows)
    weights = rng.normal(0, 0.05, (features.shape[1] + 1, 3))
    model = LinearModel("class", unit_length(spec, features.shape[1]), weights)
    path = tmp_path / "linear.safetensors"
    path.write_bytes(model.to_bytes(spec.sha256()))
    stored = stored_layer(path)
    assert stored is not None
    whole = as_network(stored, spec)
    assert whole is not None
    said = softmax(outputs(whole, rows), axis=1)
    np.testing.assert_allclose(said, model.says(features), atol=0.05)  # features are rounded
    assert (said.argmax(axis=1) == model.says(features).argmax(axis=1)).mean() > 0.95
    plain = Embedder(spec).features(rows).astype(np.float32)
    again = softmax(outputs(after_features(whole), plain), axis=1)
    np.testing.assert_allclose(again, said, atol=1e-5)
    assert as_network(stored, replace(spec, backbone="hog", weights=b"", axes=b"")) is None
    assert as_network(stored, whole) is None
