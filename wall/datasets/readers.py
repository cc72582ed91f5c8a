"""Image folders: which images they hold, as pixels, and what is learned of them."""

import contextlib
import ctypes
import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ..errors import InvalidInput, MissingData, listed
from ..label_kinds import label_space
from ..labels import LabelSpace, class_names, code_of, has_truth, written
from ..progress import TaskProgress, no_progress
from . import medical
from .data_config import DataConfig, PublicData, Task, no_names
from .drawn import shapes
from .folders import constant_order, is_hidden, list_files
from .image_labels import (
    METADATA,
    SUFFIXES,
    by_folders,
    columns_of,
    is_image,
    labels_of,
    none_told,
    require_told,
    told_of,
    without_suffixes,
    written_labels,
)
from .public_classes import classes_by_column, classes_read

MAX_PIXELS = 1 << 26  # of an image as stored; more are refused by the header, before decoding
GREYS = {"1", "L", "LA", "I", "I;16", "I;16B", "F"}  # Pillow's modes of them
DEEP = ("I", "F")  # what Pillow's modes of greys of more than 8 bits begin with
DEEPEST = 65535.0  # white in these, if nothing else is said
SAMPLE = 100  # images that are looked at for their depth
CHUNK = 128  # images decoded by one task of the thread pool


def _formats() -> tuple[str, ...]:
    """The only decoders that are ever run on a file.

    None prints what is wrong with a file, which may be private. TIFF's is left out if it can not be
    kept from that.
    """
    silent = ("JPEG", "PNG", "BMP", "PPM", "WEBP", "GIF")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    try:
        libtiff = ctypes.CDLL(Image.core.__file__)
        libtiff.TIFFSetErrorHandler(None)
        libtiff.TIFFSetWarningHandler(None)
    except (AttributeError, OSError):
        return silent
    return (*silent, "TIFF")


FORMATS = _formats()


@dataclass(frozen=True)
class Images:
    """Decoded images."""

    pixels: np.ndarray  # uint8 [n, size, size, channels], zero if unreadable
    readable: np.ndarray  # bool [n]


def require_folder(field: str, path: str | Path | None) -> Path:
    """The folder that a field names. Raises InvalidInput if it names none, MissingData."""
    if not path:
        raise InvalidInput(field, "a folder", path)
    if not Path(path).is_dir():
        raise MissingData(f"`{field}` must be an existing folder. Found {str(path)!r}.")
    return Path(path)


def empty_folders(config: DataConfig) -> list[str]:
    """Names of the folders of the PUBLIC class folders' place that hold no image."""
    if config.draws and not config.test:
        return []
    root = Path(config.test or config.public or "")
    names = {entry.name for entry in os.scandir(root) if entry.is_dir()}
    held = {path.split("/")[0] for path in list_files(root) if is_image(path)}
    return sorted(name for name in names - held if not is_hidden(name))


def image_files(field: str, root: Path) -> list[str]:
    """The images in a PUBLIC folder, sorted.

    Raises InvalidInput if there is none, MissingData if a package is missing that reads them.
    """
    files = list_files(root)
    images = [path for path in files if is_image(path)]
    if not images:
        others = listed(sorted({Path(path).suffix or path for path in files}))
        rule = f"a folder with images ({', '.join(SUFFIXES)})"
        raise InvalidInput(field, rule, f"{root}: {others or 'no files'}")
    if any(map(medical.is_medical, images)):
        medical.require_packages()
    return images


def read_images(
    root: Path,
    paths: Sequence[str],
    size: tuple[int, int],
    channels: int,
    progress: TaskProgress = no_progress,
    white: float | None = None,
) -> Images:
    """Decode images; never raises for what a file holds, and each depends on its own file alone.

    The first page or frame is turned upright (EXIF), laid on white if it is transparent, cut to the
    central part of that form, resized to ``size``, (height, width) in pixels (bilinear), and
    converted to grey or RGB.
    ``white``: as ``DataConfig.white``.
    """
    images = Images(
        np.zeros((len(paths), *size, channels), dtype=np.uint8), np.zeros(len(paths), dtype=bool)
    )
    from joblib import Parallel, cpu_count, delayed  # takes a quarter of a second

    threads = {"n_jobs": min(8, cpu_count()), "prefer": "threads", "batch_size": CHUNK}
    tasks = (delayed(decode)(root / path, size, channels, white) for path in paths)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # decoders', which describe rows
        for row, decoded in enumerate(Parallel(**threads, return_as="generator")(tasks)):
            if decoded is not None:
                images.pixels[row], images.readable[row] = decoded, True
            if (row + 1) % CHUNK == 0 or row + 1 == len(paths):
                progress(row + 1, len(paths))
    return images


def open_image(path: Path) -> Image.Image:
    """An image file of which the header alone is read; of DICOM and NIfTI the middle slice.

    Raises ValueError for a pipe, which would be waited for, and for more than MAX_PIXELS; otherwise
    whatever the decoder raises.
    """
    if medical.is_medical(path):
        return medical.open_slice(path, MAX_PIXELS)
    image = Image.open(path, formats=FORMATS) if path.is_file() else None
    if image is None or image.width * image.height > MAX_PIXELS:
        raise ValueError("no image, or one of too many pixels")
    return image


def decode(
    path: Path, size: tuple[int, int], channels: int, white: float | None = None
) -> np.ndarray | None:
    """Pixels uint8 [*size, channels] of one image file; None if it can not be decoded."""
    try:
        with open_image(path) as image:
            return pixels_of(image, size, channels, white)
    # Decoders raise many types on damaged files; the caller decides what a bad row means
    except Exception:
        return None


def pixels_of(
    image: Image.Image, size: tuple[int, int], channels: int, white: float | None = None
) -> np.ndarray:
    """Pixels uint8 [*size, channels] of an image, as ``read_images`` says.

    Raises whatever its decoder does.
    """
    # JPEG: decode at a reduced scale, still at least twice what is kept
    image.draft("L" if channels == 1 else "RGB", (2 * size[1], 2 * size[0]))
    ends = (0.0, white) if white else image.info.get(medical.ENDS, (0.0, DEEPEST))
    upright = _eight_bits(ImageOps.exif_transpose(image), *ends)
    if upright.has_transparency_data:
        drawn = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn)
    return _fit(upright, *size, channels)


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


def _eight_bits(image: Image.Image, black: float, white: float) -> Image.Image:
    """Greys of more than 8 bits scaled from black..white: Pillow's own conversion clips them."""
    if not image.mode.startswith(DEEP):
        return image
    greys = np.nan_to_num(np.asarray(image, dtype=np.float32)).clip(black, white) - black
    return Image.fromarray((greys * 255 / (white - black)).astype(np.uint8))


def modes(folder: Path) -> list[str]:
    """Pillow's modes of a folder's first SAMPLE images, without those that can not be read."""
    found = list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in [*filter(is_image, list_files(folder))][:SAMPLE]:
            with contextlib.suppress(Exception), open_image(folder / path) as image:
                found.append(image.mode)
    return found


def is_deep(mode: str) -> bool:
    """Whether it is one of greys of more than 8 bits."""
    return mode.startswith(DEEP)


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """One side's rows of a published data set, whose images may still be files.

    ``inputs``: uint8 [n, h, w, c], or names of files in ``folder``. ``labels``: int64 [n], codes of
    the label space. ``ids``: int64 [n], positions in the published files, or hashes of their names.
    ``public``: how many of the analyst's rows, the first, are no test rows. ``persons``: ids [n].
    """

    inputs: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    public: int = 0
    folder: Path | None = None
    persons: np.ndarray | None = None  # where the set names them

    @classmethod
    def of(cls, inputs: np.ndarray, labels: np.ndarray, public: int = 0) -> "Rows":
        """All rows of a file, in its order: most files can be read whole alone (SVHN: 1.9 GB)."""
        ids = np.arange(len(labels), dtype=np.int64)
        return cls(inputs=inputs, labels=labels.astype(np.int64), ids=ids, public=public)

    def take(self, rows: np.ndarray, public: int = 0) -> "Rows":
        known = ("inputs", "labels", "ids", "persons")
        taken = {name: vars(self)[name][rows] for name in known if vars(self)[name] is not None}
        return replace(self, **taken, public=public)

    def images(self, part: slice, shape: tuple[int, ...], progress: TaskProgress) -> Images:
        """A part of the rows, uint8 [n, *shape]."""
        chosen = self.inputs[part]
        if self.folder is None:
            return Images(chosen, np.ones(len(chosen), dtype=bool))
        return read_images(self.folder, chosen.tolist(), (shape[0], shape[1]), 3, progress)


def describe(config: DataConfig) -> Task:
    """The task. Undeclared names of classes are those that the test and public labels name.

    Raises InvalidInput, MissingData.
    """
    space, tested = config.declared_labels, bool(config.test)
    if config.draws and not (tested or space.names):
        raise no_names(space)
    field, path = ("data.test", config.test) if tested else ("data.public", config.public)
    root = Path() if config.draws and not tested else require_folder(field, path)
    for setting in ("label", "group") if tested else ():
        require_told(config, setting, field, root)
    if config.labels == "attributes":
        space = label_space(config.labels, columns_of(config, "label"))
        if not space.names:
            raise none_told(["columns of 0 and 1"], field, root)
    if config.labels == "class":
        space = _classes(config, space, field)
    return Task(space, (config.image_size, config.image_size, config.channels))


def _classes(config: DataConfig, space: LabelSpace, field: str) -> LabelSpace:
    """The classes that are declared, or those that PUBLIC labels name. Raises as ``describe``."""
    if not (space.names or config.draws):
        require_folder("data.public", config.public)
    test, public = written_labels(config)
    by_column = not by_folders(config)
    if by_column and config.test and not any(test):
        rule = f"images that {METADATA} names, by its column file_name or its first one"
        raise InvalidInput("data.test", rule, f"no label of any image in {config.test}")
    if not space.names and by_column and any([*test, *public]):
        space = label_space("class", classes_by_column(test, public, config.label, field))
    elif not space.names:
        space = label_space("class", class_names(test, public))
    names = space.names
    if len(names) < 2 or (config.test and not any(test)):
        if not config.test:
            raise no_names(space)
        rule = "a folder with at least 2 class folders"
        cure = f"If a CSV file has the labels, name it {METADATA} there and give --label COLUMN."
        found = listed(sorted({*filter(None, test)}))
        raise InvalidInput("data.test", rule, f"{config.test}: {found}", cure)
    code = code_of(names)
    if unknown := sorted(label for label in {*test} if written(label) and code(label) < 0):
        rule = f"a folder of the classes {listed(names)}"
        raise InvalidInput("data.test", rule, f"{config.test}: {unknown[0]}")
    return space


def labels_read(config: DataConfig) -> list[str]:
    """Lines about PUBLIC labels: folders that are no classes, or what a column's labels are."""
    if by_folders(config):
        empty = empty_folders(config)
        return [f"folders without images, which are no classes: {listed(empty)}"] if empty else []
    bare = ", whose paths are without suffixes" if without_suffixes(config) else ""
    told = "columns" if config.labels == "attributes" else f"the column {config.label}"
    lines = [f"labels: {told} of {METADATA} in each folder{bare}"]
    public = np.array(written_labels(config)[1], dtype=object)
    names = describe(config).labels.names if config.labels == "class" else ()
    return lines + (classes_read(names, public) if names else [])


def read_public(config: DataConfig, progress: TaskProgress) -> PublicData:
    """The PUBLIC folders, each in a constant order that mixes the classes.

    Raises InvalidInput, which names the damaged images of both, MissingData.
    """
    space, damaged, rows = describe(config).labels, list[str](), []
    size, channels = config.image_size, config.channels
    if config.draws:
        rows.append((shapes(config.drawn, size, channels), space.no_labels(config.drawn)))
    splits = [] if config.draws else [("data.public", config.public)]
    splits += [("data.test", config.test)] if config.test else []
    for field, path in splits:
        root = require_folder(field, path)
        paths = image_files(field, root)
        paths = [paths[row] for row in constant_order(paths)]
        images = read_images(root, paths, (size, size), channels, progress, config.white)
        damaged += [str(root / paths[row]) for row in np.flatnonzero(~images.readable)]
        labels = labels_of(config, space, field, root, paths)
        rows.append((images.pixels, labels))
    if damaged:
        rule = f"folders of readable images of at most {MAX_PIXELS} pixels"
        cure = f"Repair or remove {listed(damaged)}."
        raise InvalidInput("data.public, data.test", rule, f"{len(damaged)} damaged", cure)
    inputs, public_labels = rows[0]
    known = public_labels if has_truth(public_labels).any() else None
    if len(rows) == 1:
        return PublicData.untested(space, inputs, known)
    test_inputs, test_labels = rows[1]
    if not has_truth(test_labels).all():
        place = "in class folders" if by_folders(config) else f"with a label in {METADATA}"
        other = paths[int(np.flatnonzero(~has_truth(test_labels))[0])]
        raise InvalidInput("data.test", f"images {place} only", str(root / other))
    data = PublicData(inputs=inputs, labels=known, test_inputs=test_inputs, test_labels=test_labels)
    if not config.group:
        return data
    groups = told_of(config, "group", "data.test", root, paths)
    return replace(data, test_groups=np.array(groups, dtype=object))
