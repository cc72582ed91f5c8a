"""Several custodians, each with records, a ledger and a budget of its own, asked as one teacher.

Each adds its own noise, so that none trusts another. Records are disjoint, so epsilon is each one's
own; a record that two of them have costs the sum.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from ...teacher.accounting.accountant import certified_epsilon
from ...teacher.accounting.conversion import round_up
from ...teacher.accounting.plan import Plan
from ...teacher.custody.recorded import read_state
from ...teacher.mechanisms.registry import from_slot
from ...wall.client import RemoteTeacher
from ...wall.errors import LabelwallError
from ...wall.files import write_file
from ...wall.matrices import Matrix, NoisyCounts
from ...wall.messages import ABSTAINED, Answers, ExtractorSpec, Queries, Receipt
from .summary import CustodianRecord

T = TypeVar("T")
Reply = TypeVar("Reply", Answers, NoisyCounts)


class Custodians:
    """Every call asks all of them at once. Counts and sums add up; labels are those that most
    custodians give, or most neighbours by Ind-KNN's released counts; values the means.

    One that can not be reached, refuses, fails or says what is no reply is left out from then on,
    and ``say`` hears why; one whose cap is reached adds nothing. Which ones take part is public.
    Raises the first one's error where none is left.

    ``teachers``: by URL, in the settings' order; ``plan``: of each; ``kind``: of the labels;
    ``gone``: who is left out, by URL, with the reason; ``place``: the file that remembers it, so
    that a resumed run adds up the same ones.
    """

    def __init__(
        self,
        teachers: Mapping[str, RemoteTeacher],
        plan: Plan,
        kind: str,
        say: Callable[[str], None],
        gone: Mapping[str, str],
        place: Path,
    ) -> None:
        self._teachers, self._plan, self._kind, self._say = dict(teachers), plan, kind, say
        self._place, self._left_out, self._extractor = place, dict[str, str](), ""
        self._leave_out(gone)

    def use_extractor(self, spec: ExtractorSpec) -> None:
        self._extractor = spec.sha256()
        self._all(lambda teacher: teacher.use_extractor(spec))

    def answer(self, queries: Queries) -> Answers:
        def one(teacher: RemoteTeacher) -> tuple[Answers, np.ndarray]:
            reply = self._checked(teacher.answer(queries), queries.slot)
            return reply, self._neighbours(teacher, queries)

        replies, weights = zip(*self._all(one), strict=True)
        outcomes = np.stack([reply.outcomes for reply in replies])
        labels = agreed([reply.labels for reply in replies], self._kind, weights)
        return Answers(labels, outcomes.min(axis=0), _joined([r.receipt for r in replies]))

    def _checked(self, reply: Reply, slot: int) -> Reply:
        """The reply. Raises LabelwallError for one that does not go with the others'."""
        names = {release.name for release in self._plan.slots[slot].releases}
        sides = 2 if self._kind == "attributes" else 1
        odd = isinstance(reply, Answers) and reply.labels.ndim != sides
        if odd or {*reply.receipt.charged} != names or {*reply.receipt.left} != names:
            raise LabelwallError("its replies are of another form than the plan says.")
        return reply

    def _neighbours(self, teacher: RemoteTeacher, queries: Queries) -> np.ndarray:
        """The noisy numbers of neighbours that a custodian's ledger released beside its labels,
        at least 1: int64 [n]; 1 where it releases none.
        """
        weights = np.ones(len(queries.inputs), dtype=np.int64)
        slot = self._plan.slots[queries.slot]
        mechanism = from_slot(slot)
        if mechanism.noise_of_neighbours is None:
            return weights
        with TemporaryDirectory() as scratch:
            teacher.export(copy := Path(scratch) / "ledger.sqlite")
            results = read_state(copy).results
        for row, identity in enumerate(queries.identities(self._extractor, slot.mechanism)):
            released = results.get(identity, {}).get(mechanism.stages[0])
            if isinstance(released, list):
                weights[row] = max(1, released[0])
        return weights

    def count(self, matrix: Matrix) -> NoisyCounts:
        replies = self._all(lambda teacher: self._checked(teacher.count(matrix), matrix.slot))
        counts = [reply.counts for reply in replies if reply.counts is not None]
        total = np.sum(counts, axis=0) if counts else None
        return NoisyCounts(total, _joined([reply.receipt for reply in replies]))

    def export(self, path: Path) -> None:
        """Each one's ledger beside ``path``, numbered from 1, and at ``path`` that of the first one
        that is not left out. Of those that are, the last copies stay.
        """
        places = self._places(path)
        names = {id(teacher): url for url, teacher in self._teachers.items()}

        def one(teacher: RemoteTeacher) -> None:
            place = places[names[id(teacher)]]
            with TemporaryDirectory(dir=path.parent) as scratch:
                teacher.export(copy := Path(scratch) / place.name)
                read_state(copy)  # raises for what is none, before the last copy is lost
                copy.replace(place)

        self._all(one)
        first = next(url for url in self._teachers if url not in self._left_out)
        write_file(path, places[first].read_bytes())

    def described(self, path: Path) -> tuple[CustodianRecord, ...]:
        """Each custodian by its ledger that was exported beside ``path``; of one that is left out,
        as it was last seen before.
        """
        known = list[CustodianRecord]()
        for url, place in self._places(path).items():
            record = CustodianRecord(teacher=url, left_out=self._left_out.get(url))
            if place.exists():
                state = read_state(place)
                assert state.plan is not None
                epsilon = None if state.unsafe else round_up(certified_epsilon(state.plan))
                record = replace(
                    record, dataset=state.dataset, ledger_head=state.head, epsilon=epsilon
                )
            known.append(record)
        return tuple(known)

    def _places(self, path: Path) -> dict[str, Path]:
        """The file of each one's ledger, by URL."""
        numbered = enumerate(self._teachers, start=1)
        return {url: path.with_stem(f"{path.stem}_{number}") for number, url in numbered}

    def _leave_out(self, why: Mapping[str, str]) -> None:
        for url, reason in why.items():
            self._left_out[url] = reason
            self._say(f"{url} is left out from here on: {reason}")
        if why:
            write_file(self._place, json.dumps(self._left_out, indent=2))

    def _all(self, call: Callable[[RemoteTeacher], T]) -> list[T]:
        asked = [url for url in self._teachers if url not in self._left_out]

        def one(url: str) -> T | LabelwallError:
            try:
                return call(self._teachers[url])
            except LabelwallError as error:
                return error

        with ThreadPoolExecutor(len(asked)) as pool:
            replies = dict(zip(asked, pool.map(one, asked), strict=True))
        errors = {u: r for u, r in replies.items() if isinstance(r, LabelwallError)}
        if len(errors) == len(asked):
            raise next(iter(errors.values()))
        self._leave_out({url: str(error) for url, error in errors.items()})
        return [r for r in replies.values() if not isinstance(r, LabelwallError)]


def agreed(labels: Sequence[np.ndarray], kind: str, weights: Sequence[np.ndarray]) -> np.ndarray:
    """The label of each row, or attribute, that most custodians give, and the lowest of equal ones.
    For values it is the mean, rounded; -1 if none gives one. Arrays int64 of one shape.

    ``weights``: of each custodian's labels, int64 [n] by row.
    """
    given = np.stack(labels)
    said = given != ABSTAINED
    if kind == "value":
        mean = np.rint(np.where(said, given, 0).sum(axis=0) / np.maximum(said.sum(axis=0), 1))
    else:
        heavy = np.stack(weights).reshape(*given.shape[:2], *[1] * (given.ndim - 2))
        every = range(int(given.max(initial=0)) + 1)
        votes = [((given == label) * heavy).sum(axis=0) for label in every]
        mean = np.argmax(votes, axis=0)
    return np.where(said.any(axis=0), mean, ABSTAINED).astype(np.int64)


def _joined(receipts: Sequence[Receipt]) -> Receipt:
    """The first one's, with the most that any of them charged, and the least that is left."""
    charged = {name: max(r.charged[name] for r in receipts) for name in receipts[0].charged}
    left = {name: min(r.left[name] for r in receipts) for name in receipts[0].left}
    return replace(receipts[0], charged=charged, left=left)
