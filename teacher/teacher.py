"""The teacher: the only path from private records to a label."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from teacher import updates
from teacher.embeddings import Embedded, embed_records, forget
from teacher.ensemble import Ensemble, shard_key
from teacher.features import Embedder
from teacher.individual import answer_individually
from teacher.mechanisms.electorate import Electorate
from teacher.mechanisms.ind_knn import IndKnn
from teacher.mechanisms.mechanism import Mechanism
from teacher.mechanisms.pate import ConfidentGnmax, Gnmax, Lnmax
from teacher.mechanisms.registry import from_slot
from teacher.mechanisms.reverse_knn import HISTOGRAM, ReverseKnn
from teacher.neighbors import ExactIndex
from teacher.privacy.ledger import Ledger
from teacher.privacy.noise import Entropy
from teacher.records import Records
from wall.cells import CellCounts, Cells
from wall.errors import InvalidInput, TeacherFailed
from wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Queries, Receipt

Progress = Callable[[str, int, int], None]  # (what, done, total)


def _quiet(what: str, done: int, total: int) -> None:
    """The default progress: none."""


class Teacher:
    """Answers queries from private records, within the ledger's plan.

    Guarantee: everything ``answer`` ever returns, over all calls, callers, extractors and restarts of one ledger, is
    (epsilon, delta)-differentially private under add/remove of one record, with the plan's certificate. The query identities,
    extractors and their order may depend on all earlier answers.

    Args:
        open_records: called once, when an extractor is first used; the private rows.
        ledger: the data set's; its plan says which mechanisms may draw, and how often.
        directory: the custodian's own (mode 0700), for private embeddings.
        num_classes: size of the public label set.
        entropy: the source of sampling bits and noise; there is no default.
        batch_size: queries charged, searched and recorded together; a crash costs at most one batch of charges.
        workers: processes that compute features.
    """

    def __init__(
        self,
        open_records: Callable[[], Records],
        ledger: Ledger,
        directory: Path,
        num_classes: int,
        entropy: Entropy,
        *,
        batch_size: int = 256,
        workers: int = 1,
        progress: Progress = _quiet,
    ) -> None:
        if entropy.unsafe and not ledger.state.unsafe:
            raise InvalidInput("entropy", "the system's for a ledger that certifies a guarantee", "a test tape")
        self._open_records, self._ledger, self._directory = open_records, ledger, directory
        self._num_classes, self._entropy, self._progress = num_classes, entropy, progress
        self._batch_size, self._workers = batch_size, workers
        assert ledger.state.plan is not None
        self._mechanisms = [from_slot(slot) for slot in ledger.state.plan.slots]
        self._individual = any(isinstance(mechanism, IndKnn) for mechanism in self._mechanisms)
        self._serials = np.zeros(0, dtype=np.int64)
        self._lock = threading.Lock()
        self._spec: ExtractorSpec | None = None
        self._records: Records | None = None

    def use_extractor(self, spec: ExtractorSpec, probe: np.ndarray | None = None) -> None:
        """Embed the private records with a public feature map; later answers use it. Releases nothing.

        ``probe``: public rows like the queries' inputs, on which a network is tested for independence of the batch.
        Raises InvalidInput for an extractor that is not allow-listed or does not fit.
        """
        with self._lock:
            embedder = Embedder(spec, probe=probe, batch_size=self._batch_size, workers=self._workers)
            self._embed(self._opened(), spec, embedder)
            self._embedder, self._spec = embedder, spec
            self._ledger.use_extractor(spec.sha256(), spec.public_fields())

    def add(self, records: Records) -> None:
        """Records that vote from the next query on. For the custodian: nothing is released, and nothing private is said.

        What a record of the same id spent before it was removed, it has spent. Durable when this returns; the time it takes does
        not depend on how many queries were answered. Raises InvalidInput for rows that do not fit or an id that is present.
        """
        with self._lock:
            held = self._opened()
            updates.check(records, held, self._num_classes)
            self._ledger.in_custody(lambda connection: updates.add(connection, records))
            self._hold(held.joined(records))

    def remove(self, ids: np.ndarray) -> None:
        """Records (int64 [n] ids) that never vote again, and whose data is deleted: features, caches, rows that ``add`` stored.

        Their ids and what they spent stay, in private. Answers afterwards are distributed as if they had left before the last
        answer. An id that is not there is no error. The data source itself is the custodian's to clean.
        """
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise InvalidInput("ids", "int64 [n]", f"{ids.dtype} {list(ids.shape)}")
        with self._lock:
            held = self._opened()
            self._ledger.in_custody(lambda connection: updates.remove(connection, ids))
            kept = ~np.isin(held.ids, ids)
            self._hold(Records(held.inputs[kept], held.labels[kept], held.ids[kept]))

    def _opened(self) -> Records:
        """The records as they are now; the data source is read once."""
        if self._records is None:
            base = self._open_records()
            self._records = self._ledger.in_custody(lambda connection: updates.present(connection, base))
        return self._records

    def _hold(self, records: Records) -> None:
        self._records = records
        if self._spec is not None:
            self._embed(records, self._spec, self._embedder)  # which forgets the rest, too
        else:
            forget(self._directory, records)

    def _embed(self, records: Records, spec: ExtractorSpec, embedder: Embedder) -> None:
        embedded = embed_records(self._directory, records, spec, embedder, self._embedding)
        self._index, self._labels = ExactIndex(embedded.features, embedded.ids), embedded.labels
        self._ensembles = {size: self._ensemble(embedded, size) for size in self._ensemble_sizes()}
        if self._individual:
            self._serials = self._ledger.enrol(embedded.ids)

    def answer(self, queries: Queries) -> Answers:
        """Noisy labels for public inputs: int64 [n] with -1 where none was released, outcomes, and the receipt.

        A query whose identity is known is served from the ledger at no charge; duplicates inside a batch are one query.
        Raises InvalidInput before anything is charged, LedgerMismatch where the ledger refuses, TeacherFailed (a constant)
        for any failure after a charge.
        """
        with self._lock:
            spec, mechanism = self._ready("queries", queries.slot)
            if isinstance(mechanism, ReverseKnn):
                raise InvalidInput("queries.slot", "of a mechanism that answers queries, not one for cells", queries.slot)
            if queries.inputs.shape[1:] != spec.input_shape:
                raise InvalidInput("queries.inputs", f"rows of shape {spec.input_shape}", queries.inputs.shape[1:])
            self._ledger.use_extractor(spec.sha256(), spec.public_fields())
            return self._answer(queries, queries.identities(spec.sha256(), mechanism.fields()))

    def count(self, cells: Cells) -> CellCounts:
        """Noisy votes of all records in public cells: one release for the whole set, or the stored refusal.

        The same cells under the same extractor and mechanism get the stored counts at no charge.
        Raises InvalidInput before anything is charged, LedgerMismatch and TeacherFailed as ``answer`` does.
        """
        with self._lock:
            spec, mechanism = self._ready("cells", cells.slot)
            if not isinstance(mechanism, ReverseKnn):
                raise InvalidInput("cells.slot", "of the mechanism reverse_knn", cells.slot)
            expected = (mechanism.cells, self._index.features.shape[1])
            if cells.centers.shape != expected:
                raise InvalidInput("cells.centers", f"int8 {list(expected)}, as mechanism and extractor say", cells.centers.shape)
            self._ledger.use_extractor(spec.sha256(), spec.public_fields())
            return self._count(cells, cells.identity(spec.sha256(), mechanism.fields()))

    def _ready(self, name: str, slot: int) -> tuple[ExtractorSpec, Mechanism]:
        """The extractor in use and the slot's mechanism."""
        if self._spec is None:
            raise InvalidInput("extractor", f"set by use_extractor before the first {name}", None)
        if slot >= len(self._mechanisms):
            raise InvalidInput(f"{name}.slot", f"below {len(self._mechanisms)}, the plan's slots", slot)
        return self._spec, self._mechanisms[slot]

    def _count(self, cells: Cells, identity: str) -> CellCounts:
        before = dict(self._ledger.state.spent)
        served = self._settled(cells.slot, identity)
        if not served:
            self._settle(cells.slot, [identity], self._voters(cells.centers[np.newaxis]))  # [m, d] -> [1, m, d]
        receipt, state = self._receipt(cells.slot, 1, int(served), before), self._ledger.state
        if identity in state.refused:
            return CellCounts(None, receipt)
        counts = np.array(state.results[identity][HISTOGRAM], dtype=np.int64)
        return CellCounts(counts.reshape(-1, self._num_classes), receipt)

    def _answer(self, queries: Queries, identities: list[str]) -> Answers:
        first_row = {identity: row for row, identity in reversed(list(enumerate(identities)))}
        todo = [i for i in first_row if not self._settled(queries.slot, i)]
        todo.sort(key=first_row.__getitem__)  # charged in request order
        before = dict(self._ledger.state.spent)
        for start in range(0, len(todo), self._batch_size):
            self._progress("answering queries", start, len(todo))
            batch = todo[start : start + self._batch_size]
            # public inputs: a query with features that are not finite becomes zeros
            embedded, _ = self._embedder.embed(queries.inputs[[first_row[i] for i in batch]])
            self._settle(queries.slot, batch, self._voters(embedded))
        if todo:
            self._progress("answering queries", len(todo), len(todo))
        return self._reply(queries.slot, identities, len(first_row) - len(todo), before)

    def _ensemble_sizes(self) -> set[int]:
        return {mechanism.teachers for mechanism in self._mechanisms if isinstance(mechanism, Lnmax | Gnmax | ConfidentGnmax)}

    def _ensemble(self, embedded: Embedded, teachers: int) -> Ensemble:
        """PATE's classifiers on the private embeddings. They are trained in seconds and kept nowhere: nothing to purge."""
        return Ensemble(
            embedded.features,
            embedded.labels,
            embedded.ids,
            num_classes=self._num_classes,
            teachers=teachers,
            key=shard_key(self._directory),
            progress=lambda done, total: self._progress("training the ensemble", done, total),
        )

    def _voters(self, queries: np.ndarray) -> Electorate:
        """The records as they are now before embedded queries, int8 [n_queries, d] or [n_queries, m, d]."""
        length = self._embedder.length(queries.shape[-1])
        return Electorate(self._index, self._labels, self._num_classes, queries, length, self._ensembles)

    def _embedding(self, done: int, total: int) -> None:
        self._progress("embedding private records (percent)", 100 * done // max(1, total), 100)  # their number is private

    def _settled(self, slot: int, identity: str) -> bool:
        state = self._ledger.state
        return identity in state.refused or self._mechanisms[slot].next_stage(state.results.get(identity, {})) is None

    def _settle(self, slot: int, batch: list[str], voters: Electorate) -> None:
        """Take one batch of distinct queries through the mechanism's stages: charge, draw, record, for each."""
        mechanism, row = self._mechanisms[slot], {identity: position for position, identity in enumerate(batch)}
        if isinstance(mechanism, IndKnn):
            with self._failures():
                answer_individually(self._ledger, slot, mechanism, voters, self._serials, batch, self._entropy)
            return
        for stage in mechanism.stages:
            waiting = [i for i in batch if not self._settled(slot, i)]
            due = [i for i in waiting if mechanism.next_stage(self._ledger.state.results.get(i, {})) == stage]
            charge = self._ledger.charge(slot, stage, due)
            if not charge.granted:
                continue
            with self._failures():
                drawn = mechanism.draw(stage, voters.select([row[i] for i in charge.granted]), charge.granted, self._entropy)
                self._ledger.record(charge, dict(zip(charge.granted, drawn.tolist(), strict=True)))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Whatever goes wrong where private rows are at work is one constant outside."""
        try:
            yield
        except Exception as error:
            (self._directory / "errors.log").open("a").write(traceback.format_exc())
            raise TeacherFailed from error

    def _reply(self, slot: int, identities: list[str], served: int, before: dict[tuple[int, str], int]) -> Answers:
        state, mechanism = self._ledger.state, self._mechanisms[slot]
        settled = {
            i: (Outcome.CAP_REACHED, ABSTAINED) if i in state.refused else mechanism.outcome(state.results[i])
            for i in dict.fromkeys(identities)
        }
        receipt = self._receipt(slot, len(identities), served, before)
        outcomes = np.array([settled[i][0] for i in identities], dtype=np.uint8)
        return Answers(np.array([settled[i][1] for i in identities], dtype=np.int64), outcomes, receipt)

    def _receipt(self, slot: int, asked: int, served: int, before: dict[tuple[int, str], int]) -> Receipt:
        state, stages = self._ledger.state, self._mechanisms[slot].stages
        return Receipt(
            asked=asked,
            served=served,
            charged={s: state.spent.get((slot, s), 0) - before.get((slot, s), 0) for s in stages},
            left={s: state.left(slot, s) for s in stages},
            ledger_position=state.seq,
            ledger_head=state.head,
        )
