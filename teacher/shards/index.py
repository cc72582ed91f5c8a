"""One exact index over all shards."""

from __future__ import annotations

import math

import numpy as np

from labelwall.teacher.search.by_person import ByPerson
from labelwall.teacher.search.index import Count, PrefixCache, Ranked, check_queries
from labelwall.teacher.search.kernels import Select, Similar
from labelwall.teacher.shards.pools import Pool
from labelwall.teacher.shards.requests import EmbeddedRows, NearestOf, PartOf, SimilarTo, TotalOf

_ROW_BITS = 32  # of a merged key: squared distances are below 2^26, rows below 2^31


class ShardedIndex:
    """The records of all shards, by ascending id.

    It stores 24 bytes a record (ids, labels, rows; 20 more with persons) and no features. The n
    records are those with finite features under ``extractor`` (its hash) in every shard.
    """

    def __init__(self, pool: Pool, shards: int, extractor: str) -> None:
        self._pool, self._shards, self._extractor = pool, shards, extractor
        parts = pool.ask([EmbeddedRows(extractor)] * shards)
        ids, labels = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
        self.dimensions = parts[0][2]
        order = np.argsort(ids, kind="stable")
        self.ids, self.labels = ids[order], labels[order]
        owners = [own for *_, own in parts if own is not None]
        self.persons = np.concatenate(owners)[order] if owners else None
        self._by_person = None if self.persons is None else ByPerson(self, self.persons)
        rows = np.empty(len(ids), dtype=np.int64)
        rows[order] = np.arange(len(ids))
        ends = np.cumsum([len(own_ids) for own_ids, *_ in parts])
        self._rows = np.split(rows, ends[:-1])  # [shard][its row] -> row
        self._recent = PrefixCache()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return "ShardedIndex()"

    @property
    def electorate(self) -> Ranked:
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
        request = SimilarTo(self._extractor, queries, select, hashing)
        found = []
        for parts in zip(*self._pool.ask([request] * self._shards), strict=True):
            rows = [own[part.rows] for own, part in zip(self._rows, parts, strict=True)]
            weights = np.concatenate([part.weights for part in parts])
            found.append(Similar(np.concatenate(rows).astype(np.int32), weights))
        return found

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """The sum of the shards' counts; see Index.

        Raises ValueError for labels other than the shards' own.
        """
        if labels is not self.labels:
            raise ValueError("counts over shards are of their own labels")
        first, *others = self._pool.ask([TotalOf(self._extractor, count)] * self._shards)
        return sum(others, start=first)

    def part(self, key: bytes, teachers: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(features int8 [m, d], labels int64 [m]) of a PATE teacher's records, by ascending id."""
        parts = self._pool.ask([PartOf(self._extractor, key, teachers, number)] * self._shards)
        features, labels, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(ids, kind="stable")
        return features[order], labels[order]

    def _search(self, queries: np.ndarray, width: int) -> np.ndarray:
        """Ask each shard for slightly more than its share, and again for all where that is too few.

        A merged list is complete if it ends before the end of every shard's truncated list.
        """
        share = width / max(1, len(self))
        limits = [min(width, len(rows)) for rows in self._rows]
        lengths = [
            min(limit, math.ceil(share * len(rows) + 6 * math.sqrt(share * len(rows)) + 8))
            for limit, rows in zip(limits, self._rows, strict=True)
        ]
        merged, ends = self._merged(queries, width, lengths)
        truncated = np.array(lengths) < np.array(limits)
        if width and (ends[truncated] < merged[:, -1]).any():
            merged, _ = self._merged(queries, width, limits)
        return merged & ((1 << _ROW_BITS) - 1)

    def _merged(
        self, queries: np.ndarray, width: int, lengths: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """The first keys (distance, row) of the shards' lists, and each shard's last key.

        int64 [q, width] and int64 [shards, q]. ``lengths``: of each shard's list.
        """
        parts = self._pool.ask([NearestOf(self._extractor, queries, m) for m in lengths])
        keys, ends = [], np.zeros((self._shards, len(queries)), dtype=np.int64)
        for shard, (rows, distances) in enumerate(parts):
            keys.append((distances.astype(np.int64) << _ROW_BITS) | self._rows[shard][rows])
            if rows.shape[1]:
                ends[shard] = keys[-1][:, -1]
        merged = np.concatenate(keys, axis=1)
        merged.sort(axis=1)
        return merged[:, :width], ends
