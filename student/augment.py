"""Random distortions of public images, by torchvision's v2 transforms on batches."""

from __future__ import annotations

import torch
from torchvision.transforms import v2

# Images that share one draw: v2 draws once a call, and a call a single image costs more than the
# network's step
GROUP = 8
BILINEAR = v2.InterpolationMode.BILINEAR


class Augmenter:
    """Distorts images, float32 [n, c, h, w] on the 0..1 scale.

    Feature vectors [n, d] get a little Gaussian noise.

    ``strength``: none, shift (affine distortions that keep a digit's class) or natural (adds
    mirroring and RandAugment). Draws from torch's global generator, which a training step seeds.
    """

    def __init__(self, strength: str) -> None:
        erasing = v2.RandomErasing(p=0.5, scale=(0.02, 0.15))
        nudge = v2.RandomAffine(degrees=8, translate=(0.07, 0.07), interpolation=BILINEAR)
        affine = v2.RandomAffine(
            degrees=12, translate=(0.08, 0.08), scale=(0.88, 1.12), shear=7, interpolation=BILINEAR
        )
        # Erasing a patch of a digit can make it another one: with it, consistency cost MNIST a
        # point even under true labels.
        self._weak = {"none": None, "shift": nudge, "natural": _crop_and_mirror()}[strength]
        self._strong = {"none": None, "shift": affine, "natural": _natural(erasing)}[strength]

    def weak(self, x: torch.Tensor) -> torch.Tensor:
        """What labelled inputs go through."""
        return _grouped(x, self._weak, 0.02)

    def strong(self, x: torch.Tensor) -> torch.Tensor:
        """What the student must not be confused by (UDA)."""
        return _grouped(x, self._strong, 0.1)


def _crop_and_mirror() -> v2.Transform:
    return v2.Compose(
        [v2.RandomAffine(degrees=0, translate=(0.125, 0.125)), v2.RandomHorizontalFlip()]
    )


def _natural(erasing: v2.Transform) -> v2.Transform:
    """RandAugment works on bytes."""
    to_bytes, back = v2.ToDtype(torch.uint8, scale=True), v2.ToDtype(torch.float32, scale=True)
    return v2.Compose(
        [_crop_and_mirror(), to_bytes, v2.RandAugment(num_ops=2, magnitude=9), back, erasing]
    )


def _grouped(x: torch.Tensor, transform: v2.Transform | None, noise: float) -> torch.Tensor:
    if x.ndim == 2:
        return x + noise * x.std() * torch.randn_like(x)
    return x if transform is None else torch.cat([transform(group) for group in x.split(GROUP)])
