"""CelebA: train (162,770) is private, valid (19,867) public, test (19,962) the test split; 40
attributes a face.

Its tables of attributes and splits hold all images, so the public side reads lines about private
ones; it opens the images of its own splits alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..errors import InvalidInput
from ..labels.attributes import pack
from ..progress import TaskProgress
from .base import (
    Labels,
    Published,
    Rows,
    Settings,
    blocks,
    open_torchvision,
)
from .readers import read_images

# In the order of list_attr_celeba.txt.
_FACES = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose "
    "Black_Hair Blond_Hair Blurry Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses "
    "Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male Mouth_Slightly_Open Mustache "
    "Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks "
    "Sideburns Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick "
    "Wearing_Necklace Wearing_Necktie Young"
)
FACES_ATTRIBUTES = tuple(_FACES.split())


class CelebA(Published):
    """Faces (Liu et al. 2015), cut to their central square; a record's id is its file's number."""

    name = "celeba"
    names: ClassVar[Mapping[Labels, tuple[str, ...]]] = {"attributes": FACES_ATTRIBUTES}
    licence = "non-commercial research purposes only"
    private_records = 162_770

    def input_shape(self, config: Settings) -> tuple[int, ...]:
        return config.image_size, config.image_size, 3

    def _private(self, config: Settings, progress: TaskProgress | None) -> Rows:
        return _rows(config, _faces(config, "train"), progress)

    def _public(self, config: Settings, progress: TaskProgress | None) -> tuple[Rows, Rows]:
        public = _rows(config, _faces(config, "valid"), progress)
        test = _rows(config, _faces(config, "test"), progress)
        if not (public.readable.all() and test.readable.all()):
            root = str(Path(config.root))
            rule = "a folder of readable images"
            raise InvalidInput("data.root", rule, root, "Unpack CelebA again.")
        return public, test

    def private_blocks(
        self, config: Settings, block: int, start: int
    ) -> Iterator[tuple[int, int, Rows]]:
        """The PRIVATE rows as ``Published.private_blocks`` gives them; images are read block by
        block.
        """
        faces = _faces(config, "train")
        yield from blocks(
            len(faces.filename), block, start, lambda part: _rows(config, faces, None, part)
        )


def _faces(config: Settings, split: str) -> Any:
    """A split's names of files and attributes, without the images."""
    from torchvision import datasets

    return open_torchvision(
        lambda: datasets.CelebA(
            config.root, split=split, target_type="attr", download=config.download
        ),
        f"{datasets.CelebA.base_folder} (its lists and img_align_celeba)",
        config,
    )


def _rows(
    config: Settings, faces: Any, progress: TaskProgress | None, part: slice = slice(None)
) -> Rows:
    names = faces.filename[part]
    folder = Path(config.root) / faces.base_folder / "img_align_celeba"
    images = read_images(folder, names, config.image_size, 3, progress)
    ids = np.array([int(Path(name).stem) for name in names], dtype=np.int64)
    return Rows(images.pixels, pack(faces.attr[part].numpy()), ids, images.readable)
