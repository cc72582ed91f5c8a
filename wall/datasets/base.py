"""What a data set says of itself, and how its rows are read: the interface of every file beside
this one.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from ..errors import MissingData
from ..labels.base import LabelSpace
from ..labels.registry import label_space
from ..progress import TaskProgress

Labels = Literal["class", "attributes", "value"]
# Public inputs, their labels or None, test inputs, test labels: the fields of sources.PublicData.
PublicRows = tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]


class Settings(Protocol):
    """What a data set reads of sources.DataConfig. The private folder is not among it."""

    @property
    def labels(self) -> Labels: ...
    @property
    def root(self) -> str: ...
    @property
    def download(self) -> bool: ...
    @property
    def public(self) -> str | None: ...
    @property
    def test(self) -> str | None: ...
    @property
    def path(self) -> str | None: ...
    @property
    def label(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def ignore(self) -> list[str]: ...
    @property
    def person(self) -> str: ...
    @property
    def image_size(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def declared_labels(self) -> LabelSpace: ...


class DataSet(ABC):
    """One data set.

    ``name``: its ``data.source``. ``kinds``: the ``data.labels`` that its rows can have.

    ``takes_names``: whether ``data.classes`` names its classes or attributes. ``private_records``:
    size of a published private split, None where the custodian alone knows it.
    ``persons``: whether ``data.person`` names where a private row's person stands, or a member of
    the file does; None where rows have no persons.
    """

    name: ClassVar[str]
    kinds: tuple[Labels, ...]
    takes_names: ClassVar[bool] = False
    private_records: ClassVar[int | None] = None
    persons: ClassVar[Literal["setting", "member"] | None] = None

    @abstractmethod
    def label_space(self, config: Settings) -> LabelSpace:
        """The labels of the rows, from public facts alone. Raises InvalidInput, MissingData."""

    @abstractmethod
    def input_shape(self, config: Settings) -> tuple[int, ...]:
        """(height, width, channels) of images, (dimensions,) of vectors.

        Raises InvalidInput, MissingData.
        """

    @abstractmethod
    def read_public(self, config: Settings, progress: TaskProgress | None) -> PublicRows:
        """The public rows and the public test split. Raises InvalidInput, MissingData."""


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Rows of a published data set.

    ``inputs``: uint8 [n, h, w, c]. ``labels``: int64 [n], codes of the label space. ``ids``: int64
    [n], positions in the published files. ``readable``: bool [n], false where an image file could
    not be decoded (its pixels are zero).
    """

    inputs: np.ndarray
    labels: np.ndarray
    ids: np.ndarray
    readable: np.ndarray

    @classmethod
    def of(cls, inputs: np.ndarray, labels: np.ndarray) -> Rows:
        """All rows of a file, in its order."""
        n = len(labels)
        ids = np.arange(n, dtype=np.int64)
        return cls(inputs, labels.astype(np.int64), ids, np.ones(n, dtype=bool))

    def take(self, rows: slice | np.ndarray) -> Rows:
        """A selection of the rows."""
        return Rows(self.inputs[rows], self.labels[rows], self.ids[rows], self.readable[rows])

    def joined(self, more: Rows) -> Rows:
        """These rows, then those of ``more``."""
        pairs = zip(self._columns(), more._columns(), strict=True)
        return Rows(*(np.concatenate(pair) for pair in pairs))

    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.inputs, self.labels, self.ids, self.readable


class Published(DataSet):
    """A published benchmark with a fixed split. No split looks at a label.

    Where the splits are separate files, the public side opens no private one. ``names``: of its
    classes or attributes, by ``data.labels``. ``shape``: of an image. ``licence``: as its authors
    state it; "see source" where none is recorded here.
    """

    names: ClassVar[Mapping[Labels, tuple[str, ...]]]
    shape: ClassVar[tuple[int, int, int]]
    licence: ClassVar[str] = "see source"

    def __init__(self) -> None:
        self.kinds = tuple(self.names)

    @abstractmethod
    def _private(self, config: Settings, progress: TaskProgress | None) -> Rows:
        """The private split."""

    @abstractmethod
    def _public(self, config: Settings, progress: TaskProgress | None) -> tuple[Rows, Rows]:
        """The public split and the test split."""

    def label_space(self, config: Settings) -> LabelSpace:
        return label_space(config.labels, self.names[config.labels])

    def input_shape(self, config: Settings) -> tuple[int, ...]:
        return self.shape

    def read_public(self, config: Settings, progress: TaskProgress | None) -> PublicRows:
        public, test = self._public(config, progress)
        space = self.label_space(config)
        return public.inputs, space.expand(public.labels), test.inputs, space.expand(test.labels)

    def private_rows(self, config: Settings, progress: TaskProgress | None = None) -> Rows:
        """The PRIVATE split; teacher.records alone calls this. Raises MissingData."""
        return self._private(config, progress)

    def private_blocks(
        self, config: Settings, block: int, start: int
    ) -> Iterator[tuple[int, int, Rows]]:
        """The same rows from row ``start`` on, in blocks: (rows given or left out by then, of how
        many, a block).

        torchvision loads the files whole (SVHN: 1.9 GB).
        """
        rows = self._private(config, None)
        yield from blocks(len(rows.ids), block, start, rows.take)


def blocks(
    total: int, block: int, start: int, take: Callable[[slice], Rows]
) -> Iterator[tuple[int, int, Rows]]:
    """Rows from ``start`` to ``total`` in blocks of ``block``, as ``Published.private_blocks``
    gives them.
    """
    for first in range(start, total, block):
        yield min(first + block, total), total, take(slice(first, first + block))


def open_torchvision(build: Callable[[], Any], needs: str, config: Settings) -> Any:
    """A torchvision data set, or MissingData in one line. Progress goes to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return build()
    except Exception as error:  # torchvision and what it downloads with raise many types
        root = str(Path(config.root))
        tried = "or set data.download to true"
        if config.download:
            tried = "and the download failed: put the files there"
        raise MissingData(
            f"`data.root` must hold {needs}, complete. Found none in {root!r}, {tried}."
        ) from error
