"""Formats of one's own data: image folders, npz files and folders of npy files.

Each function reads the path it is given and nothing else.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from joblib import Parallel, cpu_count, delayed
from PIL import Image, ImageOps

from ..errors import InvalidInput, MissingData, shape_text
from ..progress import TaskProgress

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP")  # the only decoders that are ever run on a file
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp")
# A file in an image folder: a header (path, then names of attributes), a line for each image.
ATTRIBUTES = "attributes.csv"
CHUNK = 128  # images decoded by one task of the thread pool


@dataclass(frozen=True)
class Images:
    """Decoded images.

    ``pixels``: uint8 [n, size, size, channels]; ``readable``: bool [n], the pixels of the others
    are zero; ``sizes``: int32 [n, 2], width and height in pixels as stored, zero where unreadable.
    """

    pixels: np.ndarray
    readable: np.ndarray
    sizes: np.ndarray


def stable_hash(text: str) -> int:
    """The first 63 bits of a name's SHA-256: the same on every machine; a non-negative int64."""
    return (
        int.from_bytes(hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:8], "big")
        >> 1
    )


def constant_order(names: Iterable[str]) -> np.ndarray:
    """int64 [n]: positions of distinct names by their stable hash.

    A fixed shuffle that no library version changes.
    """
    hashes = np.array([stable_hash(name) for name in names], dtype=np.int64)
    return np.argsort(hashes, kind="stable")


def require_folder(field: str, path: str | Path | None) -> Path:
    """The folder a field names.

    Raises InvalidInput when the field is empty, MissingData when the folder is not there.
    """
    if not path:
        raise InvalidInput(field, "a folder", path)
    if not Path(path).is_dir():
        raise MissingData(f"`{field}` must be an existing folder. Found {str(path)!r}.")
    return Path(path)


def class_folders(root: Path) -> list[str]:
    """Names of the folders directly in ``root``, sorted; hidden ones are left out."""
    return sorted(
        entry.name
        for entry in os.scandir(root)
        if entry.is_dir() and not entry.name.startswith(".")
    )


def list_files(root: Path) -> list[str]:
    """Relative POSIX paths of all files under ``root``, sorted.

    Hidden files and folders are left out.
    """
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [
            Path(folder, name).relative_to(root).as_posix()
            for name in files
            if not name.startswith(".")
        ]
    return sorted(found)


def is_image(path: str) -> bool:
    """Whether a file name ends like an image that is read here."""
    return path.lower().endswith(SUFFIXES)


def class_of(path: str, class_names: Sequence[str]) -> int:
    """Class index by the first folder of a relative path.

    It is -1 for a file in no class folder, or in one outside the names.
    """
    first, *rest = path.split("/")
    return class_names.index(first) if rest and first in class_names else -1


def attribute_names(field: str, root: Path) -> list[str]:
    """The attributes that a folder's attributes.csv has columns for.

    Raises MissingData, InvalidInput for its header.
    """
    return _attribute_lines(field, root)[0][1:]


def attributes_of(field: str, root: Path, paths: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """Attributes of images, from the folder's attributes.csv: int64 [n, c] of 0 and 1.

    Images are named by their relative paths.

    1 is present, 0 or -1 is absent. An image without a line, or with a line that says anything
    else, is -1 throughout; of several lines for one image the first counts. Raises MissingData
    without the file, InvalidInput where a name has no column: what lines hold raises nothing.
    """
    header, lines = _attribute_lines(field, root)
    absent = [name for name in names if name not in header[1:]]
    if absent:
        raise InvalidInput(
            f"{field}/{ATTRIBUTES}",
            f"a table with the columns {', '.join(names)}",
            f"none for {absent[0]}",
        )
    columns, written = [header.index(name, 1) for name in names], {"1": 1, "0": 0, "-1": 0}
    found = dict[str, list[int]]()
    for path, *values in lines:
        if len(values) == len(header) - 1:
            entries = [written.get(values[column - 1].strip(), -1) for column in columns]
            found.setdefault(path, entries if -1 not in entries else [-1] * len(names))
    unknown = [-1] * len(names)
    return np.array([found.get(path, unknown) for path in paths], dtype=np.int64).reshape(
        len(paths), len(names)
    )


def _attribute_lines(field: str, root: Path) -> tuple[list[str], list[list[str]]]:
    """Header and lines, each read by itself: a damaged one is no table's end."""
    if not (root / ATTRIBUTES).is_file():
        raise MissingData(
            f"`{field}` must hold {ATTRIBUTES}: image paths and their attributes. "
            f"Found none in {str(root)!r}."
        )
    lines = []
    for text in (root / ATTRIBUTES).read_text(errors="replace").splitlines():
        with contextlib.suppress(csv.Error):
            lines += [row for row in csv.reader([text]) if row]
    header = [name.strip() for name in lines[0]] if lines else []
    if len(header) < 2 or len(set(header)) != len(header):
        raise InvalidInput(
            f"{field}/{ATTRIBUTES}",
            "a table whose first line has a column for paths and distinct names",
            "another",
        )
    return header, lines[1:]


def persons_in(field: str, root: Path, paths: Sequence[str], name: str) -> list[str]:
    """Whom each image belongs to by a CSV file of path and person below a header.

    Empty for an image without a line, or with lines of two persons; lines that are no pair name
    nobody. Raises MissingData without the file: what lines hold raises nothing.
    """
    if not (root / name).is_file():
        text = f"`{field}` must hold {name}, which data.person names: image paths and their persons"
        raise MissingData(f"{text}. Found none in {str(root)!r}.")
    named = dict[str, set[str]]()
    for text in (root / name).read_text(errors="replace").splitlines()[1:]:
        with contextlib.suppress(csv.Error):
            for cells in csv.reader([text]):
                if len(cells) == 2:
                    named.setdefault(cells[0], set()).add(cells[1].strip())
    return [min(found) if len(found := named.get(path, {""})) == 1 else "" for path in paths]


def read_images(
    root: Path, paths: Sequence[str], size: int, channels: int, progress: TaskProgress | None = None
) -> Images:
    """Decode images; never raises for what a file holds.

    Each is turned upright (EXIF), cut to its central square, resized to ``size`` pixels a side
    (bilinear) and converted to grey (``channels`` 1) or RGB (3). These are public constants: an
    image's pixels depend on its own file alone.
    """
    images = Images(
        np.zeros((len(paths), size, size, channels), dtype=np.uint8),
        np.zeros(len(paths), dtype=bool),
        np.zeros((len(paths), 2), dtype=np.int32),
    )

    def decode_chunk(start: int) -> None:
        for row in range(start, min(start + CHUNK, len(paths))):
            decoded = decode(root / paths[row], size, channels)
            if decoded is not None:
                images.pixels[row], images.sizes[row] = decoded
                images.readable[row] = True

    starts = range(0, len(paths), CHUNK)
    tasks = (delayed(decode_chunk)(start) for start in starts)
    finished = Parallel(n_jobs=min(8, cpu_count()), prefer="threads", return_as="generator")(tasks)
    for done, _ in enumerate(finished, start=1):
        if progress:
            progress(min(done * CHUNK, len(paths)), len(paths))
    return images


def decode(path: Path, size: int, channels: int) -> tuple[np.ndarray, tuple[int, int]] | None:
    """One image file decoded; None where that fails.

    (pixels uint8 [size, size, channels], stored (width, height)).
    """
    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(path, formats=FORMATS) as image:
            stored = image.size
            # JPEG: decode at a reduced scale, still at least twice what is kept
            image.draft(mode, (2 * size, 2 * size))
            upright = ImageOps.exif_transpose(_eight_bits(image))
            return fit(upright, size, size, channels), stored
    # Decoders raise many types on damaged files; the caller decides what a bad row means
    except Exception:
        return None


def fit(image: Image.Image, height: int, width: int, channels: int) -> np.ndarray:
    """The largest central part of that form, resized (bilinear), grey or RGB: uint8 [h, w, c]."""
    converted = image.convert("L" if channels == 1 else "RGB")
    part = ImageOps.fit(converted, (width, height), method=Image.Resampling.BILINEAR)
    return np.asarray(part, dtype=np.uint8).reshape(height, width, channels)


def fit_all(rows: np.ndarray, height: int, width: int, channels: int) -> np.ndarray:
    """The same of images in an array, uint8 [n, h, w, 1 or 3]."""
    found = np.zeros((len(rows), height, width, channels), dtype=np.uint8)
    for row, pixels in enumerate(rows):
        grey = pixels.shape[-1] == 1
        image = Image.fromarray(pixels[..., 0] if grey else pixels)
        found[row] = fit(image, height, width, channels)
    return found


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit greys scaled to 8 bits: Pillow's own conversion clips them to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))


def read_member(path: Path, name: str) -> np.ndarray | None:
    """One array of an npz file, or of a folder of npy files, None where there is none.

    No other array is decompressed, and no other file of a folder is opened.

    Raises InvalidInput for a file that is no npz, a damaged array, or one of Python objects.
    """
    if not has_member(require_arrays(path), name):
        return None
    with _numbers(name):
        if path.is_dir():
            found: np.ndarray = np.load(path / f"{name}.npy", allow_pickle=False)
            return found
        with np.load(path, allow_pickle=False) as members:
            return members[name]


def required_member(path: str | Path | None, name: str) -> np.ndarray:
    """An array of the npz file, or of the folder, that ``data.path`` names.

    Raises as ``require_arrays`` and ``read_member``, or where it is not there.
    """
    place = require_arrays(path)
    found = read_member(place, name)
    if found is None:
        rule = f"a folder with {name}.npy" if place.is_dir() else f"an npz file with {name}"
        raise InvalidInput("data.path", rule, str(place))
    return found


def member_blocks(path: Path, name: str, size: int, start: int = 0) -> Iterator[np.ndarray]:
    """Rows of an array from row ``start`` on, in blocks of ``size``.

    The file is read once, from its beginning.

    Raises InvalidInput as ``member_rows`` does, and for an array that ends early.
    """
    with _numbers(name), _opened(path, name) as member:
        dtype, shape = _header(member)
        row = dtype.itemsize * math.prod(shape[1:])
        member.seek(start * row, os.SEEK_CUR)
        for first in range(start, shape[0], size):
            count = min(size, shape[0] - first)
            yield np.frombuffer(member.read(count * row), dtype=dtype).reshape(count, *shape[1:])


def member_rows(path: Path, name: str) -> int:
    """How many rows an array has.

    Raises InvalidInput, also for one that is not there or not stored by rows.
    """
    with _numbers(name), _opened(require_arrays(path), name) as member:
        return _header(member)[1][0]


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[IO[bytes]]:
    """The bytes of an array, as an npy file has them."""
    if path.is_dir():
        with (path / f"{name}.npy").open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
            yield member


def _header(member: IO[bytes]) -> tuple[np.dtype, tuple[int, ...]]:
    """Dtype and shape of an array that follows.

    Raises ValueError for one of objects, of columns, or without rows.
    """
    version = np.lib.format.read_magic(member)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, by_columns, dtype = read(member)
    if dtype.hasobject or not shape or (by_columns and len(shape) > 1):
        raise ValueError("not rows of numbers")
    return dtype, shape


@contextlib.contextmanager
def _numbers(name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(
            name, "a readable array of numbers", "a damaged member, or Python objects"
        ) from error


def has_member(path: Path, name: str) -> bool:
    """Whether an npz file lists an array of that name, or a folder has it; nothing is read."""
    if path.is_dir():
        return (path / f"{name}.npy").is_file()
    with np.load(path, allow_pickle=False) as members:
        return name in members.files


def require_arrays(path: str | Path | None) -> Path:
    """The npz file, or the folder of npy files, that ``data.path`` names.

    Raises InvalidInput or MissingData.
    """
    if not path:
        rule = "an npz file, or a folder of npy files, for the source 'arrays'"
        raise InvalidInput("data.path", rule, path)
    if not Path(path).exists():
        rule = "an existing npz file or folder of npy files"
        raise MissingData(f"`data.path` must be {rule}. Found {str(path)!r}.")
    if not Path(path).is_dir() and not zipfile.is_zipfile(path):
        raise InvalidInput("data.path", "an npz file, as numpy.savez writes it", str(path))
    return Path(path)


def canonical_rows(name: str, rows: np.ndarray) -> np.ndarray:
    """Rows in the shape and dtype that the wall carries.

    uint8 [n, h, w] or [n, h, w, c] -> uint8 [n, h, w, c]; numbers [n, d] -> float32 [n, d], from
    any width of integers or floats but uint8.

    A number that float32 can not hold becomes infinite, quietly: non-finite rows are the caller's
    to refuse or drop. Raises InvalidInput with the array's name, the rule, and its dtype and shape,
    without the number of rows.
    """
    if rows.dtype == np.uint8 and rows.ndim == 3:
        rows = rows[..., np.newaxis]
    image = rows.dtype == np.uint8 and rows.ndim == 4 and rows.shape[-1] in (1, 3)
    # uint8 [n, d] may be flattened images, whose shape is lost
    vector = rows.dtype.kind in "iuf" and rows.dtype != np.uint8 and rows.ndim == 2
    if not (image or vector) or 0 in rows.shape[1:]:
        rule = "images uint8 [n, h, w] or [n, h, w, 1 or 3], or vectors float or int [n, d]"
        raise InvalidInput(name, rule, shape_text(rows))
    with np.errstate(all="ignore"):
        return rows if image else rows.astype(np.float32)
