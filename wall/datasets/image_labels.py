"""What is told of images: by the folders that they lie in, or by a CSV file beside them.

An image's lines are those that name it. Its label and its person are functions of these alone.
"""

import unicodedata
from collections.abc import Iterable, Sequence
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

# A file in an image folder, by Hugging Face's name: a header with a column of paths, and others
METADATA = "metadata.csv"
FILE_NAME = "file_name"  # Hugging Face's column of paths; the first one counts if there is none
PUBLIC = ("data.test", "data.public")  # fields that name no private folder
BY_PATH = "path"  # a value of data.person and data.group
BITS = {"1": 1, "0": 0, "-1": 0}  # whether an attribute is present, as cells say it
SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp", ".tif", ".tiff", ".gif"),
    *medical.SUFFIXES,
)


def is_image(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def by_folders(config: DataConfig) -> bool:
    """Whether images' labels are the folders that they lie in; PUBLIC facts say so.

    Else metadata.csv tells them: attributes, values, a column that ``data.label`` names, or the
    default one, if the test images' file has it, or the public ones' if there are no test images.
    """
    if config.labels != "class" or config.label != DataConfig.label:
        return False
    return not any(config.label in _metadata(*place)[0] for place in _public_places(config)[:1])


def _public_places(config: DataConfig) -> list[tuple[str, Path]]:
    """The PUBLIC folders by their settings, the test rows' one first; those that there are."""
    places = config.places
    named = [(name, places[name]) for name in ("test", "public")]
    return [(f"data.{name}", Path(place)) for name, place in named if place]


def _metadata(field: str, root: Path) -> tuple[list[str], Iterable[list[str]]]:
    """(header, lines that fit it) of a folder's metadata.csv; nothing without one."""
    file = root / METADATA
    if not file.is_file():
        return [], ()
    if field not in PUBLIC:  # no private line is kept
        return _read(file)
    status = file.stat()
    return _kept(file, status.st_size, status.st_mtime_ns)


def _read(file: Path) -> tuple[list[str], Iterable[list[str]]]:
    header, lines = read_lines(file)
    return header, (cells for cells in lines if len(cells) == len(header))


@lru_cache(maxsize=2)  # of the public and of the test images
def _kept(file: Path, size: int, changed: int) -> tuple[list[str], Iterable[list[str]]]:
    header, lines = _read(file)
    return header, [*lines]


def columns_of(config: DataConfig, setting: str) -> list[str]:
    """Columns of metadata.csv that tell images' labels, persons or groups; none if folders do.

    ``setting``: label, person or group. Attributes without names are the columns of the test
    images' file, or of the public ones' if there are no test images, that say nothing but 0, 1 and
    -1, but for those of paths, persons and groups.
    """
    if setting != "label":
        named = vars(config)[setting]
        return [named] if named not in ("", BY_PATH) else []
    if by_folders(config):
        return []
    if config.labels != "attributes":
        return [config.label]
    if config.classes:
        return config.classes
    header, lines = next((_metadata(*place) for place in _public_places(config)), ([], ()))
    others = {*header[_place_of_paths(header) :][:1], config.person, config.group}
    rows = [*lines]
    said = [{row[place].strip() for row in rows} for place in range(len(header))]
    told = zip(header, said, strict=True)
    return [name for name, cells in told if name not in others and cells <= {"", *BITS}]


def require_told(
    config: DataConfig, setting: str, field: str, root: Path
) -> tuple[list[str], Iterable[list[str]]]:
    """``_metadata`` with the columns of a setting. Raises InvalidInput, MissingData without them.

    The header is public, of a private folder, too. No line below it is read before it is asked for.
    """
    columns, (header, lines) = columns_of(config, setting), _metadata(field, root)
    if columns and not header:
        raise none_told(columns, field, root)
    attributes = setting == "label" and config.labels == "attributes"
    name, what = "data.classes" if attributes else f"data.{setting}", f"{METADATA} in {field}"
    require_known(name, columns, header, f"a column of {what}")
    if twice := [column for column in columns if header.count(column) > 1]:
        rule = f"a column of {what} that differs from others in name"
        raise InvalidInput(name, rule, twice[0])
    return header, lines


def none_told(columns: Sequence[str], field: str, root: Path) -> MissingData:
    """The error of a folder whose file tells nothing of ``columns``."""
    text = f"`{field}` must hold {METADATA} with a header: image paths and {listed(columns)}."
    return MissingData(f"{text} Found none in {str(root)!r}.")


def cells_of(
    config: DataConfig, setting: str, field: str, root: Path, paths: Sequence[str]
) -> list[list[str]]:
    """Each image's cells of a setting's columns of metadata.csv, as ``columns_of`` has them.

    A cell is "" if no line of the image tells it, or two different ones do. Public images need no
    file. Raises as ``require_told``, and nothing for what lines hold.
    """
    columns = columns_of(config, setting)
    none = [""] * len(columns)
    if field == "data.public" and not {*columns} <= {*_metadata(field, root)[0]}:
        return [none for _ in paths]
    header, lines = require_told(config, setting, field, root)
    at, places = _place_of_paths(header), [header.index(column) for column in columns]
    told = dict[str, list[str]]()
    for line in lines:
        path, cells = _as_path(line[at]), [line[place].strip() for place in places]
        both = zip(told.get(path, cells), cells, strict=True)
        told[path] = [one if one == other else "" for one, other in both]
    return [told.get(_as_path(path), none) for path in image_names(config, paths)]


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
    suffixed = list[bool]()
    for field, root in _public_places(config)[:1] if not by_folders(config) else ():
        header, lines = _metadata(field, root)
        suffixed = [is_image(cells[_place_of_paths(header)].strip()) for cells in lines]
    return 2 * sum(suffixed) < len(suffixed)


def _place_of_paths(header: Sequence[str]) -> int:
    return header.index(FILE_NAME) if FILE_NAME in header else 0


def _bare(path: str) -> str:
    """A path without an image's suffix, the longest one: .nii.gz, not .gz."""
    return path[: len(path) - max(len(each) * path.lower().endswith(each) for each in SUFFIXES)]


def written_of(config: DataConfig, field: str, root: Path, paths: Sequence[str]) -> list[str]:
    """Images' labels as they are written, attributes' cells with commas; "" for none.

    Raises as ``cells_of``.
    """
    if by_folders(config):
        return [path.rpartition("/")[0].split("/")[0] for path in paths]
    rows = cells_of(config, "label", field, root, paths)
    return [", ".join(cells) if any(cells) else "" for cells in rows]


def written_labels(config: DataConfig) -> tuple[list[str], list[str]]:
    """(labels of the test images, of the PUBLIC ones), as they are written; "" for none."""
    found = {
        field: written_of(config, field, root, [*filter(is_image, list_files(root))])
        for field, root in _public_places(config)
    }
    return found.get("data.test", []), found.get("data.public", [])


def labels_of(
    config: DataConfig, space: LabelSpace, field: str, root: Path, paths: Sequence[str]
) -> np.ndarray:
    """Labels of images by their relative paths.

    int64 [n] of classes, or [n, c] of attributes, -1 for none; float64 [n] of values, NaN for none.
    Of attributes 1 is present, 0 or -1 absent; an image of which another cell tells anything else
    has no label. Raises as ``cells_of``.
    """
    if space.kind == "attributes":
        cells = cells_of(config, "label", field, root, paths)
        rows = np.array([[BITS.get(cell, -1) for cell in row] for row in cells], dtype=np.int64)
        rows = rows.reshape(len(paths), len(space.names))
        rows[(rows < 0).any(axis=1)] = -1
        return rows
    labels = written_of(config, field, root, paths)
    if space.kind == "class":
        return np.array([*map(lru_cache(code_of(space.names)), labels)], dtype=np.int64)
    test, public = written_labels(config)
    form = number_form(np.array([*test, *public], dtype=object))
    return numbers(np.array(labels, dtype=object), 1, form)[:, 0]


def told_of(
    config: DataConfig, setting: str, field: str, root: Path, paths: Sequence[str]
) -> list[str]:
    """Images' persons or groups (``setting``: person or group).

    "" where nothing tells one, or lines tell two. Raises as ``cells_of``.
    """
    if vars(config)[setting] == BY_PATH:
        place = 1 if by_folders(config) else 0
        folders = [path.split("/")[:-1] for path in paths]
        return [names[place] if len(names) > place else "" for names in folders]
    return ["".join(cells) for cells in cells_of(config, setting, field, root, paths)]
