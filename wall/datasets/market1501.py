"""Market-1501 (Zheng et al. 2015) with the attributes of Lin et al. 2019: photographs of people.

Layout: images in bounding_box_train and bounding_box_test, NUMBER_CAMERA_FRAME_BOX.jpg by the
person's number, and market_attribute.mat beside these folders (Market-1501_Attribute).
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingData
from ..label_kinds import pack
from .data_config import DataConfig
from .folders import list_files, stable_hash
from .readers import Rows

SHAPE = (128, 64, 3)  # of an image: height, width, channels
# The file's columns, 1 for the first meaning and 2 for the other. Age has four values, which are
# four attributes here: 30 in all, as CVPR20 counts them.
_COLOURS = {
    "up": ("black", "white", "red", "purple", "yellow", "gray", "blue", "green"),
    "down": ("black", "white", "pink", "purple", "yellow", "gray", "blue", "green", "brown"),
}
COLUMNS = {
    "gender": "female",
    "hair": "long hair",
    "up": "short sleeves",
    "down": "short lower body clothing",
    "clothes": "pants",
    "hat": "hat",
    "backpack": "backpack",
    "bag": "bag",
    "handbag": "handbag",
    **{f"{at}{colour}": f"{at}: {colour}" for at, named in _COLOURS.items() for colour in named},
}
AGES = ("young", "teenager", "adult", "old")
ATTRIBUTES = (*COLUMNS.values(), *AGES)
NAME = re.compile(r"(\d{4})_c\d.*\.jpg")  # -1 and 0000 are no person of the data set


def side(config: DataConfig, private: bool) -> Rows:
    """The PRIVATE side's rows, or the analyst's.

    The 751 persons of bounding_box_train are private. Of the 750 of bounding_box_test those whose
    number has an even hash are public, the others the test split: CVPR20 does not say which images
    are public. The public side opens no private image, and of the attributes' file the test part.

    Raises MissingData for files that are not there.
    """
    root = Path(config.root) / "Market-1501-v15.09.15"
    split = "train" if private else "test"
    folder, file = root / f"bounding_box_{split}", root / "market_attribute.mat"
    if not (folder.is_dir() and file.is_file()):
        raise MissingData(
            f"`data.root` must hold {root.name} with bounding_box_train, bounding_box_test and "
            f"market_attribute.mat. Found none in {config.root!r}. Their authors publish them for "
            "research; they do not download themselves."
        )
    known = _attributes(file, split)
    named = {path: NAME.fullmatch(path) for path in list_files(folder)}
    persons = {path: name[1] for path, name in named.items() if name and name[1] in known}
    paths = sorted(persons, key=lambda path: (not private and _tested(persons[path]), path))
    codes = np.array([known[persons[path]] for path in paths], dtype=np.int64)
    public = sum(not _tested(persons[path]) for path in paths)
    return Rows(
        inputs=np.array(paths),
        labels=codes,
        ids=np.array([stable_hash(path) for path in paths], dtype=np.int64),
        public=public,
        folder=folder,
        persons=np.array([persons[path] for path in paths]),
    )


def _tested(person: str) -> bool:
    return stable_hash(f"market1501 {person}") % 2 == 1


def _attributes(file: Path, split: str) -> dict[str, int]:
    """Packed attributes by a person's number, from MATLAB's file."""
    from scipy.io import loadmat

    table: Any = loadmat(file, squeeze_me=True)["market_attribute"][split].item()
    bits = [np.asarray(table[name].item(), dtype=np.int64) - 1 for name in COLUMNS]
    age = np.asarray(table["age"].item(), dtype=np.int64)
    bits += [(age == number).astype(np.int64) for number in range(1, len(AGES) + 1)]
    persons = [f"{int(number):04d}" for number in table["image_index"].item()]
    return dict(zip(persons, pack(np.column_stack(bits)).tolist(), strict=True))
