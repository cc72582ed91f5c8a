"""Image folders: which files there are, and their pixels.

Each function reads the path it is given and nothing else; an image is decoded by itself.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from joblib import Parallel, cpu_count, delayed
from PIL import Image, ImageOps

from ..errors import InvalidInput, MissingData
from ..progress import TaskProgress

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP")  # the only decoders that are ever run on a file
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp")
MAX_PIXELS = 1 << 26  # of an image as stored; more are refused by the header, before decoding
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
    """The first 63 bits of a name's SHA-256: the same on every machine; a non-negative int64.

    Any text has one: halves of surrogate pairs, which UTF-8 has no bytes for, are kept.
    """
    try:
        content = text.encode(errors="surrogateescape")  # file names that are not UTF-8
    except UnicodeEncodeError:
        content = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


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
    paths: list[str] = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inside = Path(folder).relative_to(root)
        paths += [(inside / name).as_posix() for name in files if not name.startswith(".")]
    return sorted(paths)


def is_image(path: str) -> bool:
    """Whether a file name ends like an image that is read here."""
    return path.lower().endswith(SUFFIXES)


def class_of(path: str, class_names: Sequence[str]) -> int:
    """Class index by the first folder of a relative path.

    It is -1 for a file in no class folder, or in one outside the names.
    """
    first, *rest = path.split("/")
    return class_names.index(first) if rest and first in class_names else -1


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
    """One image file decoded; None where that fails, or where it has more than MAX_PIXELS.

    (pixels uint8 [size, size, channels], stored (width, height)).
    """
    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(path, formats=FORMATS) as image:
            stored = image.size
            if stored[0] * stored[1] > MAX_PIXELS:
                return None
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
    fitted = np.zeros((len(rows), height, width, channels), dtype=np.uint8)
    for row, pixels in enumerate(rows):
        image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        fitted[row] = fit(image, height, width, channels)
    return fitted


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit greys scaled to 8 bits: Pillow's own conversion clips them to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
