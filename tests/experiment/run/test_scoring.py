"""The private score: what noisy counts say, and whose decisions they are of."""

import math

import numpy as np
import pytest

from labelwall.experiment.run.scoring import decided, noisy_shares, promised, score_text
from labelwall.student.train import outputs
from labelwall.teacher.features.embedder import Embedder
from labelwall.wall.matrices import MAX_ENTRY
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import build, to_safetensors


def test_the_error_is_that_of_the_noise() -> None:
    """Against draws; counts that do not show above the noise tell nothing."""
    rng, noise = np.random.default_rng(0), 18.0
    drawn = [
        noisy_shares(*(np.array([700.0, 300.0]) + rng.normal(0, noise, 2)), noise)[0]
        for _ in range(4000)
    ]
    share, error = noisy_shares(np.array(700.0), np.array(300.0), noise)
    assert float(share) == pytest.approx(0.7)
    assert np.std(drawn) == pytest.approx(float(error), rel=0.05)
    assert np.isinf(noisy_shares(np.array(30.0), np.array(10.0), noise)[1])


@pytest.mark.parametrize(("name", "shape"), [("mlp", (5,)), ("small_cnn", (16, 16, 1))])
def test_an_extractor_of_decisions_says_what_the_student_predicts(
    name: str, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(1)
    images = len(shape) == 3
    rows = rng.integers(0, 256, (40, *shape)).astype(np.uint8 if images else np.float32)
    network = build(name, input_shape=shape, num_classes=3)
    mean, std = ((0.5,), (0.2,)) if images else ((), ())
    student = ExtractorSpec(name, shape, 3, to_safetensors(network), mean, std)
    features, finite = Embedder(decided(student, "class")).embed(rows)
    assert finite.all()
    predicted = outputs(student, rows).argmax(axis=1)
    assert np.array_equal(features, MAX_ENTRY * np.eye(3, dtype=np.int8)[predicted])


@pytest.mark.parametrize("kind", ["attributes", "value"])
def test_decisions_of_attributes_and_values_are_those_of_the_student(kind: str) -> None:
    outputs_, labels = (9, "attributes") if kind == "attributes" else (1, "value")
    rows = np.random.default_rng(2).normal(size=(60, 4)).astype(np.float32)
    network = build("mlp", input_shape=(4,), num_classes=outputs_)
    network.head.weight.data *= 9
    student = ExtractorSpec("mlp", (4,), outputs_, to_safetensors(network))
    features, _ = Embedder(decided(student, labels)).embed(rows)
    said = outputs(student, rows)
    if kind == "attributes":
        assert np.array_equal(features > 0, said > 0)
        assert (features != 0).all()
    else:
        assert np.array_equal(features[:, 0], np.rint(63 * said[:, 0].clip(-1, 1)))


def test_the_promise_is_the_better_of_both_directions() -> None:
    assert promised(0.97, 1.0, 0.0) == pytest.approx(1 - math.e * 0.03)
    assert promised(0.4, 1.0, 0.0) == pytest.approx(0.4 / math.e)
    assert promised(0.5, math.inf, 1e-5) < 1e-99


def test_a_score_that_noise_hides_is_said_to_be_unknown() -> None:
    score = {"right": None, "error": None, "by_class": {}, "epsilon": 0.05}
    assert "unknown" in score_text(score)
    assert score_text(None) == ""


def test_a_score_says_its_noise_and_how_optimistic_it_may_be() -> None:
    score = {"right": 0.784, "error": 0.011, "least": 0.7, "by_class": {}, "epsilon": 0.05}
    assert "78.4% +- 1.1 right, at most 8.4 points more" in score_text(score)
    assert "RMSE 0.31 +- 0.01, on fresh ones at most 0.4 " in score_text(
        score | {"rmse": [0.31, 0.01, 0.4]}
    )
