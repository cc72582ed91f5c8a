"""The configured data set, and its public part: task, public inputs, public test split.

A new published set is an entry of ``config.SOURCES`` and one of ``published.PUBLISHED``.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InvalidInput
from ..progress import TaskProgress
from . import arrays, readers, tables
from .config import SOURCES, DataConfig, Labels, PublicData, Source, Task
from .published import PUBLISHED, Published

__all__ = ["SOURCES", "DataConfig", "Labels", "PublicData", "Source", "Task"]

Describe = Callable[[DataConfig], Task]
ReadPublic = Callable[[DataConfig, TaskProgress | None], PublicData]
_READERS: dict[str, tuple[Describe, ReadPublic]] = {
    "folder": (readers.describe, readers.read_public),
    "arrays": (arrays.describe, arrays.read_public),
    "table": (tables.describe, tables.read_public),
    **{name: (known.describe, known.read_public) for name, known in PUBLISHED.items()},
}


def describe(config: DataConfig) -> Task:
    """The task, from public facts alone: nothing of the private split is opened or listed.

    Raises InvalidInput, MissingData.
    """
    return _READERS[config.source][0](config)


def read_public(config: DataConfig, progress: TaskProgress | None = None) -> PublicData:
    """The public rows and the public test split. ``progress`` hears of images that are decoded.

    Raises InvalidInput (which names damaged image files, since they are public), MissingData.
    """
    return _READERS[config.source][1](config, progress)


def published(name: str) -> Published:
    """The published data set called ``name``. Raises InvalidInput for any other."""
    if name not in PUBLISHED:
        raise InvalidInput("data.source", "a published data set", name)
    return PUBLISHED[name]
