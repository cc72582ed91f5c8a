"""A released classifier as a network, together with the network of its features."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import safetensors.numpy

from ...wall.features.embedder import unit_length
from ...wall.messages import RELEASED, ExtractorSpec
from .stored import stored_layer


def as_network(path: Path, extractor: ExtractorSpec) -> ExtractorSpec | None:
    """A stored classifier or regression and the ``extractor`` of its features as one network.

    None if features are not a network's, vectors as they are, or hog on axes.
    """
    raw, axes = extractor.backbone == "raw", extractor.projection()
    hog = extractor.backbone == "hog" and axes is not None
    if extractor.backbone.startswith(RELEASED) or not (raw or hog or extractor.weights):
        return None
    weights, constant = stored_layer(path)
    tensors = safetensors.numpy.load(extractor.weights) if extractor.weights else {}
    head = tensors.pop("head.weight", None)
    tensors.pop("head.bias", None)
    width = len(extractor.center) or extractor.input_shape[0] if head is None else head.shape[1]
    largest = 1.0 if axes is None else float(np.abs(axes).max())
    axes = np.eye(width) if axes is None else axes / largest
    # Features that have no axis become 0
    turned, layer = np.zeros((width, width)), np.zeros((width, weights.shape[1]))
    turned[: axes.shape[1]] = axes.T
    layer[: axes.shape[1]] = weights[:-1] * unit_length(extractor, axes.shape[1]) / width**0.5
    tensors = {name.replace("trunk.", "trunk.0.", 1): tensor for name, tensor in tensors.items()}
    tensors |= {
        "trunk.1.weight": turned.astype(np.float32),
        # not by a product, whose last digit may depend on the number of threads
        "trunk.1.bias": (-turned * (extractor.center or np.zeros(width))).sum(axis=1).astype("f4"),
        "head.weight": np.ascontiguousarray(layer.T, dtype=np.float32),
        "head.bias": (constant * weights[-1]).astype(np.float32),
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
