"""Requests to a shard: frozen descriptions that contain no record but those a custodian adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.index import Count
from labelwall.teacher.search.kernels import Select, Similar
from labelwall.teacher.shards.worker import Shard
from labelwall.wall.messages import ExtractorSpec


@dataclass(frozen=True, eq=False)
class EmbedBlock:
    """Embed the next rows: (rows done, rows)."""

    spec: ExtractorSpec = field(repr=False)
    probe: np.ndarray | None = field(repr=False)
    batch_size: int

    def __call__(self, shard: Shard) -> tuple[int, int]:
        return shard.embed_block(self.spec, self.probe, self.batch_size)


@dataclass(frozen=True)
class EmbeddedRows:
    """(ids, labels) of the embedded rows, int64 [n] each, by ascending id, dimensions, persons."""

    extractor: str

    def __call__(self, shard: Shard) -> tuple[np.ndarray, np.ndarray, int, np.ndarray | None]:
        index, labels = shard.index(self.extractor)
        return index.ids, labels, index.dimensions, index.persons


@dataclass(frozen=True, eq=False)
class NearestOf:
    """(rows, squared distances) of the w = min(m, n) nearest, by (distance, id).

    int32 [q, w] each.
    """

    extractor: str
    queries: np.ndarray = field(repr=False)
    m: int

    def __call__(self, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
        found = shard.index(self.extractor)[0].nearest(self.queries, self.m)
        return found.rows.astype(np.int32), found.distances


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
