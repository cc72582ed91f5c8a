"""Networks by name: published shapes, one row at a time in eval mode, and nothing but tensors
accepted."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import safetensors.torch
import torch

from labelwall.wall import networks as backbones
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.preprocessing import Preprocessing

IMAGE, CLASSES = (28, 28, 1), 10
MEAN, STD = (0.13,), (0.31,)
NAMES = ["small_cnn", "mnist_cvpr20", "svhn_cvpr20", "cifar_conv3", "timm/resnet18"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Weights and inputs are the same in every run, whichever tests came before."""
    torch.manual_seed(0)


def _spec(
    name: str = "small_cnn", shape: tuple[int, ...] = IMAGE, weights: bytes | None = None
) -> ExtractorSpec:
    if weights is None:
        network = backbones.build(name, input_shape=shape, num_classes=CLASSES)
        weights = backbones.to_safetensors(network)
    return ExtractorSpec(name, shape, CLASSES, weights, MEAN * shape[-1], STD * shape[-1])


def _changed(**tensors: torch.Tensor | None) -> ExtractorSpec:
    """A small network's spec with some tensors replaced (None: left out)."""
    named = {name.replace("__", "."): value for name, value in tensors.items()}
    state = safetensors.torch.load(_spec().weights) | named
    kept = {name: value for name, value in state.items() if value is not None}
    return _spec(weights=safetensors.torch.save(kept))


@pytest.mark.parametrize(
    ("name", "shape"),
    [*((name, shape) for name in NAMES for shape in (IMAGE, (32, 32, 3))), ("mlp", (12,))],
)
def test_features_then_head_are_the_logits(name: str, shape: tuple[int, ...]) -> None:
    network = backbones.build(name, input_shape=shape, num_classes=CLASSES).eval()
    x = torch.randn(2, shape[-1], *shape[:-1])
    features = network.features(x)
    assert features.ndim == 2
    assert features.dtype == torch.float32
    assert network(x).shape == (2, CLASSES)
    torch.testing.assert_close(network(x), features @ network.head.weight.T + network.head.bias)


def _shapes(network: torch.nn.Module, kind: type[torch.nn.Module]) -> list[tuple[int, ...]]:
    return [tuple(module.weight.shape) for module in network.modules() if isinstance(module, kind)]


def test_published_architectures() -> None:
    """CVPR20 Tables 4 and 5, and the CIFAR-10 network of its section 5: filters and fully connected
    widths."""
    mnist = backbones.build("mnist_cvpr20", input_shape=IMAGE, num_classes=10)
    assert _shapes(mnist, torch.nn.Conv2d) == [(64, 1, 5, 5), (128, 64, 5, 5)]
    assert _shapes(mnist, torch.nn.Linear) == [(384, 128 * 7 * 7), (192, 384), (10, 192)]
    svhn = backbones.build("svhn_cvpr20", input_shape=(32, 32, 3), num_classes=10)
    widths = [(shape[0], shape[2]) for shape in _shapes(svhn, torch.nn.Conv2d)]
    assert widths == [(96, 3), (96, 3), (96, 3), (192, 3), (192, 3), (192, 3), (192, 5)]
    assert [shape[0] for shape in _shapes(svhn, torch.nn.Linear)] == [192, 192, 10]
    cifar = backbones.build("cifar_conv3", input_shape=(32, 32, 3), num_classes=10)
    assert [shape[0] for shape in _shapes(cifar, torch.nn.Conv2d)] == [32, 64, 128]


@pytest.mark.parametrize("name", NAMES)
def test_no_row_sees_another_in_eval_mode(name: str) -> None:
    network = backbones.load(_spec(name))
    x, other = torch.randn(3, 1, 28, 28), 100 * torch.randn(2, 1, 28, 28)
    with torch.inference_mode():
        alone, in_company = network.features(x), network.features(torch.cat([other, x]))[2:]
        torch.testing.assert_close(alone, in_company, rtol=1e-4, atol=1e-5)
        network.train()  # the same check can fail: batch norm's training mode mixes the rows
        if any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules()):
            assert not torch.allclose(
                network.features(x), network.features(torch.cat([other, x]))[2:], rtol=1e-2
            )


def test_weights_survive_the_crossing_and_the_random_generator_stays() -> None:
    network = backbones.build("small_cnn", input_shape=IMAGE, num_classes=CLASSES).eval()
    spec = _spec(weights=backbones.to_safetensors(network))
    before = torch.get_rng_state()
    received = backbones.load(spec)
    assert torch.equal(before, torch.get_rng_state())
    x = torch.randn(4, 1, 28, 28)
    assert torch.equal(network(x), received(x))
    assert not received.training
    assert not any(parameter.requires_grad for parameter in received.parameters())


def test_preprocess_standardises_by_channel() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 3), dtype=np.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = ((images / 255.0 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(
        Preprocessing(mean, std)(images).numpy(), expected, rtol=1e-4, atol=1e-5
    )
    vectors = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    assert np.array_equal(Preprocessing()(vectors).numpy(), vectors)
    with pytest.raises(InvalidInput, match="1 numbers each"):
        Preprocessing(mean, std)(images[..., :1])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet", IMAGE),
        ("timm/no_such_model", IMAGE),
        ("mlp", IMAGE),
        ("small_cnn", (12,)),
        ("timm/resnet18", (12,)),
    ],
)
def test_unknown_names_and_unfit_inputs_are_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="backbone"):
        backbones.build(name, input_shape=shape, num_classes=CLASSES)


@pytest.mark.parametrize(
    "spec",
    [
        _changed(head__bias=None),
        _changed(extra=torch.zeros(1)),
        _changed(head__bias=torch.zeros(11)),
        _changed(head__bias=torch.zeros(10, dtype=torch.float64)),
        _changed(head__bias=torch.full((10,), torch.nan)),
        _changed(head__weight=torch.full((10, 128), torch.inf)),
        _spec(weights=b""),
        _spec(weights=pickle.dumps({"head.bias": 1})),
        _spec(weights=_spec().weights[:-1]),
    ],
    ids=[
        "missing",
        "extra",
        "shape",
        "dtype",
        "nan",
        "infinite",
        "empty",
        "pickle",
        "truncated",
    ],
)
def test_weights_that_are_not_the_named_networks_are_refused(spec: ExtractorSpec) -> None:
    with pytest.raises(InvalidInput, match=r"extractor\.weights"):
        backbones.load(spec)


def test_a_negative_variance_is_refused() -> None:
    """Its square root is NaN: such a batch norm would drop every row."""
    with pytest.raises(InvalidInput, match=r"running_var\]` must be at least 0"):
        backbones.load(_changed(trunk__2__running_var=-torch.ones(16)))


def test_oversized_weights_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "MAX_WEIGHT_BYTES", 100)
    with pytest.raises(InvalidInput, match="at most 100 bytes"):
        backbones.load(_spec())
