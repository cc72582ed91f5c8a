"""A classifier's file, what it says of rows, and it as a network with that of its features.

The file is safetensors, with ``weights`` float32 [d + 1, c]. Those of a balanced one have
``offsets`` [c] of its logits in them, which the file has beside.

Logits are (features, bias) weights of the integer features of an extractor. Its hash, the bias, the
kind of labels and the weights' precision are metadata. Probabilities are the softmax of the logits
for classes, the sigmoid of each for attributes; a value is so many half ranges from the middle of
its bounds.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from ...wall.features.embedder import unit_length
from ...wall.files import reading
from ...wall.label_kinds import steps_of
from ...wall.matrices import bias
from ...wall.messages import RELEASED, ExtractorSpec
from .moments import class_probabilities


@dataclass(frozen=True)
class StoredFit:
    """Weights of integer inputs, float64 [d + 1, c], and their precision, in squares of records.

    ``offsets``: of the logits, float64 [c], which a balanced classifier adds; 0 of others.
    """

    weights: np.ndarray = field(repr=False)
    precision: float
    offsets: np.ndarray | float = 0.0


def to_bytes(fit: StoredFit, extractor: str, length: float, labels: str) -> bytes:
    """The file of a ``fit`` on features of the ``extractor`` with that hash.

    ``length``: of a unit vector after quantisation; ``labels``: the label space's kind.
    """
    metadata = {"extractor": extractor, "bias": str(bias(length)), "labels": labels}
    metadata["precision"] = repr(fit.precision)
    weights, tensors = fit.weights.copy(), dict[str, np.ndarray]()
    if isinstance(fit.offsets, np.ndarray):
        weights[-1] += fit.offsets / bias(length)
        tensors["offsets"] = fit.offsets
    tensors["weights"] = weights.astype(np.float32)
    return safetensors.numpy.save(tensors, metadata)


@dataclass(frozen=True)
class StoredLayer:
    """What a file says of rows: ``weights`` of integer inputs, float32 [d + 1, c], the last of
    which is ``constant``.
    """

    weights: np.ndarray = field(repr=False)
    constant: float

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Probabilities float32 [n, c] of rows int8 [n, d] by a classifier of classes."""
        return np.asarray(class_probabilities(self._outputs(features)).astype(np.float32))

    def steps(self, features: np.ndarray) -> np.ndarray:
        """Steps int64 [n] of rows int8 [n, d] by a regression of values."""
        return steps_of(self._outputs(features)[:, 0])

    def _outputs(self, features: np.ndarray) -> np.ndarray:
        weights = self.weights
        return features @ weights[:-1].astype(np.float64) + self.constant * weights[-1]


def stored_layer(path: Path) -> StoredLayer | None:
    """A stored classifier or regression; None if there is none."""
    if not path.exists():
        return None
    with reading(path), safetensors.safe_open(path, "numpy") as file:
        return StoredLayer(file.get_tensor("weights"), float(file.metadata()["bias"]))


def stored_fit(path: Path, extractor: str) -> StoredFit | None:
    """A stored classifier; None if there is none, or one of another ``extractor``'s features."""
    if not path.exists():
        return None
    with reading(path), safetensors.safe_open(path, "numpy") as file:
        weights, about = file.get_tensor("weights").astype(np.float64), file.metadata()
        offsets = file.get_tensor("offsets") if "offsets" in file.keys() else 0.0  # noqa: SIM118
    if about["extractor"] != extractor:
        return None
    weights[-1] -= offsets / float(about["bias"])
    return StoredFit(weights=weights, precision=float(about["precision"]), offsets=offsets)


def as_network(layer: StoredLayer, extractor: ExtractorSpec) -> ExtractorSpec | None:
    """A stored ``layer`` and the ``extractor`` of its features as one network.

    None if features are not a network's, vectors as they are, or hog on axes.
    """
    raw, axes = extractor.backbone == "raw", extractor.projection()
    hog = extractor.backbone == "hog" and axes is not None
    if extractor.backbone.startswith(RELEASED) or not (raw or hog or extractor.weights):
        return None
    weights = layer.weights
    tensors = safetensors.numpy.load(extractor.weights) if extractor.weights else {}
    head = tensors.pop("head.weight", None)
    tensors.pop("head.bias", None)
    width = len(extractor.center) or extractor.input_shape[0] if head is None else head.shape[1]
    largest = 1.0 if axes is None else float(np.abs(axes).max())
    axes = np.eye(width) if axes is None else axes / largest
    # Features that have no axis become 0
    turned, last = np.zeros((width, width)), np.zeros((width, weights.shape[1]))
    turned[: axes.shape[1]] = axes.T
    last[: axes.shape[1]] = weights[:-1] * unit_length(extractor, axes.shape[1]) / width**0.5
    tensors = {name.replace("trunk.", "trunk.0.", 1): tensor for name, tensor in tensors.items()}
    tensors |= {
        "trunk.1.weight": turned.astype(np.float32),
        # not by a product, whose last digit may depend on the number of threads
        "trunk.1.bias": (-turned * (extractor.center or np.zeros(width))).sum(axis=1).astype("f4"),
        "head.weight": np.ascontiguousarray(last.T, dtype=np.float32),
        "head.bias": (layer.constant * weights[-1]).astype(np.float32),
    }
    if weights.shape[1] == 1:
        tensors["trunk.2.radius"] = np.array([extractor.radius / largest], dtype=np.float32)
    channels = extractor.input_shape[-1]
    return replace(
        extractor.plain,
        mean=(0.0,) * channels if hog else extractor.mean,
        std=(1.0,) * channels if hog else extractor.std,
        backbone=RELEASED + ("linear" if raw else extractor.backbone),
        num_classes=weights.shape[1],
        weights=safetensors.numpy.save(tensors),
    )


def after_features(network: ExtractorSpec) -> ExtractorSpec:
    """The layers of ``as_network`` after the network of the features, for rows of features."""
    tensors = safetensors.numpy.load(network.weights)
    last = {name: part for name, part in tensors.items() if not name.startswith("trunk.0.")}
    shape = (last["head.weight"].shape[1],)
    linear = replace(network, backbone=f"{RELEASED}linear", input_shape=shape, mean=(), std=())
    return replace(linear, weights=safetensors.numpy.save(last))
