"""The private score: what noisy counts say, and whose decisions they are of."""

import numpy as np
import pytest

from labelwall.experiment.run.scoring import noisy_shares, score_text
from labelwall.student.train import outputs
from labelwall.teacher.features.embedder import Embedder
from labelwall.wall.matrices import MAX_ENTRY
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import build, decided, to_safetensors


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
    features, finite = Embedder(decided(student)).embed(rows)
    assert finite.all()
    predicted = outputs(student, rows).argmax(axis=1)
    assert np.array_equal(features, MAX_ENTRY * np.eye(3, dtype=np.int8)[predicted])


def test_a_score_that_noise_hides_is_said_to_be_unknown() -> None:
    score = {"right": None, "error": None, "by_class": {}, "epsilon": 0.05}
    assert "unknown" in score_text(score)
    assert score_text(None) == ""
