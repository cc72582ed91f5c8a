"""A pretrained network that learns on public images: its last blocks alone, on what the frozen part
makes of several augmented views of each image, which is computed once.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.lib.format import open_memmap
from torch import nn

from ..wall.errors import InvalidInput
from ..wall.features.embedder import unit_length
from ..wall.labels import LabelSpace
from ..wall.layers import Enlarged, Stages
from ..wall.messages import RELEASED, SIDES, ExtractorSpec
from ..wall.networks import UNFIT, Backbone, at_side, load
from ..wall.preprocessing import Preprocessing, unit_scale
from ..wall.progress import TaskProgress
from .config import StudentConfig
from .devices import kind
from .linear.stored import stored_layer
from .module import GROUP, Augmenter, weak_views

STEM, BLOCKS = ("conv_stem", "bn1"), "blocks"  # of timm's EfficientNets and MobileNets, in order
ROWS = 4 * GROUP  # images whose views are computed at once


@dataclass(frozen=True)
class Divided:
    """A network in two parts: ``front`` is frozen, ``rest`` is trained.

    ``front``: images on the 0..1 scale -> what is kept; ``rest``: this -> outputs. Both are in eval
    mode: batch norm keeps its statistics, of ImageNet's many images, and learns its scale and
    shift. ``depths``: of the rest's parameters by name, from 0.
    """

    whole: ExtractorSpec
    front: nn.Module
    rest: Backbone
    depths: dict[str, int]

    def trained(self, weights: bytes) -> ExtractorSpec:
        """The whole network with the rest's trained weights."""
        tensors = safetensors.torch.load(self.whole.weights) | safetensors.torch.load(weights)
        return replace(self.whole, weights=safetensors.torch.save(tensors))


def start(features: ExtractorSpec, config: StudentConfig, labels: LabelSpace) -> ExtractorSpec:
    """The network of ``features`` at the configured size, with a head of zeros for ``labels``.

    Raises InvalidInput where there is no network, or where it does not take images of that size.
    """
    side, name = config.image_side, features.backbone
    if not features.weights or name.startswith(RELEASED) or len(features.input_shape) != 3:
        rule = "another one, or features: efficientnet_lite0_stages or timm/NAME, for images"
        raise InvalidInput("student.backbone", rule, config.backbone)
    tensors = safetensors.torch.load(features.weights)
    width = tensors["head.weight"].shape[1]
    tensors["head.weight"] = torch.zeros(labels.outputs, width)
    tensors["head.bias"] = torch.zeros(labels.outputs)
    spec = ExtractorSpec(
        name,
        features.input_shape,
        labels.outputs,
        safetensors.torch.save(tensors),
        features.mean,
        features.std,
    )
    spec = at_side(spec, side)
    try:
        with torch.inference_mode():
            load(spec).features(torch.zeros(1, spec.input_shape[2], *spec.input_shape[:2]))
    except (*UNFIT, InvalidInput) as error:
        rule = f"a side that {name} takes, such as its own ({SIDES[0]} to {SIDES[1]} pixels)"
        raise InvalidInput("student.image_side", rule, side) from error
    return spec


class _Standardised(nn.Module):
    """Images on the 0..1 scale as a network takes them."""

    def __init__(self, preprocess: Preprocessing) -> None:
        super().__init__()
        self.preprocess = preprocess

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.preprocess.standardise(x)


class _Rest(nn.Module):
    """What follows the frozen part, under the names that it has in the whole network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


def divide(spec: ExtractorSpec, blocks: int) -> Divided:
    """A network of which the last ``blocks`` and what follows them are trained; all of it for 0,
    and where it is not built of a stem and blocks.
    """
    rest = load(spec).requires_grad_(True)
    front = nn.Sequential(_Standardised(Preprocessing(spec.mean, spec.std)))
    depths, inner = _depths(rest), _inner(rest)
    parts = [getattr(inner, name) for name in STEM if hasattr(inner, name)]
    if blocks and len(parts) == len(STEM) and hasattr(inner, BLOCKS):
        enlarged, stages = rest.trunk, inner.get_submodule(BLOCKS)
        assert isinstance(enlarged, Enlarged)
        frozen = range(max(0, len(stages) - blocks))
        parts += [stages.get_submodule(str(number)) for number in frozen]
        for name in (*STEM, *(f"{BLOCKS}.{number}" for number in frozen)):
            inner.set_submodule(name, nn.Identity())
        rest.trunk = _Rest(enlarged.network)
        front.append(Enlarged(nn.Sequential(*parts), enlarged.size))
    kept = {name: depths[name] for name, _ in rest.named_parameters()}
    return Divided(spec, front.eval().requires_grad_(False), rest.eval(), kept)


def _inner(network: Backbone) -> nn.Module:
    """The timm model within a network of images of another size, or of stages."""
    inner = network.trunk
    while isinstance(inner, Enlarged | Stages):
        inner = inner.network
    return inner


def _depths(network: Backbone) -> dict[str, int]:
    """Depth of each parameter by timm's groups of layers, from 0; the head is the deepest."""
    from timm.models import group_parameters

    inner: Any = _inner(network)
    prefix = next(name for name, module in network.named_modules() if module is inner)
    groups = group_parameters(inner, inner.group_matcher(coarse=True), reverse=True)
    depths = {f"{prefix}.{name}": depth for name, depth in groups.items()}
    ids = {depth: place for place, depth in enumerate(sorted(set(depths.values())))}
    head = {f"head.{name}": len(ids) for name, _ in network.head.named_parameters()}
    return {name: ids[depth] for name, depth in depths.items()} | head


def begin_at(head: nn.Linear, classifier: Path, features: ExtractorSpec, plain: np.ndarray) -> None:
    """Set a head to a released ``classifier`` of the ``features``; rows get their mean length.

    ``plain``: features of PUBLIC rows, float [n, d], before they are centred. A classifier sees a
    row of axes at length 1, which a linear layer can not: the layer takes the rows' mean length.
    """
    weights, constant = stored_layer(classifier)
    axes = features.projection()
    axes = np.eye(plain.shape[1]) if axes is None else axes
    center = np.asarray(features.center or np.zeros(plain.shape[1]))
    lengths = np.linalg.norm((plain - center) @ axes, axis=1)
    length = unit_length(features, axes.shape[1]) / max(float(lengths.mean()), 1e-12)
    layer = axes @ weights[:-1] * length
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(layer.T))
        head.bias.copy_(torch.from_numpy(constant * weights[-1] - center @ layer))


def keep_views(
    path: Path,
    front: nn.Module,
    images: np.ndarray,
    config: StudentConfig,
    seed: int,
    progress: TaskProgress,
) -> np.ndarray:
    """What the ``front`` makes of views of PUBLIC images: float16 [n, views, ...], mapped from a
    file, which is computed where it is not there whole. The first view is the image itself.
    """
    if not path.exists():
        device = "cuda" if kind(config) == "gpu" else "cpu"
        front = front.to(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            kept = None
            for start in range(0, len(images), ROWS):
                views = _views(unit_scale(images[start : start + ROWS]), config)
                done = torch.stack([front(view.to(device)).half().cpu() for view in views], dim=1)
                if kept is None:
                    shape = (len(images), *done.shape[1:])
                    kept = open_memmap(unfinished, mode="w+", dtype=np.float16, shape=shape)
                kept[start : start + len(done)] = done.numpy()
                progress(min(start + ROWS, len(images)), len(images))
            assert kept is not None
            kept.flush()
        unfinished.replace(path)
    return np.load(path, mmap_mode="r")


def _views(x: torch.Tensor, config: StudentConfig) -> list[torch.Tensor]:
    """Images as they are, then WEAK of the other views weakly distorted, the rest strongly."""
    augment = Augmenter(config.augment)
    weak = weak_views(config.kept_views) - 1
    strong = config.kept_views - 1 - weak
    weakly, strongly = (
        [augment.weak(x) for _ in range(weak)],
        [augment.strong(x) for _ in range(strong)],
    )
    return [x, *weakly, *strongly]
