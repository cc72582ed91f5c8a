"""The private rows behind a teacher: read once, changed by the custodian, prepared for voting."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from ..wall.features.embedder import Embedder, unit_length
from ..wall.labels import LabelSpace
from ..wall.messages import ExtractorSpec, blank_inputs
from ..wall.progress import Progress
from .classifiers.linear_ensemble import shard_key, train_ensemble
from .ledger.ledger import Ledger
from .mechanisms.base import Mechanism
from .mechanisms.voters import Voters
from .records import record_updates, row_names
from .records.embedding_cache import Embedding, PlainFeatures, forget, forget_shards
from .records.private_records import Records


class PrivateRows:
    """The records of one process, as they are now. Everything here is private.

    Args:
        open_records: reads the data source; called once.
        ledger: keeps what the custodian added and removed.
        space: the labels that rows have.
        mechanisms: say what they need beside the index.

    The others are Teacher's.
    """

    def __init__(
        self,
        open_records: Callable[[], Records],
        ledger: Ledger,
        space: LabelSpace,
        mechanisms: Sequence[Mechanism],
        *,
        directory: Path,
        batch_size: int,
        workers: int,
        device: str,
        progress: Progress,
    ) -> None:
        self._open_records, self._ledger, self._space = open_records, ledger, space
        self._needs = {need for mechanism in mechanisms for need in mechanism.needs}
        self.directory, self.batch_size, self.workers = directory, batch_size, workers
        self.device, self._progress = device, progress
        self._records: Records | None = None
        self._plain = PlainFeatures()
        self._ahead: tuple[ExtractorSpec, Embedding] | None = None

    def records(self) -> Records:
        """The current records; the data source is read once."""
        if self._records is None:
            base = self._open_records()
            forget_shards(self.directory)
            enrolled = self.enrolled()

            def present(connection: sa.Connection) -> Records:
                row_names.require_names(connection, base.names, enrolled)
                row_names.require_places(connection, base, enrolled)
                return record_updates.present(connection, base, self._space.num_labels)

            self._records = self._ledger.in_custody(present)
        return self._records

    def enrolled(self) -> bool:
        """Whether records have budgets of their own, here or in the ledgers of listed analysts."""
        self._ledger.catch_up()
        return len(self._ledger.individual_budgets.ids) > 0 or bool(self._ledger.state.analysts)

    def of(self, ids: np.ndarray, owners: bool = False) -> Records:
        """The current records, at least those of ``ids`` (int64 [n]) that exist.

        ``owners``: ids are of persons where the unit of privacy is one.
        """
        return self.records()

    def store(self, records: Records) -> None:
        """Add records to the ledger's table of updates, durably: those that were not there.

        Raises InvalidInput for rows that do not fit, or an id that is present with other content.
        """
        present = self.of(records.ids)
        fresh = record_updates.without_repeated(records, present)
        record_updates.check(fresh, present, self._space.num_labels)
        self._ledger.in_custody(lambda connection: record_updates.add(connection, fresh))

    def delete(self, ids: np.ndarray) -> None:
        """Mark records (int64 [n] owners) as removed, durably, and delete rows that were added.

        Of a person the code is marked, too: rows that the source shows later do not count either.
        """
        present = self.of(ids, owners=True)  # what fails to open fails before anything is written
        if present.persons is not None:
            ids = np.concatenate([ids, present.ids[np.isin(present.persons, ids)]])
        self._ledger.in_custody(
            lambda connection: record_updates.remove(connection, ids), purged=record_updates.TABLE
        )

    def updated(self) -> Records:
        """The records after ``store`` and ``delete``: the updates may be applied twice."""
        present = self.records()
        return self._ledger.in_custody(
            lambda connection: record_updates.present(connection, present, self._space.num_labels)
        )

    def adopt(self, records: Records) -> None:
        self._ahead, self._plain = None, PlainFeatures()  # it knows removed records
        self._records = records

    def forget_removed(self) -> None:
        """Delete from caches what belongs to no record."""
        forget(self.records(), self.directory)

    def embed_ahead(self, spec: ExtractorSpec, stop: Callable[[], bool]) -> bool:
        """Embed into the cache until ``stop()``; call again to go on. Whether all is embedded."""
        if self._ahead is None or self._ahead[0] != spec:
            self.pause()
            self._ahead = spec, self._embedding(spec)
        done = self._ahead[1].advance(stop)
        if done:
            self._ahead = None
        return done

    def _embedding(self, spec: ExtractorSpec) -> Embedding:
        embedder = self.embedder(spec)  # before any record is read
        records = self.records()
        return Embedding(self.directory, records, embedder, self._plain, self.embedding)

    def pause(self) -> None:
        """Store what was embedded ahead."""
        if self._ahead is not None:
            self._ahead[1].save()

    def embedder(self, spec: ExtractorSpec) -> Embedder:
        """The maker of features.

        Raises InvalidInput for an extractor that does not fit, whichever records there are: it is
        tried on none.
        """
        embedder = Embedder(spec, workers=self.workers, device=self.device)
        embedder.embed(blank_inputs(spec.input_shape, 0))
        return embedder

    def prepare(self, spec: ExtractorSpec) -> Voters:
        """Embed the records and prepare what votes, before no query yet.

        What removed records left is deleted.
        """
        from ..wall.devices import device_of  # torch
        from .classifiers.cnn_ensemble import CnnEnsemble  # torch
        from .search.accelerators import index_on

        embedding = self._embedding(spec)
        records, device = self.records(), device_of(self.device)
        embedding.advance()
        features, rows = embedding.result()
        # Linear classifiers are trained in seconds and kept nowhere: nothing is to delete later.
        ensembles = {
            teachers: train_ensemble(
                features,
                self._space.expand(rows.labels),
                rows.ids,
                owners=rows.owners,
                num_classes=self._space.outputs,
                teachers=teachers,
                key=shard_key(self.directory),
                progress=self.training,
            )
            for teachers in self.sizes("linear")
        }
        networks = {
            teachers: CnnEnsemble(
                records,
                num_classes=self._space.outputs,
                teachers=teachers,
                key=shard_key(self.directory),
                directory=self.directory,
                workers=self.workers,
                progress=self.training,
            )
            for teachers in self.sizes("cnn")
        }
        return Voters(
            index_on(device, features, rows.ids, rows.persons),
            rows.labels,
            self._space.outputs,
            features[:0],
            unit_length(spec, features.shape[1]),
            ensembles,
            networks,
            landmarks=spec.landmarks,
        )

    def sizes(self, kind: str) -> list[int]:
        return [teachers for need, teachers in self._needs if need == kind]

    def embedding(self, done: int, total: int) -> None:
        """Report progress in percent: the number of rows is private."""
        percent = 100 * done // total if total else 100
        self._progress("embedding private records (percent)", percent, 100)

    def training(self, done: int, total: int) -> None:
        self._progress("training the ensemble", done, total)
