"""The student with an output for each attribute: binary losses, learning from partly said labels,
pruning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from labelwall.student import losses
from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool, Steps
from labelwall.student.drop_doubtful import drop_doubtful
from labelwall.student.export import export
from labelwall.student.train import check, predict, train
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.attributes import AttributeLabels

ATTRIBUTES = 4
CONFIG = StudentConfig(
    backbone="mlp",
    steps=200,
    batch_labelled=16,
    batch_unlabelled=24,
    doubtful_folds=3,
    doubtful_steps=100,
)


def _rows(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors in which each attribute shifts a coordinate of its own."""
    rng = np.random.default_rng(seed)
    bits = (rng.random((n, ATTRIBUTES)) < [0.5, 0.3, 0.7, 0.2]).astype(np.int64)
    x = rng.normal(size=(n, 6)) * 0.4
    x[:, :ATTRIBUTES] += 2 * bits - 1
    return x.astype(np.float32), bits


PUBLIC_X, PUBLIC_BITS = _rows(0, 240)
TEST_X, TEST_BITS = _rows(1, 200)
SPACE = AttributeLabels.of(ATTRIBUTES)
POOL = Pool(PUBLIC_X, SPACE)
LABELS = np.where(
    (np.arange(240)[:, None] < 80) & (np.random.default_rng(2).random((240, ATTRIBUTES)) < 0.8),
    PUBLIC_BITS,
    -1,
)


def test_pairs_make_cross_entropy_binary() -> None:
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[1, 0, 1]] * 7)
    ours = F.cross_entropy(losses.pairs(z), y.flatten(), reduction="none")
    torch.testing.assert_close(
        ours, F.binary_cross_entropy_with_logits(z, y.float(), reduction="none").flatten()
    )
    torch.testing.assert_close(losses.pairs(z).softmax(dim=1)[:, 1], torch.sigmoid(z).flatten())
    torch.testing.assert_close(
        losses.entropy(losses.pairs(z)), torch.distributions.Bernoulli(logits=z).entropy().mean()
    )


def test_consistency_is_the_mean_over_attributes() -> None:
    """The KL divergence of Bernoulli laws, where the clean one is sure enough."""
    g = torch.Generator().manual_seed(1)
    clean, strong = 3 * torch.randn(9, 3, generator=g), torch.randn(9, 3, generator=g)
    target, other = (torch.distributions.Bernoulli(logits=z) for z in (clean / 0.5, strong))
    sure = (torch.sigmoid(clean) - 0.5).abs() > 0.3
    expected = (torch.distributions.kl_divergence(target, other) * sure).mean()
    found = losses.uda_consistency(
        losses.pairs(clean), losses.pairs(strong), temperature=0.5, confidence=0.8
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("objective", "loss"),
    [
        ("supervised", "gce"),
        ("vat", "cross_entropy"),
        ("uda", "gce"),
        pytest.param("supervised", "cross_entropy", marks=pytest.mark.slow),
        pytest.param("vat", "gce", marks=pytest.mark.slow),
        pytest.param("uda", "cross_entropy", marks=pytest.mark.slow),
    ],
)
def test_every_objective_learns_from_partly_said_labels(
    objective: str, loss: str, tmp_path: Path
) -> None:
    config = replace(CONFIG, objective=objective, loss=loss)
    trained = train(config, POOL, LABELS, run_dir=tmp_path, seed=4, test_x=TEST_X, test_y=TEST_BITS)
    found = predict(export(POOL, "mlp", trained.weights), TEST_X, SPACE)
    assert found.shape == TEST_BITS.shape
    accuracy = float((found == TEST_BITS).mean())
    assert accuracy > 0.8  # 70% are right by saying what is more frequent
    assert trained.history[-1]["accuracy/test"] == pytest.approx(accuracy, abs=1e-6)


def test_a_batch_holds_rows_with_a_label_for_some_attribute() -> None:
    for x, y, everyone in Steps(POOL, LABELS, CONFIG, seed=0, first=0, count=5):
        assert (y.shape, x.shape, everyone.shape) == ((16, ATTRIBUTES), (16, 6), (24, 6))
        assert (y >= 0).any(dim=1).all()
        assert (y == -1).any()


def test_doubtful_attributes_go_one_by_one() -> None:
    labels = LABELS.copy()
    wrong = np.argwhere(labels >= 0)[::20]
    labels[tuple(wrong.T)] = 1 - labels[tuple(wrong.T)]
    kept = drop_doubtful(CONFIG, POOL, labels, seed=3).labels
    assert (kept[tuple(wrong.T)] == -1).mean() > 0.5
    right = (labels >= 0) & (labels == PUBLIC_BITS)
    assert (kept == labels)[right].mean() > 0.85
    assert ((kept == labels) | (kept == -1)).all()


def test_a_class_prior_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"student\.class_prior"):
        check(replace(CONFIG, class_prior="uniform"), (6,), SPACE)
