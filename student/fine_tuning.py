"""A pretrained network that learns on public images.

Its last blocks alone learn, on what the frozen part makes of several augmented views of each image,
which is computed once.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.lib.format import open_memmap
from torch import nn
from torchvision.transforms import v2

from ..wall.errors import InvalidInput
from ..wall.features.embedder import unit_length
from ..wall.features.network import by_session
from ..wall.labels import LabelSpace
from ..wall.layers import Enlarged, Stages
from ..wall.messages import BESIDE, RELEASED, SIDES, ExtractorSpec
from ..wall.networks import UNFIT, Backbone, at_side, load_network
from ..wall.preprocessing import unit_scale
from ..wall.progress import TaskProgress
from .asking.features import Plain
from .linear.stored import StoredLayer
from .module import GROUP, Augmenter, weak_views
from .several_devices import kind
from .student_config import StudentConfig

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
        rule = "another one, or features: efficientnet_lite2_stages or timm/NAME, for images"
        raise InvalidInput("student.backbone", rule, config.backbone)
    head = np.zeros((len(Layer.of(features).weights), labels.outputs))
    spec = at_side(Layer(head, np.zeros(labels.outputs)).on(features), side)
    try:
        with torch.inference_mode():
            load_network(spec).features(torch.zeros(1, spec.input_shape[2], *spec.input_shape[:2]))
    except (*UNFIT, InvalidInput) as error:
        rule = f"a side that {name} takes, such as its own ({SIDES[0]} to {SIDES[1]} pixels)"
        raise InvalidInput("student.image_side", rule, side) from error
    return spec


def divide(spec: ExtractorSpec, blocks: int) -> Divided:
    """A network of which the last ``blocks`` and what follows them are trained. All of it is
    trained for 0, and if it is not built of a stem and blocks.
    """
    rest = load_network(spec).requires_grad_(True)
    front = nn.Sequential(v2.Normalize(spec.mean, spec.std))
    depths, inner = _depths(rest), _inner(rest)
    parts = [getattr(inner, name) for name in STEM if hasattr(inner, name)]
    if blocks and len(parts) == len(STEM) and hasattr(inner, BLOCKS):
        enlarged, stages = rest.trunk, inner.get_submodule(BLOCKS)
        assert isinstance(enlarged, Enlarged)
        assert isinstance(stages, nn.Sequential)
        frozen = range(max(0, len(stages) - blocks))
        parts += [stages.get_submodule(str(number)) for number in frozen]
        for name in (*STEM, *(f"{BLOCKS}.{number}" for number in frozen)):
            inner.set_submodule(name, nn.Identity())
        # under the names that it has in the whole network
        rest.trunk = nn.Sequential(OrderedDict(network=enlarged.network))
        front.append(Enlarged(nn.Sequential(*parts), enlarged.size))
    kept = {name: depths[name] for name, _ in rest.named_parameters()}
    front = front.eval().requires_grad_(False)
    return Divided(whole=spec, front=front, rest=rest.eval(), depths=kept)


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


@dataclass(frozen=True)
class Layer:
    """A linear layer on plain features: ``weights`` float64 [d, c], ``constant`` [c]."""

    weights: np.ndarray
    constant: np.ndarray

    @classmethod
    def released(cls, stored: StoredLayer, features: ExtractorSpec, plain: np.ndarray) -> "Layer":
        """A ``stored`` classifier of the ``features``, of which PUBLIC rows are ``plain``, [n, d].

        It sees rows at one length, or up to one, which a linear layer can not: all get these rows'
        mean length.
        """
        axes = features.projection()
        axes = np.eye(plain.shape[1]) if axes is None else axes
        center = np.asarray(features.center or np.zeros(plain.shape[1]))
        lengths = np.maximum(np.linalg.norm((plain - center) @ axes, axis=1), features.radius)
        length = unit_length(features, axes.shape[1]) / max(float(lengths.mean()), 1e-12)
        layer = axes @ stored.weights[:-1] * length
        return cls(layer, stored.constant * stored.weights[-1] - center @ layer)

    @classmethod
    def of(cls, network: ExtractorSpec) -> "Layer":
        tensors = safetensors.torch.load(network.weights)
        return cls(tensors["head.weight"].double().numpy().T, tensors["head.bias"].double().numpy())

    def mean(self, other: "Layer") -> "Layer":
        """The layer with the mean of both layers' logits."""
        return Layer((self.weights + other.weights) / 2, (self.constant + other.constant) / 2)

    def begin(self, head: nn.Linear) -> None:
        """Set the weights of a network's ``head``."""
        with torch.no_grad():
            head.weight.copy_(torch.from_numpy(self.weights.T))
            head.bias.copy_(torch.from_numpy(self.constant))

    def on(self, features: ExtractorSpec) -> ExtractorSpec:
        """The network of the ``features`` with this head."""
        tensors = safetensors.torch.load(features.weights)
        tensors["head.weight"] = torch.from_numpy(np.ascontiguousarray(self.weights.T)).float()
        tensors["head.bias"] = torch.from_numpy(self.constant).float()
        weights = safetensors.torch.save(tensors)
        return replace(features.plain, num_classes=len(self.constant), weights=weights)


def beside(
    first: ExtractorSpec, tuned: ExtractorSpec, released: Layer | None, rows: Plain
) -> ExtractorSpec:
    """The student of both networks: features of the ``first`` beside the ``tuned`` ones, and the
    mean of the logits of the ``released`` classifier, on the first, and of the tuned network.

    Each kind of features is divided by its deviation among PUBLIC rows: ``rows`` gives a network's
    plain features of these, float [n, d].
    """
    own, both = load_network(tuned).head, {f"trunk.second.{n}": t for n, t in _trunk(tuned)}
    both |= {f"trunk.first.{name}": tensor for name, tensor in _trunk(first)}
    spreads = (float(np.sqrt(rows(spec).var(axis=0).sum())) for spec in (first, tuned))
    factors = [1 / max(spread, 1e-12) for spread in spreads]
    weights, bias = own.weight.detach() / factors[1], own.bias.detach()
    if released is None:
        before = torch.zeros(len(bias), load_network(first).head.in_features)
    else:
        before = torch.from_numpy(released.weights.T / factors[0] / 2).float()
        weights, bias = weights / 2, (bias + torch.from_numpy(released.constant).float()) / 2
    both["trunk.factors"] = torch.tensor(factors)
    both |= {"head.weight": torch.cat([before, weights], dim=1).contiguous(), "head.bias": bias}
    name = BESIDE + tuned.backbone
    return replace(tuned, backbone=name, weights=safetensors.torch.save(both))


def _trunk(spec: ExtractorSpec) -> list[tuple[str, torch.Tensor]]:
    tensors = safetensors.torch.load(spec.weights)
    return [(n.removeprefix("trunk."), t) for n, t in tensors.items() if n.startswith("trunk.")]


def keep_views(
    path: Path,
    front: nn.Module,
    images: np.ndarray,
    config: StudentConfig,
    seed: int,
    progress: TaskProgress,
    workers: int = 1,
) -> np.ndarray:
    """What the ``front`` makes of views of PUBLIC images: float16 [n, views, ...], mapped from a
    file, which is computed where it is not there whole. The first view is the image itself.
    ``workers``: threads.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished, kept = path.with_suffix(".part"), None
        compute = _on_gpu(front) if kind(config) == "gpu" else _on_cpu(front, images, workers)
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            for start in range(0, len(images), ROWS):
                views = _views(unit_scale(images[start : start + ROWS]), config)
                done = np.stack([compute(view) for view in views], axis=1)
                if kept is None:
                    shape = (len(images), *done.shape[1:])
                    kept = open_memmap(unfinished, mode="w+", dtype=np.float16, shape=shape)
                kept[start : start + len(done)] = done
                progress(min(start + ROWS, len(images)), len(images))
            assert kept is not None
            kept.flush()
        unfinished.replace(path)
    return np.load(path, mmap_mode="r")


def _on_gpu(front: nn.Module) -> Callable[[torch.Tensor], np.ndarray]:
    front = front.to("cuda")
    return lambda x: front(x.to("cuda")).half().cpu().numpy()


def _on_cpu(
    front: nn.Module, images: np.ndarray, workers: int
) -> Callable[[torch.Tensor], np.ndarray]:
    """By ONNX Runtime, in a third of torch's time; by torch where there is no such form."""
    compute = by_session(front, unit_scale(images[:1]).numpy(), workers)
    if compute is None:
        return lambda x: front(x).half().numpy()
    return lambda x: compute(x.contiguous().numpy()).astype(np.float16)


def _views(x: torch.Tensor, config: StudentConfig) -> list[torch.Tensor]:
    """Images as they are, then weakly and strongly distorted ones: ``kept_views`` in all."""
    augment, weak = Augmenter(config.augment), weak_views(config.kept_views)
    weakly = [augment.weak(x) for _ in range(1, weak)]
    strongly = [augment.strong(x) for _ in range(weak, config.kept_views)]
    return [x, *weakly, *strongly]
