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

    def weak(self, x: torch.Tensor, rows: slice) -> torch.Tensor:
        """What labelled inputs go through; ``rows`` of it.

        They do not depend on which of the batch are wanted.
        """
        return _grouped(x, self._weak, 0.02, rows)

    def strong(self, x: torch.Tensor, rows: slice) -> torch.Tensor:
        """What the student must not be confused by (UDA); ``rows`` of it, as in weak."""
        return _grouped(x, self._strong, 0.1, rows)


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


def _grouped(
    x: torch.Tensor, transform: v2.Transform | None, noise: float, rows: slice
) -> torch.Tensor:
    if x.ndim == 2:
        return (x + noise * x.std() * torch.randn_like(x))[rows]
    if transform is None:
        return x[rows]
    done, before = [], 0  # rows of groups that are not wanted and come first
    for first in range(0, len(x), GROUP):
        group = x[first : first + GROUP]
        if first < rows.stop and first + len(group) > rows.start:
            done.append(transform(group))
        else:
            transform(group[:1])  # draws what the group would
            before += len(group) if first < rows.start else 0
    return torch.cat(done)[rows.start - before : rows.stop - before]
