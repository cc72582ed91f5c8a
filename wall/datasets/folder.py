"""Image folders of one's own: a folder of images for each class, or an attributes.csv in each
folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import InvalidInput, MissingData
from ..labels.base import LabelSpace
from ..labels.registry import label_space
from ..progress import TaskProgress
from . import readers
from .config import DataConfig, PublicData, Task
from .tables import read_lines

# A file in an image folder: a header (path, then names of attributes), a line for each image.
ATTRIBUTES = "attributes.csv"
BY_PATH = "path"  # a value of data.person
LISTED = 10  # damaged files that one error names


def describe(config: DataConfig) -> Task:
    """The task. Names of classes are those of the test folder's folders, of attributes those of
    its table's columns, if not declared.
    """
    root = readers.require_folder("data.test", config.test)
    if config.labels == "attributes":
        names = _attribute_lines("data.test", root)[0][1:]
    else:
        names = readers.class_folders(root)
    space = config.declared_labels
    if not space.names:
        space = label_space(config.labels, names)
    if config.labels == "class":
        _require_classes(f"{config.test}", names, space.names)
    return Task(space, (config.image_size, config.image_size, config.channels))


def read_public(config: DataConfig, progress: TaskProgress | None) -> PublicData:
    """The PUBLIC folders, each in a constant order that mixes the classes.

    Raises InvalidInput, MissingData; one error names the damaged images of both.
    """
    space, damaged, rows = describe(config).labels, list[str](), []
    for field, path in (("data.public", config.public), ("data.test", config.test)):
        root = readers.require_folder(field, path)
        paths = [name for name in readers.list_files(root) if readers.is_image(name)]
        if not paths:
            rule = f"a folder with images ({', '.join(readers.SUFFIXES)})"
            raise InvalidInput(field, rule, str(root))
        paths = [paths[row] for row in readers.constant_order(paths)]
        images = readers.read_images(root, paths, config.image_size, config.channels, progress)
        damaged += [str(root / paths[row]) for row in np.flatnonzero(~images.readable)]
        optional = field == "data.public" and config.labels == "attributes"
        if optional and not (root / ATTRIBUTES).is_file():  # they serve reported metrics alone
            labels = space.no_labels(len(paths))
        else:
            labels = labels_of(space, field, root, paths)
        rows.append((images.pixels, labels))
    if damaged:
        more = f" and {len(damaged) - LISTED} more" if len(damaged) > LISTED else ""
        rule = f"folders of readable images of at most {readers.MAX_PIXELS} pixels"
        listed = ", ".join(damaged[:LISTED]) + more
        cure = f"Repair or remove {listed}."
        raise InvalidInput("data.public, data.test", rule, f"{len(damaged)} others", cure)
    (inputs, public_labels), (test_inputs, test_labels) = rows
    if (test_labels < 0).any():
        attributes = config.labels == "attributes"
        where = f"with a line in {ATTRIBUTES}" if attributes else "in class folders"
        raise InvalidInput("data.test", f"images {where} only", f"another one in {config.test}")
    known = (public_labels >= 0).all()
    return PublicData(inputs, public_labels if known else None, test_inputs, test_labels)


def labels_of(space: LabelSpace, field: str, root: Path, paths: Sequence[str]) -> np.ndarray:
    """Labels of images by their relative paths: int64 [n], or [n, c] for attributes; -1 for an
    image without one.

    Attributes are those of the folder's attributes.csv: 1 is present, 0 or -1 is absent. An image
    without a line, or with a line that says anything else, is -1 throughout; of several lines for
    one image the first counts. Raises MissingData without the file, InvalidInput where a name has
    no column: what lines hold raises nothing.
    """
    if space.kind != "attributes":
        return np.array([readers.class_of(path, space.names) for path in paths], dtype=np.int64)
    header, lines = _attribute_lines(field, root)
    absent = [name for name in space.names if name not in header[1:]]
    if absent:
        rule = f"a table with the columns {', '.join(space.names)}"
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
    """Header and lines of a folder's attributes.csv. Raises MissingData, InvalidInput for its
    header.
    """
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
    """Ids of images' persons; empty for an image that names none, or two.

    ``person``: path, for the folder below the class folder (the first folder where rows have
    attributes), or the name of a CSV file in ``root`` with lines of path and person below a header;
    lines that are no pair name nobody. Raises MissingData without the file: what lines hold raises
    nothing.
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


def _require_classes(test: str, folders: list[str], names: tuple[str, ...]) -> None:
    """Raises InvalidInput unless the test folder has folders of the named classes alone."""
    if len(names) < 2:
        rule = "a folder with at least 2 class folders"
        raise InvalidInput("data.test", rule, f"{test}: {folders}")
    unknown = sorted(set(folders) - set(names))
    if unknown:
        rule = f"a folder of the classes {', '.join(names)}"
        raise InvalidInput("data.test", rule, f"{test}: {unknown[0]}")
