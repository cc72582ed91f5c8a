"""The teacher: the only path from private records to a label."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from labelwall.teacher.features.cache import Embedded, embed_records, forget, forget_shards
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.individual import answer_individually
from labelwall.teacher.ledger.ledger import Charge, Ledger, Reservation
from labelwall.teacher.mechanisms.attributes.mechanism import GnmaxAttributes
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch.base import BatchMechanism
from labelwall.teacher.mechanisms.ind_knn.mechanism import ANSWER, IndKnn
from labelwall.teacher.mechanisms.ind_knn.reused_answers import Released
from labelwall.teacher.mechanisms.pate.cnn_ensemble import CnnEnsemble, forget_classifiers
from labelwall.teacher.mechanisms.pate.linear_ensemble import Ensemble, shard_key, train_ensemble
from labelwall.teacher.mechanisms.pate.mechanism import ConfidentGnmax, Gnmax, Lnmax
from labelwall.teacher.mechanisms.registry import from_slot
from labelwall.teacher.mechanisms.reverse_knn.mechanism import HISTOGRAM, ReverseKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.records import record_updates as updates
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.devices import device_of
from labelwall.teacher.search.gpu import index_on
from labelwall.teacher.search.index import Index
from labelwall.wall.cells import CellCounts, Cells
from labelwall.wall.errors import InvalidInput, TeacherFailed
from labelwall.wall.labels.attributes import unpack
from labelwall.wall.labels.values import STEPS
from labelwall.wall.messages import (
    ABSTAINED,
    Answers,
    ExtractorSpec,
    Outcome,
    Queries,
    Receipt,
    Value,
)

Progress = Callable[
    [str, int, int], None
]  # (what, done, total); for the custodian's eyes, where it is about private rows


def quiet(what: str, done: int, total: int) -> None:
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
        num_classes: size of the public label set; the number of attributes where the plan's mechanisms answer with those; 1 where
            they answer with values.
        entropy: the source of sampling bits and noise; there is no default.
        batch_size: queries charged, searched and recorded together; a crash costs at most one batch of charges. A batch mechanism
            takes all new queries of a call together.
        workers: processes that compute features.
        device: type of the one that computes networks, products and lists: cpu, or an accelerator of this machine.

    Raises InvalidInput for a device that is not there.
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
        device: str = "cpu",
        progress: Progress = quiet,
    ) -> None:
        device_of(device)
        if entropy.unsafe and not ledger.state.unsafe:
            raise InvalidInput(
                "entropy", "the system's for a ledger that certifies a guarantee", "a test tape"
            )
        self._open_records, self._ledger, self._directory = open_records, ledger, directory
        self._num_classes, self._entropy, self._progress = num_classes, entropy, progress
        self._batch_size, self._workers, self.device = batch_size, workers, device
        assert ledger.state.plan is not None
        self._mechanisms = [from_slot(slot) for slot in ledger.state.plan.slots]
        kinds = {mechanism.label_space for mechanism in self._mechanisms}
        if len(kinds) > 1:
            raise InvalidInput(
                "plan", "of mechanisms that answer alike", " and ".join(sorted(kinds))
            )
        self._attributes = kinds == {"attributes"}
        self._num_labels = (
            STEPS + 1
            if kinds == {"value"}
            else 1 << num_classes
            if self._attributes
            else num_classes
        )
        self._individual = any(isinstance(mechanism, IndKnn) for mechanism in self._mechanisms)
        self._serials = np.zeros(0, dtype=np.int64)
        self._reused = 0  # queries of the present call on which earlier answers voted
        self._charges: list[
            tuple[str, Charge | Reservation]
        ] = []  # of the present call, with their releases
        self._lock = threading.Lock()
        self._index: Index
        self._spec: ExtractorSpec | None = None
        self._records: Records | None = None

    def use_extractor(self, spec: ExtractorSpec, probe: np.ndarray | None = None) -> None:
        """Embed the private records with a public feature map; later answers use it. Releases nothing.

        ``probe``: public rows like the queries' inputs, on which a network is tested for independence of the batch.
        Raises InvalidInput for an extractor that is not allow-listed or does not fit.
        """
        with self._lock:
            embedder = self.embedder(spec, probe)
            self._embed(spec, embedder)
            self._embedder, self._spec = embedder, spec
            path = self._directory / f"answered-{spec.sha256()[:16]}.bin"
            self._released = Released(path, self._index.dimensions)
            self._ledger.use_extractor(spec.sha256(), spec.public_fields())

    def embedder(self, spec: ExtractorSpec, probe: np.ndarray | None) -> Embedder:
        """What computes features under an extractor here; see ``use_extractor``."""
        return Embedder(
            spec,
            probe=probe,
            batch_size=self._batch_size,
            workers=self._workers,
            device=self.device,
        )

    def open(self) -> None:
        """Read the private rows now, so that the custodian meets a missing file, and no caller does."""
        with self._lock:
            self._opened()

    def export(self, path: Path) -> None:
        """Write the auditors' copy of the ledger: every entry, nothing private."""
        self._ledger.export(path)

    def add(self, records: Records) -> None:
        """Records that vote from the next query on. For the custodian: nothing is released, and nothing private is said.

        What a record of the same id spent before it was removed, it has spent. Durable when this returns; the time it takes does
        not depend on how many queries were answered. A row that is there already, with the same content, is left alone, so that
        a call can be repeated. Raises InvalidInput for rows that do not fit or an id that is present with other content.
        """
        with self._lock:
            held = self._among(records.ids)
            records = updates.without_repeated(records, held)
            updates.check(records, held, self._num_labels)
            self._ledger.in_custody(lambda connection: updates.add(connection, records))
            self._take_in(records)

    def remove(self, ids: np.ndarray) -> None:
        """Records (int64 [n] ids) that never vote again, and whose data is deleted: features, caches, rows that ``add`` stored.

        Their ids and what they spent stay, in private. Answers afterwards are distributed as if they had left before the last
        answer. An id that is not there is no error. The data source itself is the custodian's to clean.
        """
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise InvalidInput("ids", "int64 [n]", f"{ids.dtype} {list(ids.shape)}")
        with self._lock:
            self._among(ids)  # whatever fails to open, fails before anything is written
            self._ledger.in_custody(
                lambda connection: updates.remove(connection, ids), purged=updates.TABLE
            )
            self._leave_out(ids)

    def held(self) -> Records:
        """The records as they are now. Private, for teachers over the same rows."""
        with self._lock:
            return self._opened()

    def hold(self, records: Records) -> None:
        """Answer from these records from now on: those that another teacher over the same rows holds."""
        with self._lock:
            self._hold(records)

    def present(self, ids: np.ndarray) -> np.ndarray:
        """Which of ``ids`` (int64 [n]) are records now: bool [n]. Private, for the custodian alone."""
        with self._lock:
            return np.isin(ids, self._among(ids).ids)

    def _opened(self) -> Records:
        """The records as they are now; the data source is read once."""
        if self._records is None:
            base = self._open_records()
            forget_shards(self._directory)
            self._records = self._ledger.in_custody(
                lambda connection: updates.present(connection, base)
            )
        return self._records

    def _among(self, ids: np.ndarray) -> Records:
        """Records now, at least those of ``ids`` (int64 [n]) that there are."""
        return self._opened()

    def _take_in(self, records: Records) -> None:
        """Hold what was added to the ledger's table of updates."""
        self._hold(self._opened().joined(records))

    def _leave_out(self, ids: np.ndarray) -> None:
        """Hold nothing of what was removed there."""
        held = self._opened()
        kept = ~np.isin(held.ids, ids)
        self._hold(Records(held.inputs[kept], held.labels[kept], held.ids[kept]))

    def _hold(self, records: Records) -> None:
        self._records, spec, self._spec = (
            records,
            self._spec,
            None,
        )  # whatever fails below, no record that left votes again
        if spec is not None:
            self._embed(spec, self._embedder)  # which forgets the rest, too
            self._spec = spec
        else:
            forget(records, self._directory)
            forget_classifiers(self._directory)

    def _embed(self, spec: ExtractorSpec, embedder: Embedder) -> None:
        """Make the index, the labels by its rows, and what else votes."""
        records = self._opened()
        embedded = embed_records(self._directory, records, spec, embedder, self._embedding)
        index = index_on(device_of(self.device), embedded.features, embedded.ids)
        self._index, self._labels = index, embedded.labels
        self._ensembles = {
            size: self._ensemble(embedded, size) for size in self._ensemble_sizes("linear")
        }
        self._networks = {size: self._cnns(records, size) for size in self._ensemble_sizes("cnn")}
        if self._individual:
            self._serials = self._ledger.enrol(embedded.ids)

    def answer(self, queries: Queries) -> Answers:
        """Noisy labels for public inputs: int64 [n] with -1 where none was released, outcomes, and the receipt. Where rows have
        attributes, labels are int64 [n, n_attributes] of 1, 0 and -1; where they have a value, steps above its lower bound.

        A query whose identity is known is served from the ledger at no charge; duplicates inside a batch are one query. For a
        batch mechanism the queries that are not known are one batch and one charge.
        Raises InvalidInput before anything is charged, LedgerMismatch where the ledger refuses, TeacherFailed (a constant)
        for any failure after a charge.
        """
        return self.answer_together([queries])[0]

    def answer_together(self, calls: Sequence[Queries]) -> list[Answers]:
        """Several calls' queries of one slot, as one batch: the answers of each call, all at once.

        What several calls ask is charged once, to the first of them. Raises as ``answer`` does, for all calls alike.
        """
        with self._lock:
            spec, mechanism = self._answering(calls)
            self._ledger.use_extractor(spec.sha256(), spec.public_fields())
            identities = [
                queries.identities(spec.sha256(), mechanism.fields()) for queries in calls
            ]
            return self._answer(calls, identities)

    def chargeable(self, call: Queries | Cells) -> int:
        """How many distinct queries of a call would be charged for now: those not settled, as far as the cap goes. Public."""
        with self._lock:
            spec, mechanism = (
                self._counting(call) if isinstance(call, Cells) else self._answering([call])
            )
            self._ledger.use_extractor(spec.sha256(), spec.public_fields())
            named = spec.sha256(), mechanism.fields()
            identities = (
                [call.identity(*named)] if isinstance(call, Cells) else call.identities(*named)
            )
            new = sum(not self._settled(call.slot, identity) for identity in set(identities))
            by_query = not isinstance(mechanism, IndKnn | BatchMechanism)
            return (
                min(new, self._ledger.state.left(call.slot, mechanism.stages[0]))
                if by_query
                else new
            )

    def whole(self, slot: int) -> bool:
        """Whether a call of this slot is one batch by itself: priced as a whole, so neither split nor joined. Public."""
        return slot < len(self._mechanisms) and isinstance(self._mechanisms[slot], BatchMechanism)

    def _answering(self, calls: Sequence[Queries]) -> tuple[ExtractorSpec, Mechanism]:
        """The extractor and the mechanism that answer these calls. Raises InvalidInput where one does not fit."""
        slot = calls[0].slot
        spec, mechanism = self._ready("queries", slot)
        if isinstance(mechanism, ReverseKnn):
            raise InvalidInput(
                "queries.slot", "of a mechanism that answers queries, not one for cells", slot
            )
        if len(calls) > 1 and self.whole(slot):
            raise InvalidInput(
                "calls", "one at a time for a mechanism that is charged by the batch", len(calls)
            )
        for queries in calls:
            if queries.slot != slot:
                raise InvalidInput(
                    "queries.slot", f"{slot}, as of the other calls of the batch", queries.slot
                )
            if queries.inputs.shape[1:] != spec.input_shape:
                raise InvalidInput(
                    "queries.inputs", f"rows of shape {spec.input_shape}", queries.inputs.shape[1:]
                )
        return spec, mechanism

    def count(self, cells: Cells) -> CellCounts:
        """Noisy votes of all records in public cells: one release for the whole set, or the stored refusal.

        The same cells under the same extractor and mechanism get the stored counts at no charge.
        Raises InvalidInput before anything is charged, LedgerMismatch and TeacherFailed as ``answer`` does.
        """
        with self._lock:
            spec, mechanism = self._counting(cells)
            self._ledger.use_extractor(spec.sha256(), spec.public_fields())
            return self._count(cells, cells.identity(spec.sha256(), mechanism.fields()))

    def _counting(self, cells: Cells) -> tuple[ExtractorSpec, Mechanism]:
        """The extractor and the mechanism that count in these cells. Raises InvalidInput where one does not fit."""
        spec, mechanism = self._ready("cells", cells.slot)
        if not isinstance(mechanism, ReverseKnn):
            raise InvalidInput("cells.slot", "of the mechanism reverse_knn", cells.slot)
        expected = (mechanism.cells, self._index.dimensions)
        if cells.centers.shape != expected:
            raise InvalidInput(
                "cells.centers",
                f"int8 {list(expected)}, as mechanism and extractor say",
                cells.centers.shape,
            )
        return spec, mechanism

    def _ready(self, name: str, slot: int) -> tuple[ExtractorSpec, Mechanism]:
        """The extractor in use and the slot's mechanism, for a call that begins."""
        self._reused = 0
        self._charges = []
        if self._spec is None:
            raise InvalidInput("extractor", f"set by use_extractor before the first {name}", None)
        if slot >= len(self._mechanisms):
            raise InvalidInput(
                f"{name}.slot", f"below {len(self._mechanisms)}, the plan's slots", slot
            )
        return self._spec, self._mechanisms[slot]

    def _count(self, cells: Cells, identity: str) -> CellCounts:
        served = self._settled(cells.slot, identity)
        if not served:
            self._settle(
                cells.slot, [identity], self._voters(cells.centers[np.newaxis])
            )  # [m, d] -> [1, m, d]
        receipt, state = (
            self._receipt(cells.slot, 1, int(served), self._paid(cells.slot)),
            self._ledger.state,
        )
        if identity in state.refused:
            return CellCounts(None, receipt)
        counts = np.array(state.results[identity][HISTOGRAM], dtype=np.int64)
        return CellCounts(counts.reshape(-1, self._num_classes), receipt)

    def _answer(self, calls: Sequence[Queries], identities: list[list[str]]) -> list[Answers]:
        """``identities``: of each call's rows. Distinct new queries are charged in request order, call after call."""
        slot = calls[0].slot
        row = {
            i: x
            for queries, own in zip(calls, identities, strict=True)
            for i, x in zip(own, queries.inputs, strict=True)
        }
        todo = [
            i
            for i in dict.fromkeys(i for own in identities for i in own)
            if not self._settled(slot, i)
        ]
        mechanism, size = self._mechanisms[slot], self._batch_size
        if isinstance(mechanism, BatchMechanism):
            mechanism.require(len(todo), self._index.dimensions)
            size = max(1, len(todo))
        for start in range(0, len(todo), size):
            self._progress("answering queries", start, len(todo))
            batch = todo[start : start + size]
            inputs = np.stack([row[i] for i in batch])
            embedded, _ = self._embedder.embed(
                inputs
            )  # public: a query with features that are not finite becomes zeros
            self._settle(slot, batch, self._voters(embedded, inputs))
        if todo:
            self._progress("answering queries", len(todo), len(todo))
        return self._replies(slot, identities, todo)

    def _ensemble_sizes(self, classifier: str) -> set[int]:
        pates = [
            mechanism
            for mechanism in self._mechanisms
            if isinstance(mechanism, Lnmax | Gnmax | ConfidentGnmax)
        ]
        sizes = {mechanism.teachers for mechanism in pates if mechanism.classifier == classifier}
        if classifier == "linear":
            sizes |= {
                mechanism.teachers
                for mechanism in self._mechanisms
                if isinstance(mechanism, GnmaxAttributes)
            }
        return sizes

    def _ensemble(self, embedded: Embedded, teachers: int) -> Ensemble:
        """PATE's classifiers on the private embeddings. They are trained in seconds and kept nowhere: nothing to purge."""
        return train_ensemble(
            embedded.features,
            unpack(embedded.labels, self._num_classes) if self._attributes else embedded.labels,
            embedded.ids,
            num_classes=self._num_classes,
            teachers=teachers,
            key=shard_key(self._directory),
            progress=self._training,
        )

    def _cnns(self, records: Records, teachers: int) -> CnnEnsemble:
        """PATE's networks on the private images, whatever the extractor; from the custodian's directory where they are known."""
        return CnnEnsemble(
            records,
            num_classes=self._num_classes,
            teachers=teachers,
            key=shard_key(self._directory),
            directory=self._directory,
            workers=self._workers,
            device=self.device,
            progress=self._training,
        )

    def _training(self, done: int, total: int) -> None:
        self._progress("training the ensemble", done, total)

    def _voters(self, queries: np.ndarray, inputs: np.ndarray | None = None) -> Voters:
        """The records as they are now before embedded queries, int8 [n_queries, d] or [n_queries, m, d]; ``inputs``: raw."""
        length = self._embedder.length(queries.shape[-1])
        return Voters(
            self._index,
            self._labels,
            self._num_classes,
            queries,
            length,
            self._ensembles,
            self._networks,
            inputs,
        )

    def _embedding(self, done: int, total: int) -> None:
        percent = 100 * done // total if total else 100
        self._progress("embedding private records (percent)", percent, 100)

    def _settled(self, slot: int, identity: str) -> bool:
        state = self._ledger.state
        return (
            identity in state.refused
            or self._mechanisms[slot].next_stage(state.results.get(identity, {})) is None
        )

    def _settle(self, slot: int, batch: list[str], voters: Voters) -> None:
        """Take one batch of distinct queries through the mechanism's stages: charge, draw, record, for each."""
        mechanism, row = (
            self._mechanisms[slot],
            {identity: position for position, identity in enumerate(batch)},
        )
        if isinstance(mechanism, IndKnn):
            with self._failures():
                self._answer_individually(slot, mechanism, voters, batch)
            return
        for stage in mechanism.stages:
            waiting = [i for i in batch if not self._settled(slot, i)]
            due = [
                i
                for i in waiting
                if mechanism.next_stage(self._ledger.state.results.get(i, {})) == stage
            ]
            charge = self._ledger.charge(slot, stage, due)
            self._charges.append((stage, charge))
            if not charge.granted:
                continue
            with self._failures():
                drawn = mechanism.draw(
                    stage,
                    voters.select([row[i] for i in charge.granted]),
                    charge.granted,
                    self._entropy,
                )
                self._ledger.record(charge, dict(zip(charge.granted, drawn.tolist(), strict=True)))

    def _answer_individually(
        self, slot: int, mechanism: IndKnn, voters: Voters, batch: list[str]
    ) -> None:
        reused = None
        if mechanism.reuse:
            results, select = self._ledger.state.results, mechanism.select(voters.length)
            reused = self._released.votes(results, select, voters.queries, voters.num_classes)
        mine, held = answer_individually(
            self._ledger,
            slot,
            mechanism,
            voters,
            self._serials,
            batch,
            self._entropy,
            reused,
        )
        self._charges.append((ANSWER, held))
        if reused is not None:
            self._released.add(batch, voters.queries)
            self._reused += int((reused.counts[mine] > 0).sum())

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Whatever goes wrong where private rows are at work is one constant outside.

        Every Exception, none by name: which one it is may depend on a record. An interrupt is the operator's, and passes.
        """
        try:
            yield
        except Exception as error:
            (self._directory / "errors.log").open("a").write(traceback.format_exc())
            raise TeacherFailed from error

    def _replies(self, slot: int, identities: list[list[str]], todo: list[str]) -> list[Answers]:
        """Each call's answers. ``todo``: the queries that were not settled; each is new to the first call that asks it and
        served to the others. A charge for a batch or for all is that of the first call with a new query.

        What receipts say was charged is what this process entered for these calls, so that receipts of several processes over
        one ledger add up as well.
        """
        state, mechanism, unclaimed = self._ledger.state, self._mechanisms[slot], set(todo)
        once = self._paid(slot) if isinstance(mechanism, IndKnn | BatchMechanism) else None
        granted = {
            stage: {i for s, c in self._charges if s == stage for i in c.granted}
            for stage in mechanism.stages
        }
        replies, shape = [], (-1, self._num_classes) if self._attributes else (-1,)
        nothing: Value = [ABSTAINED] * self._num_classes if self._attributes else ABSTAINED
        for own in identities:
            new = unclaimed.intersection(own)
            unclaimed -= new
            charged = {stage: len(new & paid) for stage, paid in granted.items()}
            if once is not None:
                charged, once = (
                    (once, dict.fromkeys(once, 0)) if new else (dict.fromkeys(once, 0), once)
                )
            settled = {
                i: (Outcome.CAP_REACHED, nothing)
                if i in state.refused
                else mechanism.outcome(state.results[i])
                for i in set(own)
            }
            outcomes = np.array([settled[i][0] for i in own], dtype=np.uint8)
            receipt = self._receipt(slot, len(own), len(settled) - len(new), charged)
            if isinstance(mechanism, BatchMechanism):
                receipt = replace(
                    receipt, cliques=mechanism.receipt([state.results.get(i, {}) for i in settled])
                )
            labels = np.array([settled[i][1] for i in own], dtype=np.int64).reshape(shape)
            replies.append(Answers(labels, outcomes, receipt))
        return replies

    def _paid(self, slot: int) -> dict[str, int]:
        """What the present call was charged so far, by release."""
        stages = self._mechanisms[slot].stages
        return {
            stage: sum(charge.count for paid, charge in self._charges if paid == stage)
            for stage in stages
        }

    def _receipt(self, slot: int, asked: int, served: int, charged: dict[str, int]) -> Receipt:
        state = self._ledger.state
        return Receipt(
            asked=asked,
            served=served,
            charged=charged,
            left={stage: state.left(slot, stage) for stage in self._mechanisms[slot].stages},
            ledger_position=state.seq,
            ledger_head=state.head,
            reused=self._reused,
            adversary=state.adversary,
        )
