"""How images become what networks take, in training, features, use and exports."""

from dataclasses import dataclass

import numpy as np
import torch

from .errors import InvalidInput

LARGEST_PIXEL = 255  # becomes 1
CONSTANT = 1e-6  # deviation below which an entry of vectors tells nothing, relative to the mean
ENDLESS = 1e29  # its deviation, which leaves nothing of it, and crosses the wall


@dataclass(frozen=True)
class Preprocessing:
    """Pixels are divided by 255, then each channel is (x - mean) / std.

    ``mean``, ``std``: by channel, on the 0..1 scale; constants, or statistics of PUBLIC rows.
    Vectors have them by entry, and stay as they are without.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    @classmethod
    def of_public(cls, inputs: np.ndarray) -> "Preprocessing":
        """The mean and deviation of PUBLIC images by channel, of vectors float32 [n, d] by entry.

        An entry that is the same in all rows, or beyond all measure, counts as 0 in any row.
        """
        if inputs.ndim != 4:
            mean = inputs.mean(axis=0, dtype=np.float64)  # sums of float32 would lose digits
            deviation = inputs.std(axis=0, dtype=np.float64)
            far = np.abs(mean) + deviation >= ENDLESS
            told = (deviation > CONSTANT * (1 + np.abs(mean))) & ~far
            mean, deviation = np.where(told, mean, 0.0), np.where(told, deviation, ENDLESS)
            return cls(tuple(mean.tolist()), tuple(deviation.tolist()))
        pixels = [inputs[..., channel].ravel() for channel in range(inputs.shape[-1])]
        counts = np.stack([np.bincount(p, minlength=LARGEST_PIXEL + 1) for p in pixels])
        values, total = np.arange(LARGEST_PIXEL + 1) / LARGEST_PIXEL, counts.sum(axis=1)
        mean = counts @ values / total
        std = np.sqrt(np.maximum(counts @ values**2 / total - mean**2, 1e-4))
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, inputs: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Images as float32 [n, c, h, w], vectors as float32 [n, d].

        Images are uint8 [n, h, w, c], or float32 [n, c, h, w] of 0..1.
        """
        x = unit_scale(inputs)
        return self.standardise(x) if x.ndim == 4 or self.mean else x

    def standardise(self, x: torch.Tensor) -> torch.Tensor:
        """(x - mean) / std of images float32 [n, c, h, w] in 0..1, or of vectors [n, d]."""
        sizes = len(self.mean), len(self.std)
        if sizes != (x.shape[1], x.shape[1]):
            raise InvalidInput("extractor.mean, std", f"{x.shape[1]} numbers each", sizes)
        middle, spread = (
            torch.tensor(values, device=x.device).view(1, -1, *[1] * (x.ndim - 2))
            for values in (self.mean, self.std)
        )
        return (x - middle) / spread


def unit_scale(inputs: np.ndarray | torch.Tensor) -> torch.Tensor:
    """Images uint8 [n, h, w, c] -> float32 [n, c, h, w] in 0..1; all else as it is."""
    if isinstance(inputs, np.ndarray) and inputs.dtype != np.uint8:
        return torch.from_numpy(np.ascontiguousarray(inputs, dtype=np.float32))
    if isinstance(inputs, np.ndarray):
        pixels = torch.from_numpy(np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)))
    elif inputs.dtype == torch.uint8:
        pixels = inputs.permute(0, 3, 1, 2).contiguous()
    else:
        return inputs
    return pixels.float() / LARGEST_PIXEL
