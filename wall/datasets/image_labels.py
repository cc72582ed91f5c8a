"""What is told of images: by the folders that they lie in, or by a CSV file beside them.

An image's lines are those that name it. Its label and its person are functions of these alone.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..errors import InvalidInput, MissingData, listed, require_known
from ..labels import LabelSpace, code_of
from . import medical
from .columns import number_form, numbers
from .csv_files import read_lines
from .data_config import DataConfig
from .folders import list_files

# A file in an image folder: a header (path, then names of attributes), a line for each image
ATTRIBUTES = "attributes.csv"
# Another one, by Hugging Face's name: a header with a column of paths, and one of labels
METADATA = "metadata.csv"
FILE_NAME = "file_name"  # Hugging Face's column of paths; the first one counts if there is none
BY_PATH = "path"  # a value of data.person
SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp", ".tif", ".tiff", ".gif"),
    *medical.SUFFIXES,
)


def is_image(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def class_folders(root: Path) -> list[str]:
    """Names of the folders directly in ``root`` that hold images, one for each of these."""
    return [path.split("/")[0] for path in list_files(root) if is_image(path) and "/" in path]


def in_metadata(config: DataConfig) -> bool:
    """Whether metadata.csv tells images' labels, rather than their folders; PUBLIC facts say so.

    It does if they are values, if ``data.label`` names a column, or if metadata.csv of the test
    images has the default one, or that of the public images if there are no test images.
    """
    if config.labels != "class" or config.label != DataConfig.label:
        return config.labels != "attributes"
    first = _public_roots(config)[:1]
    return any(config.label in _header(root / METADATA) for _, root in first)


def by_folders(config: DataConfig) -> bool:
    """Whether images' labels are the folders that they lie in."""
    return config.labels == "class" and not in_metadata(config)


def _public_roots(config: DataConfig) -> list[tuple[str, Path]]:
    """The PUBLIC folders by their settings, the test rows' one first; those that there are."""
    places = config.places
    named = [(name, places[name]) for name in ("test", "public")]
    return [(f"data.{name}", Path(place)) for name, place in named if place]


def _header(file: Path) -> list[str]:
    return read_lines(file)[0] if file.is_file() else []


def written_labels(config: DataConfig) -> tuple[list[str], list[str]]:
    """(labels of the test images, of the PUBLIC ones), as they are written; "" for none."""
    if in_metadata(config):
        found = {name: _public_cells(name, root, config) for name, root in _public_roots(config)}
    else:
        found = {name: class_folders(root) for name, root in _public_roots(config)}
    return found.get("data.test", []), found.get("data.public", [])


def _public_cells(field: str, root: Path, config: DataConfig) -> list[str]:
    """Labels of a PUBLIC folder's images as written; none if public rows have no such column."""
    if field == "data.public" and config.label not in _header(root / METADATA):
        return []
    return cells_of(config, field, root, [*filter(is_image, list_files(root))], config.label)


def require_told(config: DataConfig, field: str, root: Path) -> None:
    """Raise InvalidInput or MissingData unless the file that tells a folder's labels has its form.

    Its header is public, of a private folder, too. No line below it is read.
    """
    if config.labels == "attributes":
        attribute_lines(field, root)
    elif in_metadata(config):
        _metadata(field, root, config.label)


def _metadata(field: str, root: Path, column: str) -> Iterator[tuple[str, str]]:
    """(path, cell of a column) in each line of a folder's metadata.csv.

    Raises MissingData without the file, InvalidInput without the column.
    """
    if not (root / METADATA).is_file():
        raise MissingData(
            f"`{field}` must hold {METADATA}: image paths and the column {column!r}, which "
            f"data.label names. Found none in {str(root)!r}."
        )
    header, lines = read_lines(root / METADATA)
    require_known("data.label", [column], header, f"a column of {METADATA} in {field}")
    if header.count(column) > 1:
        rule = f"a column of {METADATA} in {field} that differs from others in name"
        raise InvalidInput("data.label", rule, column)
    at, place = _place_of_paths(header), header.index(column)
    return ((cells[at], cells[place]) for cells in lines if len(cells) == len(header))


def cells_of(
    config: DataConfig, field: str, root: Path, paths: Sequence[str], column: str
) -> list[str]:
    """Each image's cell of a column of metadata.csv; "" if no line, or two different ones, tell it.

    Raises as ``_metadata``.
    """
    return _one_each(image_names(config, paths), _metadata(field, root, column))


def _one_each(paths: Sequence[str], told: Iterator[tuple[str, str]]) -> list[str]:
    claims = dict[str, set[str]]()
    for path, cell in told:
        claims.setdefault(_as_path(path), set()).add(cell.strip())
    each = (claims.get(_as_path(path), set()) for path in paths)
    return [min(cells) if len(cells) == 1 else "" for cells in each]


def _as_path(cell: str) -> str:
    """A path as it is compared: by slashes, in Unicode's composed form, from the folder on."""
    return unicodedata.normalize("NFC", cell.strip().replace("\\", "/")).removeprefix("./")


def image_names(config: DataConfig, paths: Sequence[str]) -> list[str]:
    """What names images as records, and in metadata.csv: their paths, or these without suffixes."""
    return list(map(_bare, paths) if without_suffixes(config) else paths)


def without_suffixes(config: DataConfig) -> bool:
    """Whether metadata.csv tells labels, and most of its PUBLIC lines name images without suffixes.

    Those of the test images count, or of the public images if there are no test images.
    """
    for _, root in _public_roots(config)[:1] if in_metadata(config) else ():
        if header := _header(root / METADATA):
            at = _place_of_paths(header)
            lines = read_lines(root / METADATA)[1]
            suffixed = [is_image(each[at].strip()) for each in lines if len(each) == len(header)]
            return 2 * sum(suffixed) < len(suffixed)
    return False


def _place_of_paths(header: Sequence[str]) -> int:
    return header.index(FILE_NAME) if FILE_NAME in header else 0


def _bare(path: str) -> str:
    """A path without an image's suffix, the longest one: .nii.gz, not .gz."""
    return path[: len(path) - max(len(each) * path.lower().endswith(each) for each in SUFFIXES)]


def labels_of(
    config: DataConfig, space: LabelSpace, field: str, root: Path, paths: Sequence[str]
) -> np.ndarray:
    """Labels of images by their relative paths.

    int64 [n] of classes, or [n, c] of attributes, -1 for none; float64 [n] of values, NaN for none.
    In attributes.csv 1 is present, 0 or -1 absent. An image without a line, or with a line that
    says anything else, has no label; the first of several lines counts there. In metadata.csv
    lines that differ tell none. Raises MissingData without the file, InvalidInput if a name has no
    column, and nothing for what lines hold.
    """
    if space.kind == "attributes":
        return _attributes_of(space, field, root, paths)
    if by_folders(config):
        code, folders = lru_cache(code_of(space.names)), [p.rpartition("/")[0] for p in paths]
        return np.array([code(folder.split("/")[0]) for folder in folders], dtype=np.int64)
    cells = cells_of(config, field, root, paths, config.label)
    if space.kind == "class":
        return np.array([*map(code_of(space.names), cells)], dtype=np.int64)
    test, public = written_labels(config)
    form = number_form(np.array([*test, *public], dtype=object))
    return numbers(np.array(cells, dtype=object), 1, form)[:, 0]


def public_labels_of(
    config: DataConfig, space: LabelSpace, field: str, root: Path, paths: Sequence[str]
) -> np.ndarray:
    """``labels_of`` PUBLIC images, of which test rows alone need a file that tells them."""
    if field == "data.public":
        attributes = config.labels == "attributes"
        told = ATTRIBUTES if attributes else METADATA if in_metadata(config) else ""
        header = _header(root / told) if told else []
        if told and not (header if attributes else config.label in header):
            return space.no_labels(len(paths))
    return labels_of(config, space, field, root, paths)


def _attributes_of(space: LabelSpace, field: str, root: Path, paths: Sequence[str]) -> np.ndarray:
    header, lines = attribute_lines(field, root)
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


def attribute_lines(field: str, root: Path) -> tuple[list[str], Iterator[list[str]]]:
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
    config: DataConfig, field: str, root: Path, paths: Sequence[str], person: str
) -> list[str]:
    """What ``data.person`` tells of images, or ``data.group``; "" where it tells nothing, or two.

    ``person``: BY_PATH, a column of metadata.csv, or the name of a CSV file of paths and persons.
    Raises MissingData without such a file, and nothing for what lines hold.
    """
    if person == BY_PATH:
        place = 1 if by_folders(config) else 0
        folders = [path.split("/")[:-1] for path in paths]
        return [names[place] if len(names) > place else "" for names in folders]
    if person in _header(root / METADATA):
        return cells_of(config, field, root, paths, person)
    if not (root / person).is_file():
        text = f"`{field}` must hold {person}, or {METADATA} a column of this name: image paths and"
        raise MissingData(f"{text} persons or groups. Found none in {str(root)!r}.")
    header, lines = read_lines(root / person)
    if len(header) != 2:
        rule = f"a column of {METADATA}, or a file with the two columns path and person, or group"
        name = "data.group" if field == "data.test" else "data.person"
        raise InvalidInput(name, rule, f"{person} with {len(header)} columns")
    return _one_each(paths, ((cells[0], cells[1]) for cells in lines if len(cells) == 2))
