"""Records in one order, that of their ids: what indexes share that have the features at hand, and the checks of their input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from labelwall.teacher.search.index import Count, Nearest, Recent
from labelwall.teacher.search.int8_matmul import LARGEST, MAX_DIMENSIONS
from labelwall.teacher.search.kernels import Select, Similar
from labelwall.wall.errors import InvalidInput


class OrderedIndex(ABC):
    """Records by rising id inside, so that of equal distances the lower row comes first; in the order they were given outside.

    ``features``: int8 [n, d], entries in -63..63, d <= 4000, copied once where ids do not ascend; ``ids``: int64 [n], unique.
    Raises InvalidInput for any other shape, dtype or entry. n = 0 is allowed.
    """

    def __init__(self, features: np.ndarray, ids: np.ndarray) -> None:
        self._order = _order_by_id(features, ids)
        self._features = np.ascontiguousarray(
            features if self._order is None else features[self._order]
        )
        self.ids, self._recent = ids, Recent()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def dimensions(self) -> int:
        return self._features.shape[1]

    @property
    def features(self) -> np.ndarray:
        """The records' features in the order they were given, int8 [n, d]."""
        return self._as_given(self._features)

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """A sum over the records; see Index."""
        return count(self, labels)

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """Row positions of the min(m, n) nearest records: int64 [q, min(m, n)], by (squared distance, id).

        ``queries``: int8 [q, d], entries in -63..63. The last call's lists are kept, so that the two releases of a query
        search once; hence the result is read-only.
        """
        check_queries(queries, m, self.dimensions)
        width = min(m, len(self))
        return self._recent.lists(queries, width, lambda: self._found(queries, width).rows)

    def nearest(self, queries: np.ndarray, m: int) -> Nearest:
        """The min(m, n) nearest records with their squared distances; nothing is kept."""
        check_queries(queries, m, self.dimensions)
        return self._found(queries, min(m, len(self)))

    @abstractmethod
    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """See Index."""

    @abstractmethod
    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """See WholeIndex."""

    @abstractmethod
    def _search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows by rising id of the ``width`` nearest, and |x - q|^2 - |q|^2: int64 and int32 [q, width], in order."""

    def _found(self, queries: np.ndarray, width: int) -> Nearest:
        rows, scores = self._search(queries, width)
        scores += squared_norms(queries)[:, None]
        return Nearest(rows if self._order is None else self._order[rows], scores)

    def _as_given(self, rows: np.ndarray) -> np.ndarray:
        """What lies by rising id, in the order the records were given."""
        if self._order is None:
            return rows
        given = np.empty_like(rows)
        given[self._order] = rows
        return given

    def _outward(self, similar: Similar) -> Similar:
        """Rows by rising id as the caller's."""
        return (
            similar
            if self._order is None
            else Similar(self._order[similar.rows].astype(np.int32), similar.weights)
        )


def _order_by_id(features: np.ndarray, ids: np.ndarray) -> np.ndarray | None:
    """Rows by rising id, int64 [n], or None where they lie so. Raises InvalidInput unless records can be searched.

    An index holds its rows in this order, so that a stable sort by distance alone breaks ties by id.
    """
    check_features("features", features)
    if ids.dtype != np.int64 or ids.shape != features.shape[:1]:
        raise InvalidInput(
            "ids", "int64, one for each row of `features`", f"{ids.dtype} {list(ids.shape)}"
        )
    order = np.argsort(ids, kind="stable")
    if (np.diff(ids[order]) == 0).any():
        raise InvalidInput("ids", "unique", "duplicates")
    return None if (np.diff(ids) > 0).all() else order


def squared_norms(features: np.ndarray) -> np.ndarray:
    """int32 [n]; at most 4000 * 63^2. In blocks, so that no wide copy of all rows exists."""
    norms = np.empty(len(features), dtype=np.int32)
    for start in range(0, len(features), 4096):
        wide = features[start : start + 4096].astype(np.int32)
        norms[start : start + 4096] = np.einsum("ij,ij->i", wide, wide)
    return norms


def check_queries(queries: np.ndarray, m: int, dimensions: int) -> None:
    """Raises InvalidInput unless there can be lists of the ``m`` nearest of ``queries``."""
    check_features("queries", queries, dimensions)
    if m < 0:
        raise InvalidInput("m", "at least 0", m)


def check_features(name: str, features: np.ndarray, dimensions: int | None = None) -> None:
    """Raises InvalidInput unless int8 [n, d] with 1 <= d <= 4000 (or d as given) and entries in -63..63."""
    if (
        features.dtype != np.int8
        or features.ndim != 2
        or not 0 < features.shape[1] <= MAX_DIMENSIONS
    ):
        rule = f"int8 [n, d] with d in 1..{MAX_DIMENSIONS}"
        raise InvalidInput(name, rule, f"{features.dtype} {list(features.shape)}")
    if dimensions is not None and features.shape[1] != dimensions:
        raise InvalidInput(
            name, f"rows of {dimensions} dimensions, as the records are", features.shape[1]
        )
    if features.size and (features.min() < -LARGEST or features.max() > LARGEST):
        raise InvalidInput(name, f"integers in -{LARGEST}..{LARGEST}", "a larger one")
