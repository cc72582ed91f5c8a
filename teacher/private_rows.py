"""The private rows behind a teacher: read once, changed by the custodian, prepared for voting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..wall.labels.base import LabelSpace
from ..wall.messages import ExtractorSpec
from ..wall.progress import Progress
from .classifiers.linear_ensemble import Ensemble, shard_key, train_ensemble
from .features.cache import (
    Embedded,
    Embedding,
    embed_records,
    forget,
    forget_shards,
)
from .features.embedder import Embedder
from .ledger.ledger import Ledger
from .mechanisms.base import Classifiers
from .records import record_updates
from .records.sources import Records
from .search.index import Index

if TYPE_CHECKING:
    from .classifiers.cnn_ensemble import CnnEnsemble


@dataclass(frozen=True)
class Workplace:
    """Where and how private rows are processed.

    Args:
        directory: the custodian's own (mode 0700), for private caches.
        batch_size: queries answered together, and rows of a network's fixed batch.
        workers: processes that compute features.
        device: type of the one that computes networks, products and lists.
        progress: callback for the progress of work on private rows; for the custodian alone.
    """

    directory: Path
    batch_size: int
    workers: int
    device: str
    progress: Progress

    def embedding(self, done: int, total: int) -> None:
        """Progress of an embedding in percent."""
        percent = 100 * done // total if total else 100
        self.progress("embedding private records (percent)", percent, 100)

    def training(self, done: int, total: int) -> None:
        """Progress of an ensemble's training."""
        self.progress("training the ensemble", done, total)


@dataclass(frozen=True, eq=False)
class Prepared:
    """What votes under one extractor.

    Args:
        index: search over the records whose features are finite.
        labels: int64 [n_records], their codes by row of the index.
        ensembles: linear ones by their number of classifiers.
        networks: ensembles of networks by their number.
    """

    index: Index = field(repr=False)
    labels: np.ndarray = field(repr=False)
    ensembles: dict[int, Ensemble] = field(repr=False)
    networks: dict[int, CnnEnsemble] = field(repr=False)


class PrivateRows:
    """The records of one process, as they are now. Everything here is private.

    Args:
        open_records: reads the data source; called once.
        ledger: keeps what the custodian added and removed.
        place: where the work is done.
        space: the labels that rows have.
        needs: what mechanisms need beside the index.
    """

    def __init__(
        self,
        open_records: Callable[[], Records],
        ledger: Ledger,
        place: Workplace,
        space: LabelSpace,
        needs: Iterable[Classifiers],
    ) -> None:
        self._open_records, self._ledger = open_records, ledger
        self._place, self._space = place, space
        self._needs = frozenset(needs)
        self._records: Records | None = None
        self._ahead: tuple[Embedder, Embedding] | None = None

    def records(self) -> Records:
        """The current records; the data source is read once."""
        if self._records is None:
            base = self._open_records()
            forget_shards(self._place.directory)
            self._records = self._ledger.in_custody(
                lambda connection: record_updates.present(connection, base)
            )
        return self._records

    def of(self, ids: np.ndarray) -> Records:
        """The current records, at least those of ``ids`` (int64 [n]) that exist."""
        return self.records()

    def owned(self, owners: np.ndarray) -> Records:
        """The records now, at least those of ``owners`` (int64 [n]) that there are."""
        return self.records()

    def store(self, records: Records) -> Records:
        """Add records to the ledger's table of updates, durably: those that were not there.

        Raises InvalidInput for rows that do not fit, or an id that is present with other content.
        """
        present = self.of(records.ids)
        fresh = record_updates.without_repeated(records, present)
        record_updates.check(fresh, present, self._space.num_labels)
        self._ledger.in_custody(lambda connection: record_updates.add(connection, fresh))
        return fresh

    def delete(self, ids: np.ndarray) -> None:
        """Mark records (int64 [n] owners) as removed, durably, and delete rows that were added."""
        held = self.owned(ids)  # what fails to open fails before anything is written
        if held.persons is not None:
            ids = held.ids[np.isin(held.persons, ids)]
        self._ledger.in_custody(
            lambda connection: record_updates.remove(connection, ids), purged=record_updates.TABLE
        )

    def with_stored(self, records: Records) -> Records:
        """The records after ``store`` returned ``records``."""
        return self.records().joined(records)

    def without(self, ids: np.ndarray) -> Records:
        """The records after ``delete``."""
        present = self.records()
        return present.take(~np.isin(present.owners, ids))

    def adopt(self, records: Records) -> None:
        """Use these records from now on."""
        self._ahead = None
        self._records = records

    def forget_removed(self) -> None:
        """Delete from caches what belongs to no record."""
        from .classifiers.cnn_ensemble import forget_classifiers  # torch

        forget(self.records(), self._place.directory)
        forget_classifiers(self._place.directory)

    def embed_ahead(
        self, spec: ExtractorSpec, embedder: Embedder, stop: Callable[[], bool]
    ) -> bool:
        """Embed into the cache until ``stop()``; call again to go on. Whether all is embedded."""
        if self._ahead is None or self._ahead[0] is not embedder:
            place = self._place
            embedding = Embedding(place.directory, self.records(), spec, embedder, place.embedding)
            self._ahead = embedder, embedding
        done = self._ahead[1].advance(stop)
        if done:
            self._ahead = None
        return done

    def pause(self) -> None:
        """Store what was embedded ahead."""
        if self._ahead is not None:
            self._ahead[1].save()

    def prepare(self, spec: ExtractorSpec, embedder: Embedder) -> Prepared:
        """Embed the records and prepare what votes; what removed records left is deleted."""
        from .search.devices import device_of  # torch
        from .search.gpu import index_on

        records, place = self.records(), self._place
        embedded = embed_records(place.directory, records, spec, embedder, place.embedding)
        return Prepared(
            index_on(device_of(place.device), embedded.features, embedded.ids, embedded.persons),
            embedded.labels,
            {size: self._linear(embedded, size) for size in self._sizes("linear")},
            {size: self._networks(records, size) for size in self._sizes("cnn")},
        )

    def _sizes(self, kind: str) -> list[int]:
        return [need.teachers for need in self._needs if need.kind == kind]

    def _linear(self, embedded: Embedded, teachers: int) -> Ensemble:
        """Trained in seconds and kept nowhere: there is nothing to delete later."""
        return train_ensemble(
            embedded.features,
            self._space.expand(embedded.labels),
            embedded.ids,
            owners=embedded.ids if embedded.persons is None else embedded.persons,
            num_classes=self._space.outputs,
            teachers=teachers,
            key=shard_key(self._place.directory),
            progress=self._place.training,
        )

    def _networks(self, records: Records, teachers: int) -> CnnEnsemble:
        """Trained on the images, whatever the extractor; kept in the custodian's directory."""
        from .classifiers.cnn_ensemble import CnnEnsemble  # torch

        return CnnEnsemble(
            records,
            num_classes=self._space.outputs,
            teachers=teachers,
            key=shard_key(self._place.directory),
            directory=self._place.directory,
            workers=self._place.workers,
            device=self._place.device,
            progress=self._place.training,
        )
