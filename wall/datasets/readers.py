"""Image folders: a folder of images for each class, or an attributes.csv in each folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ..errors import InvalidInput, MissingData, listed
from ..label_kinds import label_space
from ..labels import LabelSpace, has_truth
from ..progress import TaskProgress, no_progress
from .config import DataConfig, PublicData, Task, no_names, no_rows
from .folders import constant_order, list_files
from .tables import read_lines

# A file in an image folder: a header (path, then names of attributes), a line for each image.
ATTRIBUTES = "attributes.csv"
BY_PATH = "path"  # a value of data.person
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP")  # the only decoders that are ever run on a file
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp")
MAX_PIXELS = 1 << 26  # of an image as stored; more are refused by the header, before decoding
CHUNK = 128  # images decoded by one task of the thread pool


@dataclass(frozen=True)
class Images:
    """Decoded images."""

    pixels: np.ndarray  # uint8 [n, size, size, channels], zero where unreadable
    readable: np.ndarray  # bool [n]


def require_folder(field: str, path: str | Path | None) -> Path:
    """The folder that a field names. Raises InvalidInput where it names none, MissingData."""
    if not path:
        raise InvalidInput(field, "a folder", path)
    if not Path(path).is_dir():
        raise MissingData(f"`{field}` must be an existing folder. Found {str(path)!r}.")
    return Path(path)


def class_folders(root: Path) -> list[str]:
    """Names of the folders directly in ``root``, sorted; hidden ones are left out."""
    folders = (entry.name for entry in os.scandir(root) if entry.is_dir())
    return sorted(name for name in folders if not name.startswith("."))


def is_image(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def class_of(path: str, class_names: Sequence[str]) -> int:
    """Class index by the first folder of a relative path; -1 in no folder of the names."""
    first, *rest = path.split("/")
    return class_names.index(first) if rest and first in class_names else -1


def read_images(
    root: Path, paths: Sequence[str], size: int, channels: int, progress: TaskProgress = no_progress
) -> Images:
    """Decode images; never raises for what a file holds, and each depends on its own file alone.

    They are turned upright (EXIF), cut to their central square, resized to ``size`` pixels a side
    (bilinear) and converted to grey or RGB.
    """
    images = Images(
        np.zeros((len(paths), size, size, channels), dtype=np.uint8),
        np.zeros(len(paths), dtype=bool),
    )
    from joblib import Parallel, cpu_count, delayed  # takes a quarter of a second

    threads = {"n_jobs": min(8, cpu_count()), "prefer": "threads", "batch_size": CHUNK}
    tasks = (delayed(decode)(root / path, size, channels) for path in paths)
    for row, decoded in enumerate(Parallel(**threads, return_as="generator")(tasks)):
        if decoded is not None:
            images.pixels[row], images.readable[row] = decoded, True
        if (row + 1) % CHUNK == 0 or row + 1 == len(paths):
            progress(row + 1, len(paths))
    return images


def decode(path: Path, size: int, channels: int) -> np.ndarray | None:
    """Pixels uint8 [size, size, channels] of one image file; None where decoding fails, and for
    more than MAX_PIXELS.
    """
    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.size[0] * image.size[1] > MAX_PIXELS:
                return None
            # JPEG: decode at a reduced scale, still at least twice what is kept
            image.draft(mode, (2 * size, 2 * size))
            upright = ImageOps.exif_transpose(_eight_bits(image))
            return _fit(upright, size, size, channels)
    # Decoders raise many types on damaged files; the caller decides what a bad row means
    except Exception:
        return None


def _fit(image: Image.Image, height: int, width: int, channels: int) -> np.ndarray:
    """The largest central part of that form, resized (bilinear), grey or RGB: uint8 [h, w, c]."""
    converted = image.convert("L" if channels == 1 else "RGB")
    part = ImageOps.fit(converted, (width, height), method=Image.Resampling.BILINEAR)
    return np.asarray(part, dtype=np.uint8).reshape(height, width, channels)


def fit(rows: np.ndarray, height: int, width: int, channels: int) -> np.ndarray:
    """Images uint8 [n, h, w, 1 or 3] as ``read_images`` gives them, of this size."""
    images = (Image.fromarray(row[..., 0] if row.shape[-1] == 1 else row) for row in rows)
    fitted = [_fit(image, height, width, channels) for image in images]
    return np.array(fitted, dtype=np.uint8).reshape(len(rows), height, width, channels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit greys scaled to 8 bits: Pillow's own conversion clips them to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))


def describe(config: DataConfig) -> Task:
    """The task. Names that are not declared are those of the test folder's folders, or of its
    attributes.csv's columns; of the public folder's where there is no test folder.
    """
    space, by_class, tested = config.declared_labels, config.labels == "class", bool(config.test)
    field, path = ("data.test", config.test) if tested else ("data.public", config.public)
    root, names = require_folder(field, path), list(space.names)
    if tested or not names:
        names = class_folders(root) if by_class else _attribute_lines(field, root)[0][1:]
    if not space.names:
        space = label_space(config.labels, names)
    if by_class and len(space.names) < 2:
        if not tested:
            raise no_names(space)
        rule = "a folder with at least 2 class folders"
        raise InvalidInput("data.test", rule, f"{config.test}: {names}")
    unknown = sorted(set(names) - set(space.names)) if by_class else []
    if unknown:
        rule = f"a folder of the classes {listed(space.names)}"
        raise InvalidInput("data.test", rule, f"{config.test}: {unknown[0]}")
    return Task(space, (config.image_size, config.image_size, config.channels))


def read_public(config: DataConfig, progress: TaskProgress) -> PublicData:
    """The PUBLIC folders, each in a constant order that mixes the classes. Raises InvalidInput,
    which names the damaged images of both, MissingData.
    """
    space, damaged, rows = describe(config).labels, list[str](), []
    for field, path in (("data.public", config.public), ("data.test", config.test)):
        if field == "data.test" and not path:
            continue
        root = require_folder(field, path)
        paths = [name for name in list_files(root) if is_image(name)]
        if not paths:
            rule = f"a folder with images ({', '.join(SUFFIXES)})"
            raise InvalidInput(field, rule, str(root))
        paths = [paths[row] for row in constant_order(paths)]
        images = read_images(root, paths, config.image_size, config.channels, progress)
        damaged += [str(root / paths[row]) for row in np.flatnonzero(~images.readable)]
        optional = field == "data.public" and config.labels == "attributes"
        if optional and not (root / ATTRIBUTES).is_file():  # they serve reported metrics alone
            labels = space.no_labels(len(paths))
        else:
            labels = labels_of(space, field, root, paths)
        rows.append((images.pixels, labels))
    if damaged:
        rule = f"folders of readable images of at most {MAX_PIXELS} pixels"
        cure = f"Repair or remove {listed(damaged)}."
        raise InvalidInput("data.public, data.test", rule, f"{len(damaged)} others", cure)
    inputs, public_labels = rows[0]
    test_inputs, test_labels = rows[1] if len(rows) > 1 else no_rows(inputs, space)
    if (test_labels < 0).any():
        attributes = config.labels == "attributes"
        where = f"with a line in {ATTRIBUTES}" if attributes else "in class folders"
        raise InvalidInput("data.test", f"images {where} only", f"another one in {config.test}")
    known = has_truth(public_labels).any()
    return PublicData(inputs, public_labels if known else None, test_inputs, test_labels)


def labels_of(space: LabelSpace, field: str, root: Path, paths: Sequence[str]) -> np.ndarray:
    """Labels of images by their relative paths: int64 [n], or [n, c] for attributes; -1 for an
    image without one.

    In attributes.csv 1 is present, 0 or -1 absent. An image without a line, or with a line that
    says anything else, is -1 throughout; of several lines the first counts. Raises MissingData
    without the file, InvalidInput where a name has no column, and nothing for what lines hold.
    """
    if space.kind != "attributes":
        return np.array([class_of(path, space.names) for path in paths], dtype=np.int64)
    header, lines = _attribute_lines(field, root)
    absent = [name for name in space.names if name not in header[1:]]
    if absent:
        rule = f"a table with the columns {listed(space.names)}"
        raise InvalidInput(f"{field}/{ATTRIBUTES}", rule, f"none for {absent[0]}")
    columns, written = [header.index(name, 1) for name in space.names], {"1": 1, "0": 0, "-1": 0}
    unknown, bits = [-1] * len(columns), dict[str, list[int]]()
    for cells in lines:
        if len(cells) == len(header):
            entries = [written.get(cells[column].strip(), -1) for column in columns]
            bits.setdefault(cells[0], unknown if -1 in entries else entries)
    rows = [bits.get(path, unknown) for path in paths]
    return np.array(rows, dtype=np.int64).reshape(len(paths), len(columns))


def _attribute_lines(field: str, root: Path) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a folder's attributes.csv. Raises MissingData, InvalidInput."""
    if not (root / ATTRIBUTES).is_file():
        raise MissingData(
            f"`{field}` must hold {ATTRIBUTES}: image paths and their attributes. "
            f"Found none in {str(root)!r}."
        )
    header, lines = read_lines(root / ATTRIBUTES)
    if len(header) < 2 or len(set(header)) != len(header):
        rule = "a table whose first line has a column for paths and distinct names"
        raise InvalidInput(f"{field}/{ATTRIBUTES}", rule, "another")
    return header, lines


def persons_of(
    field: str, root: Path, paths: Sequence[str], person: str, space: LabelSpace
) -> list[str]:
    """Ids of images' persons by ``data.person``; empty for an image that names none, or two. Raises
    MissingData without the file, and nothing for what lines hold.
    """
    if person == BY_PATH:
        place = 0 if space.kind == "attributes" else 1
        folders = [path.split("/")[:-1] for path in paths]
        return [names[place] if len(names) > place else "" for names in folders]
    if not (root / person).is_file():
        text = f"`{field}` must hold {person}, which data.person names: image paths and persons"
        raise MissingData(f"{text}. Found none in {str(root)!r}.")
    named = dict[str, set[str]]()
    for cells in read_lines(root / person)[1]:
        if len(cells) == 2:
            named.setdefault(cells[0], set()).add(cells[1].strip())
    claims = [named.get(path, {""}) for path in paths]
    return [min(persons) if len(persons) == 1 else "" for persons in claims]
