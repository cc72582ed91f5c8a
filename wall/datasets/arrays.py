"""Arrays of one's own: an npz file, a folder of npy files, or a folder of an npz file per split.

Their dtypes and the shapes of their rows are public. No other array of a file is decompressed, and
no other file of a folder opened.
"""

import contextlib
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from ..errors import InvalidInput, MissingData, listed, shape_text
from ..label_kinds import label_space
from ..labels import LabelSpace, class_names, has_truth, readable
from ..progress import TaskProgress
from .data_config import MANY, MOST_COLUMNS, DataConfig, PublicData, Task, as_values, no_names

# A larger PUBLIC array of an npz file is refused if it was compressed more often
PACKED_BYTES, PACKED_TIMES = 1 << 30, 100


def describe(config: DataConfig) -> Task:
    """The task. Undeclared names are the texts of test_y and public_y, or their numbers."""
    space, path = config.declared_labels, require_arrays(config.path)
    if not space.names:
        columns = {name: required_member(path, name) for name in _labelled(path)}
        if any(column.dtype.kind == "U" for column in columns.values()):
            shown = {name: readable(column) for name, column in columns.items()}
            names = class_names(shown.get("test_y", []), shown.get("public_y", []))
            space = label_space(config.labels, names)
        elif len(known := _known(space, config)):
            space = space.numbered(known)
        if not space.names:
            raise no_names(space)
    return Task(space, _inputs(config, "public_x").shape[1:])


def _labelled(path: Path) -> dict[str, Callable[..., np.ndarray]]:
    """The PUBLIC arrays of labels that there are, with how they are read."""
    given: dict[str, Callable[..., np.ndarray]] = {"test_y": _labels} if _tested(path) else {}
    return given | ({"public_y": _public_labels} if has_member(path, "public_y") else {})


def _known(space: LabelSpace, config: DataConfig) -> np.ndarray:
    """All PUBLIC labels that are there; empty where none is."""
    given = _labelled(require_arrays(config.path))
    found = [read(space, config, name, None) for name, read in given.items()]
    found = [labels[has_truth(labels)] for labels in found if has_truth(labels).any()]
    return np.concatenate(found) if found else np.zeros(0)


def labels_read(config: DataConfig) -> list[str]:
    """Lines about classes by number: those that no PUBLIC label shows, and very many."""
    space, found = config.declared_labels, describe(config).labels
    columns = [
        required_member(config.path, name) for name in _labelled(require_arrays(config.path))
    ]
    if space.names or space.kind != "class" or any(each.dtype.kind == "U" for each in columns):
        return []
    absent = np.setdiff1d(np.arange(found.num_labels), _known(space, config))
    line = f"no public or test row is of class {listed([*map(str, absent)])}: labels count from 0; "
    lines = [f"{line}as texts, those that occur are the classes"] if len(absent) else []
    if found.num_labels > MANY:
        lines.append(as_values(found.num_labels))
    return lines


def read_public(config: DataConfig, progress: TaskProgress) -> PublicData:
    inputs, labels, path = _inputs(config, "public_x"), None, require_arrays(config.path)
    space = describe(config).labels
    if has_member(path, "public_y"):
        labels = _public_labels(space, config, "public_y", len(inputs))
    if not _tested(path):
        return PublicData.untested(space, inputs, labels)
    test_inputs = _inputs(config, "test_x")
    if test_inputs.dtype != inputs.dtype or test_inputs.shape[1:] != inputs.shape[1:]:
        rule = f"{shape_text(inputs)}, as public_x is"
        raise InvalidInput("test_x", rule, shape_text(test_inputs))
    return PublicData(
        inputs=inputs,
        labels=labels,
        test_inputs=test_inputs,
        test_labels=_labels(space, config, "test_y", len(test_inputs)),
    )


def _tested(path: Path) -> bool:
    """Whether there is a test split; a part of one is an error elsewhere."""
    return has_member(path, "test_x") or has_member(path, "test_y")


def _inputs(config: DataConfig, name: str) -> np.ndarray:
    """A PUBLIC array of inputs, canonical, finite and not empty."""
    rows = canonical_rows(name, required_member(config.path, name))
    if len(rows) == 0:
        raise InvalidInput(name, "at least one row", "none")
    require_finite(name, rows)
    return rows


def require_finite(name: str, rows: np.ndarray) -> None:
    """Raise InvalidInput, which names the first bad row, unless PUBLIC rows are finite."""
    if not np.isfinite(rows).all():
        row = int(np.argmin(np.isfinite(rows).all(axis=1)))
        raise InvalidInput(name, "finite", f"NaN, or a number beyond float32, in row {row}")


def _labels(space: LabelSpace, config: DataConfig, name: str, rows: int | None) -> np.ndarray:
    """PUBLIC labels; ``rows``: how many there must be."""
    return space.check_public(name, required_member(config.path, name), rows)


def _public_labels(
    space: LabelSpace, config: DataConfig, name: str, rows: int | None
) -> np.ndarray:
    """PUBLIC labels of which some are missing: -1, of values NaN."""
    labels = space.canonical(name, required_member(config.path, name))
    if rows not in (None, len(labels)):
        raise InvalidInput(name, f"{space.form} of {rows} rows", len(labels))
    if (known := has_truth(labels)).any():
        space.check_public(name, labels[known], None)
    return labels


def require_arrays(path: str | Path | None) -> Path:
    """The npz file or folder that ``data.path`` names. Raises InvalidInput, MissingData."""
    rule = "an existing npz file or folder of npy files"
    if not path:
        raise InvalidInput("data.path", f"{rule}, for the source 'arrays'", path)
    if not Path(path).exists():
        raise MissingData(f"`data.path` must be {rule}. Found {str(path)!r}.")
    # A pipe would be waited for
    if not Path(path).is_dir() and not (Path(path).is_file() and zipfile.is_zipfile(path)):
        raise InvalidInput("data.path", "an npz file, as numpy.savez writes it", str(path))
    return Path(path)


def has_member(path: Path, name: str) -> bool:
    """Whether an npz file lists an array of that name, or a folder has it; nothing is read."""
    with _numbers(name):
        return _member(path, name).is_file()


def read_member(path: Path, name: str) -> np.ndarray | None:
    """One array of an npz file or of a folder; None if there is none.

    Raises InvalidInput for a file that is no npz, a damaged array, or one of Python objects.
    """
    return required_member(path, name) if has_member(require_arrays(path), name) else None


def required_member(path: str | Path | None, name: str) -> np.ndarray:
    """``read_member``, which raises InvalidInput if the array is not there."""
    place = require_arrays(path)
    if not has_member(place, name):
        rule = f"a folder with {name}.npy" if place.is_dir() else f"an npz file with {name}"
        raise InvalidInput("data.path", rule, str(place))
    if place.is_file() and not name.startswith("private"):  # a private size depends on the rows
        with _numbers(name), zipfile.ZipFile(place) as file:
            packed = file.getinfo(f"{name}.npy")
        if packed.file_size > max(PACKED_BYTES, PACKED_TIMES * packed.compress_size):
            rule = f"compressed at most {PACKED_TIMES} times, or of {PACKED_BYTES} bytes"
            cure = "numpy.savez writes it without compression."
            raise InvalidInput(name, rule, f"{packed.file_size} bytes", cure)
    with _numbers(name), _member(place, name).open("rb") as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        len(array)  # raises for a single number
        return array


def member_blocks(path: Path, name: str, size: int, start: int = 0) -> Iterator[np.ndarray]:
    """Rows of an array from row ``start`` on, in blocks of ``size``.

    The file is read once; an array that is stored by columns is read whole. Raises InvalidInput as
    ``member_rows`` does, and for an array that ends early.
    """
    with _numbers(name), _member(path, name).open("rb") as member:
        dtype, shape, by_columns = _header(member)
        if by_columns:
            whole = required_member(path, name)
            yield from (
                whole[first : first + size].copy() for first in range(start, len(whole), size)
            )
            return
        width = dtype.itemsize * math.prod(shape[1:])
        member.seek(start * width, os.SEEK_CUR)
        for first in range(start, shape[0], size):
            rows = min(size, shape[0] - first)
            content = bytearray(member.read(rows * width))
            yield np.frombuffer(content, dtype).reshape(rows, *shape[1:])


def member_form(path: Path, name: str) -> np.ndarray:
    """No rows of an array, of its dtype and shape. Raises InvalidInput as ``member_rows`` does."""
    with _numbers(name), _member(require_arrays(path), name).open("rb") as member:
        dtype, shape, _ = _header(member)
        return np.zeros((0, *shape[1:]), dtype)


def member_rows(path: Path, name: str) -> int:
    """How many rows an array has. Raises InvalidInput, also for one that is not of numbers."""
    with _numbers(name), _member(require_arrays(path), name).open("rb") as member:
        return _header(member)[1][0]


def _member(path: Path, name: str) -> Path | zipfile.Path:
    """An array as an npy file: in an npz file, in a folder, or in a folder's npz of its split."""
    split = path / f"{name.partition('_')[0]}.npz"
    whole = split if split.is_file() else path
    folder = path if whole.is_dir() else zipfile.Path(whole)
    return folder / f"{name}.npy"


def _header(member: IO[bytes]) -> tuple[np.dtype, tuple[int, ...], bool]:
    """Dtype and shape of the array that follows, and whether it is stored by columns.

    Raises ValueError unless it is rows of numbers or texts.
    """
    layout = np.lib.format
    old = layout.read_magic(member) == (1, 0)
    read = layout.read_array_header_1_0 if old else layout.read_array_header_2_0
    shape, by_columns, dtype = read(member)
    if dtype.hasobject or min(shape, default=-1) < 0:
        raise ValueError("not rows of numbers")
    return dtype, shape, by_columns


@contextlib.contextmanager
def _numbers(name: str) -> Iterator[None]:
    """Raises InvalidInput for what goes wrong inside.

    On damaged files zipfile, the decompressors and numpy raise many types, and MemoryError for
    sizes that a header makes up.
    """
    try:
        yield
    except Exception as error:
        rule = "a readable array of numbers"
        raise InvalidInput(name, rule, "a damaged member, or Python objects") from error


def canonical_rows(name: str, rows: np.ndarray) -> np.ndarray:
    """Rows in the shape and dtype that the wall carries.

    Images uint8 [n, h, w] or [n, h, w, c] become uint8 [n, h, w, c]; other numbers [n, d] become
    float32 [n, d]. A number that float32 can not hold becomes infinite, quietly: the caller refuses
    or drops such rows. Raises InvalidInput, without the number of rows.
    """
    if rows.dtype == np.uint8 and rows.ndim == 3:
        rows = rows[..., np.newaxis]
    image = rows.dtype == np.uint8 and rows.ndim == 4 and rows.shape[-1] in (1, 3)
    # uint8 [n, d] may be flattened images, whose shape is lost
    vector = rows.dtype.kind in "iuf" and rows.dtype != np.uint8 and rows.ndim == 2
    vector = vector and rows.shape[1] <= MOST_COLUMNS
    if not (image or vector) or 0 in rows.shape[1:]:
        rule = "images uint8 [n, h, w] or [n, h, w, 1 or 3], or vectors float or int [n, d]"
        rule += f" of at most {MOST_COLUMNS} numbers"
        deep = rows.dtype.kind in "uif" and rows.ndim in (3, 4)
        cure = "With one public white: `(rows.clip(0, white) * (255.0 / white)).astype('uint8')`."
        raise InvalidInput(name, rule, shape_text(rows), cure if deep else "")
    with np.errstate(all="ignore"):
        return rows if image else rows.astype(np.float32)
