"""The teacher: the only path from private records to a label."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..wall.errors import InvalidInput
from ..wall.guarantee import Unit
from ..wall.matrices import Matrix, NoisyCounts
from ..wall.messages import Answers, ExtractorSpec, Queries
from ..wall.progress import Progress, no_progress
from ..wall.questions import MatrixForm
from .charging import Call
from .ledger.ledger import Ledger
from .mechanisms.base import Charging, Mechanism
from .mechanisms.ind_knn import EarlierAnswers
from .mechanisms.registry import from_slot, space_of
from .noise.entropy import Entropy
from .private_rows import PrivateRows
from .records.private_records import Records


class Teacher:
    """Answers queries from private records, within the ledger's plan.

    Guarantee: everything ``answer`` and ``count`` ever return, over all calls, callers, extractors
    and restarts of one ledger, is (epsilon, delta)-differentially private under add/remove of one
    record (a row, or all rows of a person, as the plan says), with the plan's certificate. Queries,
    extractors and their order may depend on all earlier answers.

    Args:
        open_records: reads the private rows; called once, when an extractor is first used.
        ledger: the data set's; its plan says which mechanisms may draw, and how often.
        directory: the custodian's own (mode 0700), for private embeddings.
        num_classes: size of the public label set; the number of attributes where the plan's
            mechanisms answer with those; 1 where they answer with values.
        entropy: the source of sampling bits and noise; there is no default.
        batch_size: queries charged, searched and recorded together; a crash costs at most one batch
            of charges. A mechanism charged by the batch takes all new queries of a call together.
        workers: threads that compute features.
        device: type of the one that computes networks, products and lists: cpu, or an accelerator.
        progress: callback for the progress of work on private rows; for the custodian alone.
        rows: what holds the records: PrivateRows in this process, or ShardedRows, whose stream of
            rows stands in place of ``open_records``.

    Raises InvalidInput for a device that is not there, and for a test tape on a ledger that
    certifies a guarantee.
    """

    def __init__(
        self,
        open_records: Callable[..., Any],
        ledger: Ledger,
        directory: Path,
        num_classes: int,
        entropy: Entropy,
        *,
        batch_size: int = 256,
        workers: int = 1,
        device: str = "cpu",
        progress: Progress = no_progress,
        rows: Callable[..., PrivateRows] = PrivateRows,
    ) -> None:
        if device != "cpu":
            from ..wall.devices import device_of  # torch

            device_of(device)
        if entropy.unsafe and not ledger.state.unsafe:
            raise InvalidInput(
                "entropy", "the system's for a ledger that certifies a guarantee", "a test tape"
            )
        assert ledger.state.plan is not None
        self._ledger, self._entropy = ledger, entropy
        self._mechanisms = [from_slot(slot) for slot in ledger.state.plan.slots]
        self.unit: Unit = ledger.state.plan.unit
        for mechanism in self._mechanisms:
            mechanism.require_unit(self.unit)
        self._space = space_of(self._mechanisms, num_classes)
        self._progress = progress
        self._rows = rows(
            open_records,
            ledger,
            self._space,
            self._mechanisms,
            directory=directory,
            batch_size=batch_size,
            workers=workers,
            device=device,
            progress=lambda *now: self._progress(*now),
        )
        self._lock = threading.Lock()
        self._spec: ExtractorSpec | None = None

    def use_extractor(self, spec: ExtractorSpec) -> None:
        """Embed the private records with a public feature map; later answers use it.

        Releases nothing: a ledger's entry names the extractor when the first query under it is
        charged. Raises InvalidInput for an extractor that does not fit.
        """
        with self._lock:
            self._prepare(spec)
            self._spec = spec
            self._memories = self._earlier_answers(spec)
            self._ledger.use_extractor(spec.public_fields())
            self._ledger.catch_up()

    def embed_ahead(self, spec: ExtractorSpec, stop: Callable[[], bool]) -> bool:
        """Embed records for a later ``use_extractor`` until ``stop()``, block by block.

        Returns whether all are embedded; if not, the next call continues.
        """
        with self._lock:
            return self._rows.embed_ahead(spec, stop)

    def pause(self) -> None:
        """Store what was embedded ahead, so that another process can continue."""
        with self._lock:
            self._rows.pause()

    def export(self, path: Path) -> None:
        """Write the auditors' copy of the ledger: every entry, nothing private."""
        self._ledger.export(path)

    def add(self, records: Records) -> None:
        """Add records, durably, which vote from the next query on. Releases nothing.

        A record that returns under its id keeps what it spent before. A row that is there with the
        same content is left alone, so a call can be repeated. Raises InvalidInput for rows that do
        not fit, or an id that is present with other content.
        """
        with self._lock:
            self._rows.store(records)
            self._change(self._rows.updated)

    def remove(self, ids: np.ndarray) -> None:
        """Remove records, which never vote again, and delete their data.

        ``ids``: int64 [n], of persons where the guarantee is for those; unknown ones are no error.
        Data are features, caches and rows that ``add`` stored; ids and what they spent stay, in
        private. The data source itself is the custodian's to clean.
        """
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise InvalidInput("ids", "int64 [n]", f"{ids.dtype} {list(ids.shape)}")
        with self._lock:
            self._rows.delete(ids)
            self._change(self._rows.updated)

    def records(self) -> Records:
        """The records as they are now. Private, for teachers over the same rows."""
        with self._lock:
            return self._rows.records()

    def adopt(self, records: Records) -> None:
        """Answer from these records from now on: another teacher's over the same rows."""
        with self._lock:
            self._change(lambda: records)

    def present(self, ids: np.ndarray, owners: bool = False) -> np.ndarray:
        """Mark those of ``ids`` (int64 [n]) that are of rows now: bool [n]. Private.

        ``owners``: ids are of persons where the guarantee is for those.
        """
        with self._lock:
            rows = self._rows.of(ids, owners)
            return np.isin(ids, rows.owners if owners else rows.ids)

    def _change(self, changed: Callable[[], Records]) -> None:
        spec, self._spec = self._spec, None  # if anything below fails, no removed record votes
        self._rows.adopt(changed())
        if spec is None:
            self._rows.forget_removed()
            return
        self._prepare(spec)
        self._spec = spec

    def _prepare(self, spec: ExtractorSpec) -> None:
        prepared, self._embedder = self._rows.prepare(spec), self._rows.embedder(spec)
        persons, owners = prepared.index.persons, prepared.index.units.ids
        if (persons is None) != (self.unit == "row") and len(prepared.index):
            error = InvalidInput.missing if persons is None else InvalidInput.needless
            raise error("records.persons", f"the unit of privacy is a {self.unit}")
        self._prepared, self._index = prepared, prepared.index
        self._serials = np.zeros(0, dtype=np.int64)
        if any(mechanism.charging is Charging.PREPAID for mechanism in self._mechanisms):
            self._serials = self._ledger.enrol(owners if persons is None else np.unique(owners))

    def _earlier_answers(self, spec: ExtractorSpec) -> list[EarlierAnswers | None]:
        """Earlier answers by slot; slots that use them share one file under an extractor."""
        reused = [mechanism.reuses for mechanism in self._mechanisms]
        if not any(reused):
            return [None] * len(reused)
        path = self._rows.directory / f"answered-{spec.sha256()}.bin"
        shared = EarlierAnswers(path, self._index.dimensions)
        return [shared if reuses else None for reuses in reused]

    def answer(self, queries: Queries) -> Answers:
        """Noisy labels of public inputs, outcomes and the receipt.

        Labels are int64 [n] with -1 where none was released. Where rows have attributes they are
        int64 [n, n_attributes] of 1, 0 and -1; where rows have a value, steps above its lower
        bound. A query whose identity is known is served from the ledger at no charge; duplicates
        inside a batch are one query. A mechanism charged by the batch takes the new queries as one.
        Raises InvalidInput before anything is charged, LedgerMismatch where the ledger refuses,
        TeacherFailed (a constant) for any failure of private work, before or after a charge.
        """
        return self.answer_together([queries])[0]

    def answer_together(self, calls: Sequence[Queries]) -> list[Answers]:
        """Answer several calls' queries of one slot as one batch.

        What several calls ask is charged once, to the first of them. Raises as ``answer`` does.
        """
        with self._lock:
            mechanism, identities = self._begin(*calls)
            slot, row = calls[0].slot, dict[str, np.ndarray]()
            for queries, own in zip(calls, identities, strict=True):
                row.update(zip(own, queries.inputs, strict=True))
            todo, size = [i for i in row if self._call.next_stage(i)], self._rows.batch_size
            if self.whole(slot):
                mechanism.require_batch(len(todo), self._index.dimensions)
                size = max(1, len(todo))
            for start in range(0, len(todo), size):
                self._progress("answering queries", start, len(todo))
                batch = todo[start : start + size]
                inputs = np.stack([row[identity] for identity in batch])
                embedded, _ = self._embedder.embed(inputs)  # what is not finite becomes zeros
                self._settle(slot, batch, embedded, inputs)
            if todo:
                self._progress("answering queries", len(todo), len(todo))
            return self._call.replies(self._space, identities, todo)

    def count(self, matrix: Matrix) -> NoisyCounts:
        """Noisy counts of all records by a public matrix: one release, or the stored refusal.

        The same matrix under the same extractor and mechanism gets the stored counts at no charge.
        Raises as ``answer`` does.
        """
        with self._lock:
            mechanism, ((identity,),) = self._begin(matrix)
            served = self._call.next_stage(identity) is None
            if not served:
                one = matrix.entries[np.newaxis]  # [m, d] -> [1, m, d]
                self._settle(matrix.slot, [identity], one)
            receipt = self._call.receipt(1, int(served), self._call.charged())
            state = self._ledger.state  # another object after a failure
            if identity in state.refused:
                return NoisyCounts(None, receipt)
            counts = np.array(state.results[identity][mechanism.stages[-1]], dtype=np.int64)
            return NoisyCounts(counts.reshape(mechanism.query_form.rows, -1), receipt)

    def chargeable(self, call: Queries | Matrix) -> int:
        """How many distinct queries of a call would be charged now, up to the cap. Public."""
        with self._lock:
            mechanism, (asked,) = self._begin(call)
            new = sum(self._call.next_stage(identity) is not None for identity in {*asked})
            if mechanism.charging is not Charging.PER_QUERY:
                return new
            return min(new, self._ledger.state.remaining(call.slot, mechanism.stages[0]))

    def whole(self, slot: int) -> bool:
        """Whether a call of this slot is one batch, neither split nor joined. Public."""
        of_slot = self._mechanisms[slot : slot + 1]
        return any(mechanism.charging is Charging.PER_BATCH for mechanism in of_slot)

    def _begin(self, *calls: Queries | Matrix) -> tuple[Mechanism, list[list[str]]]:
        """Check calls, and read what the ledger has: their mechanism, and each one's identities."""
        first, slot = calls[0], calls[0].slot
        kind = first.kind if isinstance(first, Matrix) else None
        name = kind or "queries"
        if self._spec is None:
            raise InvalidInput("extractor", f"set by use_extractor before the first {name}", None)
        if slot >= len(self._mechanisms):
            rule = f"below {len(self._mechanisms)}, the plan's slots"
            raise InvalidInput(f"{name}.slot", rule, slot)
        mechanism, dimensions = self._mechanisms[slot], self._index.dimensions
        form = mechanism.query_form
        if form.matrix != kind:
            other = f"answers queries, not one for {form.matrix}"
            rule = f"of a mechanism that {f'counts by {kind}' if kind else other}"
            raise InvalidInput(f"{name}.slot", rule, slot)
        form.require(self._spec, dimensions)
        if len(calls) > 1 and self.whole(slot):
            raise InvalidInput("calls", "one at a time where a batch is charged", len(calls))
        for call in calls:
            if call.slot != slot:
                rule = f"{slot}, as of the other calls of the batch"
                raise InvalidInput(f"{name}.slot", rule, call.slot)
            expected: tuple[int, ...] = self._spec.input_shape
            rule, array = f"rows of shape {expected}", "queries.inputs"
            if isinstance(call, Matrix):
                assert isinstance(form, MatrixForm)
                expected = form.shape(dimensions, self._space.outputs)
                rule = f"of shape {list(expected)}, as mechanism and extractor say"
                array = f"{kind}.{call.array}"
            shape = call.entries.shape if isinstance(call, Matrix) else call.inputs.shape[1:]
            if shape != expected:
                raise InvalidInput(array, rule, list(shape))
        self._ledger.catch_up()
        directory = self._rows.directory
        self._call = Call(self._ledger, slot, mechanism, self._entropy, directory)
        extractor, fields = self._spec.sha256(), mechanism.fields()
        return mechanism, [call.identities(extractor, fields) for call in calls]

    def _settle(
        self, slot: int, keys: list[str], queries: np.ndarray, inputs: np.ndarray | None = None
    ) -> None:
        """``queries``: int8 [n_queries, d], of ``inputs``, or matrices [1, m, n]."""
        voters = replace(self._prepared, queries=queries, inputs=inputs)
        self._call.settle(keys, voters, self._serials, self._memories[slot])
