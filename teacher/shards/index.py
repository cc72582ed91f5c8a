"""One exact index over all shards."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..search.by_person import ByPerson
from ..search.index import Count, PrefixCache, Ranked, check_queries
from ..search.kernels import Select, Similar
from .pools import Pool
from .worker import Summary

_ROW_BITS = 32  # of a merged key: squared distances are below 2^26, rows below 2^31
MERGED_ROWS = 1 << 18  # rows of all shards whose ids are in memory together, at most


class ShardedIndex:
    """The records of all shards, by ascending id.

    It stores 4 bytes a record (its row) and a label in 1, 2 or 8 (20 more with persons), and no
    features. Ids are 8 more once they are asked for, which only Ind-KNN and tests' tapes do. The n
    records are those with finite features under ``extractor`` (its hash) in every shard.

    ``labels``: int64 [n], or uint8 or uint16 where they fit: widen them before calculating.
    """

    def __init__(self, pool: Pool, extractor: str) -> None:
        self._pool, self._extractor = pool, extractor
        every = max(1, MERGED_ROWS // (2 * pool.size))
        parts: list[Summary] = pool.ask("summary", extractor, every)
        self.dimensions = parts[0].dimensions
        self._rows = [np.empty(part.rows, dtype=np.int32) for part in parts]  # [shard][its row]
        ends = [end for part in parts for end in part.labels]
        self.labels = np.empty(len(self), dtype=_narrowest(min(ends), max(ends)))
        # Between two limits lie ``size`` cuts: at most 2 * size * every <= MERGED_ROWS rows.
        limits = np.sort(np.concatenate([part.cuts for part in parts]))[:: pool.size].tolist()
        persons = self._merge(limits)
        self.persons = np.concatenate(persons) if persons else None
        self._by_person = None if self.persons is None else ByPerson(self, self.persons)
        self._recent = PrefixCache()

    def _merge(self, limits: list[int]) -> list[np.ndarray]:
        """Fill rows and labels in the order of ids, range by range; returns the persons, if any.

        ``limits``: the ranges' lowest ids, ascending.
        """
        done, persons = [0] * self._pool.size, []
        for low, high in zip(limits, [*limits, None][1:], strict=True):
            first = sum(done)
            parts = self._pool.ask("rows_between", self._extractor, low, high)
            ids, labels = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
            order = np.argsort(ids, kind="stable")
            self.labels[first : first + len(ids)] = labels[order]
            rows = np.empty(len(ids), dtype=np.int32)
            rows[order] = np.arange(first, first + len(ids), dtype=np.int32)
            for shard, (own_ids, *_) in enumerate(parts):
                own, rows = rows[: len(own_ids)], rows[len(own_ids) :]
                self._rows[shard][done[shard] : done[shard] + len(own)] = own
                done[shard] += len(own)
            owners = [own for *_, own in parts if own is not None]
            persons += [np.concatenate(owners)[order]] if owners else []
        return persons

    @cached_property
    def ids(self) -> np.ndarray:
        """int64 [n], ascending."""
        ids = np.empty(len(self), dtype=np.int64)
        of_shards = self._pool.ask("ids", self._extractor)
        for rows, own in zip(self._rows, of_shards, strict=True):
            ids[rows] = own
        return ids

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def __repr__(self) -> str:
        return "ShardedIndex()"

    @property
    def units(self) -> Ranked:
        """See Index."""
        return self if self._by_person is None else self._by_person

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """Rows of the min(m, n) nearest, by (squared distance, id); read-only. See Index."""
        check_queries(queries, m, self.dimensions)
        width = min(m, len(self))
        return self._recent.lists(queries, width, lambda: self._search(queries, width))

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """See Index."""
        similar = []
        of_shards = self._pool.ask("similar", self._extractor, queries, select, hashing)
        for parts in zip(*of_shards, strict=True):
            rows = [own[part.rows] for own, part in zip(self._rows, parts, strict=True)]
            weights = np.concatenate([part.weights for part in parts])
            similar.append(Similar(np.concatenate(rows).astype(np.int32), weights))
        return similar

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """The sum of the shards' counts; see Index.

        Raises ValueError for labels other than the shards' own.
        """
        if labels is not self.labels:
            raise ValueError("counts over shards are of their own labels")
        first, *others = self._pool.ask("total", self._extractor, count)
        return sum(others, start=first)

    def part(self, key: bytes, teachers: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(features int8 [m, d], labels int64 [m]) of a PATE teacher's records, by ascending id."""
        parts = self._pool.ask("part", self._extractor, key, teachers, number)
        features, labels, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(ids, kind="stable")
        return features[order], labels[order]

    def _search(self, queries: np.ndarray, width: int) -> np.ndarray:
        """Ask each shard for slightly more than its share, and again for all where that is too few.

        A merged list is complete if it ends before the end of every shard's truncated list.
        """
        merged, complete = self._merged(queries, width, len(self))
        if not complete:
            merged, _ = self._merged(queries, width, None)
        return merged & ((1 << _ROW_BITS) - 1)

    def _merged(
        self, queries: np.ndarray, width: int, total: int | None
    ) -> tuple[np.ndarray, bool]:
        """The first keys (distance, row) of the shards' lists: int64 [q, width].

        And whether all lists are long enough. ``total``: see Shard.nearest.
        """
        parts = self._pool.ask("nearest", self._extractor, queries, width, total)
        keys, ends = [], []
        for own, (rows, distances) in zip(self._rows, parts, strict=True):
            keys.append((distances.astype(np.int64) << _ROW_BITS) | own[rows])
            if rows.shape[1] < min(width, len(own)):
                ends.append(keys[-1][:, -1])
        merged = np.concatenate(keys, axis=1)
        merged.sort(axis=1)
        merged = merged[:, :width]
        return merged, not width or all((end >= merged[:, -1]).all() for end in ends)


def _narrowest(low: int, high: int) -> type[np.integer]:
    """The narrowest of uint8, uint16 and int64 that represents ``low`` to ``high``."""
    if low < 0 or high > np.iinfo(np.uint16).max:
        return np.int64
    return np.uint8 if high <= np.iinfo(np.uint8).max else np.uint16
