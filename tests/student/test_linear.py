"""The linear student: its layer reads plain features, and images keep the network below it."""

import numpy as np
import safetensors.torch
import torch

from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool
from labelwall.student.train import BIAS, WEIGHT, on_plain, outputs, statistics, train, with_head
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks import build, load, to_safetensors

CLASSES = 3


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Separable classes in columns of very different scales, one of them constant."""
    rng, labels = np.random.default_rng(seed), np.arange(n) % CLASSES
    x = rng.normal(size=(n, 6)) + 6 * np.eye(CLASSES, 6)[labels]
    x = x * [1e-4, 1.0, 1e4, 1.0, 1.0, 1.0] + [0, 0, 5e5, 0, 0, 0]
    x[:, 5] = 7.0
    return x.astype(np.float32), labels


def trained(public: np.ndarray, labels: np.ndarray, tmp_path) -> tuple[Pool, bytes]:
    scale = statistics(public)
    pool = Pool(public, ClassLabels.of(CLASSES), scale.mean, scale.std)
    config = StudentConfig(backbone="linear", objective="supervised", augment="none", steps=200)
    return pool, train(config, pool, labels, run_dir=tmp_path, seed=1).weights


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
    below = load(network)
    pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).float() / 255
    features = below.features((pixels - 0.5) / 0.25).numpy()
    pool, layer = trained(features, labels, tmp_path)
    student, alone = with_head(network, on_plain(layer, pool)), pool.spec("linear", layer)
    np.testing.assert_allclose(
        outputs(student, images), outputs(alone, features), rtol=1e-2, atol=1e-2
    )
    for name, tensor in load(student).trunk.state_dict().items():
        torch.testing.assert_close(tensor, below.trunk.state_dict()[name])
