"""One index over all shards: their parts, put together exactly."""

from __future__ import annotations

import math

import numpy as np

from labelwall.teacher.search.index import Count, PrefixCache, check_queries
from labelwall.teacher.search.kernels import Select, Similar
from labelwall.teacher.shards.pools import Pool
from labelwall.teacher.shards.requests import Held, NearestOf, PartOf, SimilarTo, TotalOf

_PLACE_BITS = 32  # of a merged key: squared distances are below 2^26, rows below 2^31


class ShardedIndex:
    """Records of all shards, by rising id. It holds 24 bytes a record (ids, labels, places), and no features.

    The n records are those that ``extractor`` (its hash) gave finite features in every shard.
    """

    def __init__(self, pool: Pool, shards: int, extractor: str) -> None:
        self._pool, self._shards, self._extractor = pool, shards, extractor
        held = pool.ask([Held(extractor)] * shards)
        ids, labels = (np.concatenate([own[column] for own in held]) for column in (0, 1))
        self.dimensions = held[0][2]
        order = np.argsort(ids, kind="stable")
        self.ids, self.labels = ids[order], labels[order]
        place = np.empty(len(ids), dtype=np.int64)
        place[order] = np.arange(len(ids))
        self._places = np.split(
            place, np.cumsum([len(own) for own, _, _ in held])[:-1]
        )  # [shard][its row] -> row
        self._recent = PrefixCache()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return "ShardedIndex()"

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """Rows of the min(m, n) nearest, by (squared distance, id); read-only. See Index."""
        check_queries(queries, m, self.dimensions)
        width = min(m, len(self))
        return self._recent.lists(queries, width, lambda: self._search(queries, width))

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """See Index."""
        parts = self._pool.ask(
            [SimilarTo(self._extractor, queries, select, hashing)] * self._shards
        )
        found = []
        for of_query in zip(*parts, strict=True):
            rows = [places[part.rows] for places, part in zip(self._places, of_query, strict=True)]
            found.append(
                Similar(
                    np.concatenate(rows).astype(np.int32),
                    np.concatenate([part.weights for part in of_query]),
                )
            )
        return found

    def total(self, count: Count, labels: np.ndarray) -> np.ndarray:
        """The shards' counts, added up; see Index. Raises ValueError for other labels than the shards' own."""
        if labels is not self.labels:
            raise ValueError("counts over shards are of their own labels")
        first, *others = self._pool.ask([TotalOf(self._extractor, count)] * self._shards)
        return sum(others, start=first)

    def part(self, key: bytes, teachers: int, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(features int8 [m, d], labels int64 [m]) of the records of one of PATE's teachers, by rising id."""
        parts = self._pool.ask([PartOf(self._extractor, key, teachers, number)] * self._shards)
        features, labels, ids = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(ids, kind="stable")
        return features[order], labels[order]

    def _search(self, queries: np.ndarray, width: int) -> np.ndarray:
        """Each shard is asked for somewhat more than its share; where that does not settle a list, for all that it may hold.

        A merged list is settled when it ends before the end of every shard's list that was cut off.
        """
        share = width / max(1, len(self))
        most = [min(width, len(places)) for places in self._places]
        asked = [
            min(top, math.ceil(share * len(p) + 6 * math.sqrt(share * len(p)) + 8))
            for top, p in zip(most, self._places, strict=True)
        ]
        merged, ends = self._merged(queries, width, asked)
        cut = np.array([a < top for a, top in zip(asked, most, strict=True)])
        if width and (ends[cut] < merged[:, -1]).any():
            merged, _ = self._merged(queries, width, most)
        return merged & ((1 << _PLACE_BITS) - 1)

    def _merged(
        self, queries: np.ndarray, width: int, asked: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Keys (distance, row), int64 [q, width], of the first of what shards say, and each shard's last, int64 [shards, q]."""
        parts = self._pool.ask([NearestOf(self._extractor, queries, m) for m in asked])
        keys, ends = [], np.zeros((self._shards, len(queries)), dtype=np.int64)
        for shard, (rows, distances) in enumerate(parts):
            keys.append((distances.astype(np.int64) << _PLACE_BITS) | self._places[shard][rows])
            if rows.shape[1]:
                ends[shard] = keys[-1][:, -1]
        merged = np.concatenate(keys, axis=1)
        merged.sort(axis=1)
        return merged[:, :width], ends
