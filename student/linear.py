"""The linear student: one layer on feature vectors, or on a fixed network's features of images.

The features are computed once. They are centred and scaled by their mean and deviation over PUBLIC
rows for the training, and the layer takes that in afterwards, so that it reads plain features.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import safetensors.torch
import torch

from ..wall.labels import LabelSpace
from ..wall.messages import ExtractorSpec
from .data import Pool

LINEAR = "linear"
WEIGHT, BIAS = "head.weight", "head.bias"
CONSTANT = 1e-6  # deviation below which a feature is left out of the training, relative to the mean


@dataclass(frozen=True, eq=False)
class LinearRows:
    """Public rows as the linear student sees them: standardised features."""

    pool: Pool
    test: np.ndarray = field(repr=False)  # float32 [n, d]
    mean: np.ndarray = field(repr=False)  # float32 [d], as the deviation
    deviation: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, public: np.ndarray, test: np.ndarray, labels: LabelSpace) -> "LinearRows":
        """Of plain features, float32 [n, d]."""
        mean, deviation = public.mean(axis=0), public.std(axis=0)
        deviation = np.where(deviation > CONSTANT * (1 + np.abs(mean)), deviation, np.inf)
        scaled = [((rows - mean) / deviation).astype(np.float32) for rows in (public, test)]
        return cls(Pool(scaled[0], labels), scaled[1], mean, deviation)

    def outputs(self, layer: bytes) -> np.ndarray:
        """What a ``layer`` on plain features says of the test rows: float32 [n, c]."""
        tensors = {name: t.double().numpy() for name, t in safetensors.torch.load(layer).items()}
        weight, bias = tensors[WEIGHT] * self._scale, tensors[BIAS] + tensors[WEIGHT] @ self.mean
        return (self.test @ weight.T + bias).astype(np.float32)

    def unscaled(self, rows: np.ndarray) -> np.ndarray:
        """Plain features of standardised ones, float32 [n, d]."""
        return (rows * self._scale + self.mean).astype(np.float32)

    @property
    def _scale(self) -> np.ndarray:
        return np.where(np.isfinite(self.deviation), self.deviation, np.float32(0.0))

    def plain(self, weights: bytes) -> bytes:
        """A trained layer's ``weights`` (safetensors) as those of the same layer on plain features.

        w (x - m) / s + b = (w / s) x + b - (w / s) m.
        """
        layer = {name: t.double() for name, t in safetensors.torch.load(weights).items()}
        scaled = layer[WEIGHT] / torch.from_numpy(self.deviation).double()
        bias = layer[BIAS] - scaled @ torch.from_numpy(self.mean).double()
        return safetensors.torch.save({WEIGHT: scaled.float().contiguous(), BIAS: bias.float()})


def with_head(network: ExtractorSpec, layer: bytes) -> ExtractorSpec:
    """The fixed network's spec with a trained last layer: the student of images."""
    tensors = safetensors.torch.load(network.weights) | safetensors.torch.load(layer)
    return replace(network, weights=safetensors.torch.save(tensors), axes=b"")
