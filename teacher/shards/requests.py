"""Requests to a shard: frozen descriptions that contain no record but those a custodian adds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...wall.messages import ExtractorSpec
from ..records.sources import Records
from ..search.index import Count
from ..search.kernels import Select, Similar
from .worker import Shard


@dataclass(frozen=True, eq=False)
class EmbedBlock:
    """Embed the next rows: (rows done, rows)."""

    spec: ExtractorSpec = field(repr=False)
    probe: np.ndarray | None = field(repr=False)
    batch_size: int

    def __call__(self, shard: Shard) -> tuple[int, int]:
        return shard.embed_block(self.spec, self.probe, self.batch_size)


@dataclass(frozen=True, eq=False)
class Summary:
    """A shard's embedded rows. ``cuts``: every so many-th id, from the first on, int64 [m]."""

    rows: int
    dimensions: int
    labels: tuple[int, int]  # the smallest and the largest; (0, 0) without rows
    cuts: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class SummaryOf:
    """What a merge of the shards needs to know first; ``every``: rows from one cut to the next."""

    extractor: str
    every: int

    def __call__(self, shard: Shard) -> Summary:
        index, labels = shard.index(self.extractor)
        ends = int(labels.min(initial=0)), int(labels.max(initial=0))
        return Summary(len(index), index.dimensions, ends, index.ids[:: self.every])


@dataclass(frozen=True)
class RowsBetween:
    """(ids, labels, persons) of the embedded rows with ``low`` <= id < ``high``: int64 [m] each.

    By ascending id. ``high``: None for all from ``low`` on. ``persons``: None where rows have none.
    """

    extractor: str
    low: int
    high: int | None

    def __call__(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        index, labels = shard.index(self.extractor)
        start = np.searchsorted(index.ids, self.low)
        stop = len(index) if self.high is None else np.searchsorted(index.ids, self.high)
        persons = None if index.persons is None else index.persons[start:stop]
        return index.ids[start:stop], labels[start:stop], persons


@dataclass(frozen=True)
class IdsOf:
    """Ids of the embedded rows, ascending: int64 [n]."""

    extractor: str

    def __call__(self, shard: Shard) -> np.ndarray:
        return shard.index(self.extractor)[0].ids


@dataclass(frozen=True, eq=False)
class NearestOf:
    """(rows, squared distances) of a shard's nearest, by (distance, id): int32 [q, w] each.

    w is slightly more than the shard's share of ``m`` among ``total`` records, or min(m, n) for a
    ``total`` of None. The request is the same for all shards, so that it is stored once for them.
    """

    extractor: str
    queries: np.ndarray = field(repr=False)
    m: int
    total: int | None = None

    def __call__(self, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
        index = shard.index(self.extractor)[0]
        found = index.nearest(self.queries, self.width(len(index)))
        return found.rows.astype(np.int32), found.distances

    def width(self, rows: int) -> int:
        """w of a shard of ``rows`` records."""
        if self.total is None:
            return min(self.m, rows)
        share = self.m * rows / max(1, self.total)
        return min(self.m, rows, math.ceil(share + 6 * math.sqrt(share) + 8))


@dataclass(frozen=True, eq=False)
class SimilarTo:
    """What a kernel selects for each query, as rows of the shard."""

    extractor: str
    queries: np.ndarray = field(repr=False)
    select: Select
    hashing: tuple[int, int, int] | None

    def __call__(self, shard: Shard) -> list[Similar]:
        return shard.index(self.extractor)[0].similar(self.queries, self.select, self.hashing)


@dataclass(frozen=True, eq=False)
class TotalOf:
    """A count over the shard's records."""

    extractor: str
    count: Count = field(repr=False)

    def __call__(self, shard: Shard) -> np.ndarray:
        return self.count(*shard.index(self.extractor))


@dataclass(frozen=True)
class PartOf:
    """(features, labels, ids) of the rows of one of PATE's ``teachers``, by the custodian's key."""

    extractor: str
    key: bytes = field(repr=False)
    teachers: int
    number: int

    def __call__(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return shard.part(self.extractor, self.key, self.teachers, self.number)


@dataclass(frozen=True, eq=False)
class RowsOf:
    """The raw rows of ``ids`` (int64 [m]), or of persons; ``like``: empty records of their form."""

    ids: np.ndarray = field(repr=False)
    like: Records = field(repr=False)
    column: Literal["ids", "persons"] = "ids"

    def __call__(self, shard: Shard) -> Records:
        return shard.rows_of(self.ids, self.like, self.column)


@dataclass(frozen=True, eq=False)
class Amend:
    """Remove the rows of ids ``named`` (int64 [m]), then add rows."""

    named: np.ndarray = field(repr=False)
    added: Records = field(repr=False)

    def __call__(self, shard: Shard) -> None:
        shard.amend(self.named, self.added)
