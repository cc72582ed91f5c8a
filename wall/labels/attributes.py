"""Rows with several labels: each of some named attributes is present or absent.

Where a row has one label, it is the index of its class; here it is an integer whose bit j says whether attribute j is present.
So a private row has one number as its label either way. What is released says more: 1, 0, or -1 for "not said", by attribute.
"""

from __future__ import annotations

import numpy as np

from labelwall.wall.messages import ABSTAINED

MOST_ATTRIBUTES = 62  # bits of a label

# Fashion-MNIST's attributes are a function of its classes: this table, and nothing else.
CLOTHES_ATTRIBUTES = {
    "upper body": ("T-shirt/top", "Pullover", "Dress", "Coat", "Shirt"),
    "lower body": ("Trouser", "Dress"),
    "worn on feet": ("Sandal", "Sneaker", "Ankle boot"),
    "has sleeves": ("T-shirt/top", "Pullover", "Coat", "Shirt"),
    "long sleeves": ("Pullover", "Coat"),
    "opens in front": ("Coat", "Shirt"),
    "for winter": ("Pullover", "Coat", "Ankle boot"),
    "for summer": ("T-shirt/top", "Dress", "Sandal"),
    "closed shoe": ("Sneaker", "Ankle boot"),
    "carried": ("Bag",),
}

# CelebA's, in the order of its list_attr_celeba.txt.
_FACES = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair Blurry "
    "Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male "
    "Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks Sideburns "
    "Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace Wearing_Necktie Young"
)
FACES_ATTRIBUTES = tuple(_FACES.split())


def pack(bits: np.ndarray) -> np.ndarray:
    """One integer a row, bit j for column j: int64 [n] of int64 [n, c]; -1 for a row with an entry other than 0 and 1."""
    codes = (np.clip(bits, 0, 1) << np.arange(bits.shape[1], dtype=np.int64)).sum(
        axis=1, dtype=np.int64
    )
    return np.where(((bits == 0) | (bits == 1)).all(axis=1), codes, -1)


def unpack(codes: np.ndarray, attributes: int) -> np.ndarray:
    """Inverse of ``pack`` for codes of at least 0: int64 [n, attributes] of 0 and 1."""
    return (codes[:, None] >> np.arange(attributes, dtype=np.int64)) & 1


def clothes_codes(labels: np.ndarray, class_names: tuple[str, ...]) -> np.ndarray:
    """Fashion-MNIST's classes (int64 [n]) as attributes, packed: int64 [n]."""
    table = [
        [int(name in having) for having in CLOTHES_ATTRIBUTES.values()] for name in class_names
    ]
    return pack(np.array(table, dtype=np.int64))[labels]


def said(labels: np.ndarray) -> np.ndarray:
    """Which rows have a released label, or one for some attribute: bool [n] of int64 [n] or [n, c]."""
    known = labels != ABSTAINED
    return known if labels.ndim == 1 else known.any(axis=1)
