"""Image folders of one's own: a folder of images for each class, or an attributes.csv in each
folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import InvalidInput
from ..labels.base import LabelSpace
from ..labels.registry import label_space
from ..progress import TaskProgress
from . import readers
from .base import DataSet, Labels, PublicRows, Settings

BY_PATH = "path"  # a value of data.person


class Folder(DataSet):
    """Names of classes are those of the test folder's folders, of attributes those of its table's
    columns, if not declared.
    """

    name = "folder"
    kinds: tuple[Labels, ...] = ("class", "attributes")
    takes_names = True
    persons = "setting"

    def label_space(self, config: Settings) -> LabelSpace:
        root = readers.require_folder("data.test", config.test)
        if config.labels == "attributes":
            found = readers.attribute_names("data.test", root)
        else:
            found = readers.class_folders(root)
        space = config.declared_labels
        if not space.names:
            space = label_space(config.labels, found)
        if config.labels == "class":
            _require_classes(f"{config.test}", found, space.names)
        return space

    def input_shape(self, config: Settings) -> tuple[int, ...]:
        return config.image_size, config.image_size, config.channels

    def read_public(self, config: Settings, progress: TaskProgress | None) -> PublicRows:
        space = self.label_space(config)
        inputs, labels = _read(config, "data.public", config.public, space, progress)
        test_inputs, test_labels = _read(config, "data.test", config.test, space, progress)
        if (test_labels < 0).any():
            rule = "images in class folders only"
            if config.labels == "attributes":
                rule = f"images with a line in {readers.ATTRIBUTES} only"
            raise InvalidInput("data.test", rule, f"{config.test}: an image outside them")
        return inputs, labels if (labels >= 0).all() else None, test_inputs, test_labels


def labels_of(space: LabelSpace, field: str, root: Path, paths: Sequence[str]) -> np.ndarray:
    """Labels of images by their relative paths: int64 [n], or [n, c] for attributes; -1 for an
    image without one.

    Raises MissingData, InvalidInput as readers.attributes_of.
    """
    if space.kind == "attributes":
        return readers.attributes_of(field, root, paths, space.names)
    return np.array([readers.class_of(path, space.names) for path in paths], dtype=np.int64)


def persons_of(
    field: str, root: Path, paths: Sequence[str], person: str, space: LabelSpace
) -> list[str]:
    """Ids of images' persons; empty for an image that names none, or two.

    ``person``: path, for the folder below the class folder (the first folder where rows have
    attributes), or the name of a CSV file in ``root``. Raises as ``readers.persons_in``.
    """
    if person != BY_PATH:
        return readers.persons_in(field, root, paths, person)
    place = 0 if space.kind == "attributes" else 1
    folders = [path.split("/")[:-1] for path in paths]
    return [names[place] if len(names) > place else "" for names in folders]


def _require_classes(test: str, found: list[str], names: tuple[str, ...]) -> None:
    """Raises InvalidInput unless the test folder has folders of the named classes alone."""
    if len(names) < 2:
        rule = "a folder with at least 2 class folders"
        raise InvalidInput("data.test", rule, f"{test}: {found}")
    unknown = sorted(set(found) - set(names))
    if unknown:
        rule = f"a folder of the classes {', '.join(names)}"
        raise InvalidInput("data.test", rule, f"{test}: {unknown[0]}")


def _read(
    config: Settings,
    field: str,
    path: str | None,
    space: LabelSpace,
    progress: TaskProgress | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels (-1 for none) of one PUBLIC folder, in a constant order that mixes the
    classes.
    """
    root = readers.require_folder(field, path)
    paths = [path for path in readers.list_files(root) if readers.is_image(path)]
    if not paths:
        rule = f"a folder with images ({', '.join(readers.SUFFIXES)})"
        raise InvalidInput(field, rule, str(root))
    paths = [paths[row] for row in readers.constant_order(paths)]
    images = readers.read_images(root, paths, config.image_size, config.channels, progress)
    if not images.readable.all():
        damaged = str(root / paths[int(np.argmin(images.readable))])
        rule = "a folder of readable images"
        raise InvalidInput(field, rule, damaged, "Repair the file or take it out.")
    optional = field == "data.public" and not (root / readers.ATTRIBUTES).is_file()
    if config.labels == "attributes" and optional:  # they serve reported metrics alone
        return images.pixels, space.no_labels(len(paths))
    return images.pixels, labels_of(space, field, root, paths)
