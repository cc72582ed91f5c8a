"""The linear student: one layer on feature vectors, or on a fixed network's features of images.

The features are computed once. They are centred and scaled by their mean and deviation over PUBLIC
rows in the training, and the layer takes that in afterwards, so that it reads plain features.
"""

from dataclasses import replace

import numpy as np
import safetensors.torch
import torch

from ..wall.messages import ExtractorSpec
from ..wall.preprocessing import Preprocessing
from .data import Pool

LINEAR = "linear"
WEIGHT, BIAS = "head.weight", "head.bias"
CONSTANT = 1e-6  # deviation below which a feature is left out of the training, relative to the mean
ENDLESS = 1e30  # its deviation, which leaves nothing of it


def statistics(features: np.ndarray) -> Preprocessing:
    """What standardises features like those of PUBLIC rows, float32 [n, d]."""
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation = np.where(deviation > CONSTANT * (1 + np.abs(mean)), deviation, ENDLESS)
    return Preprocessing(tuple(mean.tolist()), tuple(deviation.tolist()))


def on_plain(weights: bytes, pool: Pool) -> bytes:
    """A layer's ``weights`` (safetensors), trained on the ``pool``, as those of the same layer on
    plain features.

    w (x - m) / s + b = (w / s) x + b - (w / s) m.
    """
    layer = {name: t.double() for name, t in safetensors.torch.load(weights).items()}
    scaled = layer[WEIGHT] / torch.tensor(pool.std, dtype=torch.float64)
    bias = layer[BIAS] - scaled @ torch.tensor(pool.mean, dtype=torch.float64)
    return safetensors.torch.save({WEIGHT: scaled.float().contiguous(), BIAS: bias.float()})


def with_head(network: ExtractorSpec, layer: bytes) -> ExtractorSpec:
    """The fixed network's spec with a trained last layer: the student of images."""
    tensors = safetensors.torch.load(network.weights) | safetensors.torch.load(layer)
    return replace(network, weights=safetensors.torch.save(tensors), axes=b"")
