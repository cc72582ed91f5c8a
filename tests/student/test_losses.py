"""Losses against numpy, finite differences and papers; linear students read plain features."""

import math

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from scipy.special import softmax

from labelwall.student import losses
from labelwall.student.batches import Lesson, Pool
from labelwall.student.student_config import StudentConfig
from labelwall.student.student_model import outputs
from labelwall.student.train import BIAS, WEIGHT, on_plain, standardising, train, with_head
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import build, load_network, to_safetensors
from labelwall.wall.preprocessing import Preprocessing


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.tensor(np.random.default_rng(3).normal(0, 2, (6, 4)), dtype=torch.float32)


LABELS = torch.tensor([0, 1, 2, 3, 0, 1])


def test_gce_is_the_papers_formula(logits: torch.Tensor) -> None:
    p = softmax(logits.double().numpy(), axis=1)[np.arange(6), LABELS.numpy()]
    np.testing.assert_allclose(
        losses.generalised_cross_entropy(logits, LABELS, 0.7), (1 - p**0.7) / 0.7, rtol=1e-5
    )


def test_uda_is_a_masked_divergence_from_the_sharpened_prediction(logits: torch.Tensor) -> None:
    clean, augmented = logits, logits.flip(0)
    p, q, sure = (
        softmax(rows.double().numpy(), axis=1) for rows in (clean / 0.5, augmented, clean)
    )
    keep = sure.max(axis=1) > 0.8
    assert 0 < keep.sum() < 6  # else the mask is not tested
    expected = ((p * (np.log(p) - np.log(q))).sum(axis=1) * keep).mean()
    assert losses.uda_consistency(clean, augmented, 0.5, 0.8).item() == pytest.approx(
        expected, rel=1e-5
    )


def test_imbalance_is_nothing_for_equally_frequent_classes_and_most_for_one() -> None:
    each_once = 100 * torch.eye(4)
    assert losses.imbalance(each_once).item() == pytest.approx(0, abs=1e-6)
    # Uncertain, and balanced all the same
    assert losses.imbalance(torch.zeros(3, 4)).item() == pytest.approx(0, abs=1e-6)
    assert losses.imbalance(each_once[[0, 0, 0]]).item() == pytest.approx(math.log(4), rel=1e-5)
    half = losses.imbalance(each_once[[0, 0, 1, 1]]).item()
    assert half == pytest.approx(math.log(2), rel=1e-5)


def test_virtual_adversarial_direction_is_the_dominant_eigenvector() -> None:
    """For logits W x at x = 0 the divergence is quadratic with Hessian W' C W."""
    weight = torch.tensor(np.random.default_rng(0).normal(size=(3, 5)), dtype=torch.float64)
    x = torch.zeros(1, 5, dtype=torch.float64)
    seen = []

    def classify(inputs: torch.Tensor) -> torch.Tensor:
        seen.append(inputs.detach().clone())
        return inputs @ weight.T

    directions = torch.randn(1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    arguments = {"epsilon": 0.3, "xi": 1e-3, "iterations": 30, "directions": directions}
    value = losses.virtual_adversarial_loss(classify, x, classify(x), **arguments)
    covariance = np.eye(3) / 3 - np.full((3, 3), 1 / 9)
    eigenvalues, vectors = np.linalg.eigh(weight.numpy().T @ covariance @ weight.numpy())
    direction = seen[-1][0].numpy()
    assert np.linalg.norm(direction) == pytest.approx(0.3, rel=1e-9)
    assert abs(direction @ vectors[:, -1]) == pytest.approx(0.3, rel=1e-4)
    assert value.item() == pytest.approx(0.5 * eigenvalues[-1] * 0.3**2, rel=0.1)


def test_a_truncated_label_no_longer_pulls() -> None:
    """Zhang and Sabuncu 2018, equation 9: constant below the truncation, continuous above it."""
    # Label 1: probabilities 0.047 and 0.73
    logits = torch.tensor([[3.0, 0.0], [0.0, 1.0]], requires_grad=True)
    labels = torch.tensor([1, 1])
    truncated = losses.generalised_cross_entropy(logits, labels, 0.7, 0.3)
    assert truncated[0].item() == pytest.approx((1 - 0.3**0.7) / 0.7, rel=1e-6)
    assert truncated[1] == losses.generalised_cross_entropy(logits, labels, 0.7)[1]
    (gradient,) = torch.autograd.grad(truncated.sum(), logits)
    assert gradient[0].abs().sum() == 0
    assert gradient[1].abs().sum() > 0


def test_alignment_equalises_the_share_of_classes() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4000, 3) + torch.tensor([2.0, 0.0, -1.0])
    share = logits.softmax(dim=1).mean(dim=0)
    before = logits.softmax(dim=1).mean(dim=0)
    after = losses.align(logits, share).softmax(dim=1).mean(dim=0)
    assert (after - 1 / 3).abs().max() < 0.5 * (before - 1 / 3).abs().max()
    p = logits.softmax(dim=1) / share
    torch.testing.assert_close(
        losses.align(logits, share).softmax(dim=1), p / p.sum(dim=1, keepdim=True)
    )
    torch.testing.assert_close(losses.align(logits, torch.full((3,), 1 / 3)), logits)


def test_pairs_make_cross_entropy_binary() -> None:
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[1, 0, 1]] * 7)
    torch.testing.assert_close(
        F.cross_entropy(losses.pairs(z), y.flatten(), reduction="none"),
        F.binary_cross_entropy_with_logits(z, y.float(), reduction="none").flatten(),
    )
    torch.testing.assert_close(losses.pairs(z).softmax(dim=1)[:, 1], torch.sigmoid(z).flatten())
    torch.testing.assert_close(
        losses.entropy(losses.pairs(z)), torch.distributions.Bernoulli(logits=z).entropy().mean()
    )


CLASSES = 3


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Separable classes in columns of very different scales, one of them constant."""
    rng, labels = np.random.default_rng(seed), np.arange(n) % CLASSES
    x = rng.normal(size=(n, 6)) + 6 * np.eye(CLASSES, 6)[labels]
    x = x * [1e-4, 1.0, 1e4, 1.0, 1.0, 1.0] + [0, 0, 5e5, 0, 0, 0]
    x[:, 5] = 7.0
    return x.astype(np.float32), labels


def trained(public: np.ndarray, labels: np.ndarray, tmp_path) -> tuple[Pool, bytes]:
    scale = Preprocessing.of_public(public)
    pool = Pool(public, ClassLabels.of(CLASSES), scale.mean, scale.std)
    config = StudentConfig(backbone="linear", objective="supervised", augment="none", steps=200)
    return pool, train(config, Lesson(pool=pool, labels=labels), run_dir=tmp_path, seed=1)


def test_it_learns_and_means_the_same_on_plain_rows(tmp_path) -> None:
    (public, labels), (test, truth) = rows(300, 1), rows(120, 2)
    pool, weights = trained(public, labels, tmp_path)
    scaled = outputs(pool.spec("linear", weights), test)
    assert (scaled.argmax(axis=1) == truth).mean() > 0.9
    layer = safetensors.torch.load(on_plain(weights, pool))
    plain = test @ layer[WEIGHT].numpy().T + layer[BIAS].numpy()
    np.testing.assert_allclose(plain, scaled, rtol=1e-2, atol=0.2)
    assert abs(layer[WEIGHT][:, 5]).max() < 1e-25  # a constant feature says nothing


def test_a_network_of_images_gets_the_layer_and_stays(tmp_path) -> None:
    shape, labels = (12, 12, 1), np.arange(60) % CLASSES
    images = np.random.default_rng(3).integers(0, 256, (60, *shape), dtype=np.uint8)
    torch.manual_seed(0)
    weights = to_safetensors(build("small_cnn", input_shape=shape, num_classes=CLASSES))
    network = ExtractorSpec("small_cnn", shape, CLASSES, weights, (0.5,), (0.25,))
    below = load_network(network)
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).float() / 255
    features = below.features((pixels - 0.5) / 0.25).numpy()
    pool, layer = trained(features, labels, tmp_path)
    student, alone = with_head(network, on_plain(layer, pool)), pool.spec("linear", layer)
    np.testing.assert_allclose(
        outputs(student, images), outputs(alone, features), rtol=1e-2, atol=1e-2
    )
    for name, tensor in load_network(student).trunk.state_dict().items():
        torch.testing.assert_close(tensor, below.trunk.state_dict()[name])


def test_columns_in_units_of_their_own_are_standardised_and_small_vectors_stay() -> None:
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=99) * 1e4 + 3e5, rng.normal(size=99), np.full(99, 5)])
    own = rows.astype(np.float32)
    scaled = standardising("mlp", own, False)(own)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(scaled.std(axis=0, correction=0), [1, 1, 0], atol=1e-3)
    assert standardising("mlp", own / 1e6, False) == Preprocessing()
    assert standardising("mlp", own, True) == Preprocessing()  # a table's
    assert standardising("mlp", np.full((2, 5000), 99, np.float32), False) == Preprocessing()
    assert standardising("linear", own / 1e6, True) == Preprocessing.of_public(own / 1e6)
    images = rng.integers(0, 256, (9, 4, 4, 3), dtype=np.uint8)
    assert len(standardising("small_cnn", images, False).mean) == 3


def test_large_numbers_are_standardised_exactly_and_those_beyond_measure_left_out() -> None:
    """Sums of float32 would take a constant for a column, and overflow at a fill value."""
    fill = np.where(np.arange(400) % 20, 1.0, 1e20)
    columns = [np.full(400, 1234567.0), np.full(400, 0.1), fill, np.full(400, 1e35)]
    columns.append(np.arange(400.0) + 1e7)
    rows = np.column_stack(columns).astype(np.float32)
    scaled = Preprocessing.of_public(rows)(rows).numpy()
    np.testing.assert_allclose(scaled.std(axis=0), [0, 0, 1, 0, 1], atol=1e-3)
    assert np.isfinite(scaled).all()
