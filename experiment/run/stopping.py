"""A round stops where its first releases do not tell the private rows from none.

This follows from released values, the plan and a public guess: it is post-processing, and free.
The rest of the plan is kept: the same command asks anew, about the rows as they are by then.
"""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.stats import binom

from ...student.linear.tuning import SURE_COUNT
from ...student.results import read, write
from ...student.round_files import COUNTED
from ...teacher.accounting.plan import Slot
from ...teacher.mechanisms.base import Charging
from ...teacher.mechanisms.ind_knn import MIN_NEIGHBOURS
from ...teacher.mechanisms.registry import from_slot
from ...wall.answering import Answering
from ...wall.errors import LabelwallError, listed
from ...wall.features.embedder import unit_length
from ...wall.labels import LabelSpace
from ...wall.matrices import (
    COUNT,
    SENSITIVITY,
    Matrix,
    NoisyCounts,
    bias,
    longest_residual,
    residual_unit,
)
from ...wall.messages import ABSTAINED, Answers, ExtractorSpec, Outcome, Queries, join_answers
from ...wall.questions import CellsForm, Round, SumsForm
from .custodians import Custodians
from .run_folder import RunFolder

# Deviations of its noise that a count of the expected records has, where it is judged: then it is
# within SURE of them in 1 of 30,000 runs. Of no records one is in 43 of 44, and a later one soon.
EXPECTED = 6.0
# Deviations by which the squares of all numbers are above those of noise: they tell, too
LOUD = 5.0
TRIED = 100  # queries after which votes are judged
MISSED, FALSE = 1e-3, 1e-4  # probabilities that no records look like some, and some like none


@dataclass(frozen=True, kw_only=True)
class Stop:
    """A stop of round ``number`` after so many ``releases``, which count ``records`` together."""

    number: int
    releases: int
    records: float
    of_class: bool = False  # some class had none; a run stops for that once


@dataclass(frozen=True, kw_only=True)
class Stops:
    """The stops of a run, in order: its stopped.json."""

    stops: tuple[Stop, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A teacher that raises LabelwallError where what it releases for a round shows no records.

    ``guess``: PUBLIC, of the number of records; ``shares``: of the classes among labelled PUBLIC
    rows, float64 [c], where there are enough. ``seen``: numbers of records that were counted, by
    the matrix.
    """

    teacher: Answering
    asked: Round
    folder: RunFolder
    space: LabelSpace
    guess: int
    shares: np.ndarray | None = None
    seen: dict[bytes, float] = field(default_factory=dict)
    extractor: list[ExtractorSpec] = field(default_factory=list)  # the one in use

    @property
    def stops(self) -> tuple[Stop, ...]:
        """All stops of the run until now."""
        stopped = self.folder.stopped
        return read(Stops, stopped).stops if stopped.exists() else ()

    @property
    def spent(self) -> int:
        """Releases that this round made before it stopped."""
        return sum(stop.releases for stop in self.stops if stop.number == self.asked.number)

    def _stop(
        self, releases: int, total: float, found: str, left: str, of_class: bool = False
    ) -> LabelwallError:
        """The end of the run, with a copy of what was released. A kill in between finds the same
        releases in the ledger.
        """
        self.teacher.export(self.folder.ledger)
        place = self.folder.round(self.asked.number)
        for stale in (*place.glob(COUNTED), *place.glob("weights_*.npz")):  # by these releases
            stale.unlink()
        stop = Stop(number=self.asked.number, releases=releases, records=total, of_class=of_class)
        write(Stops(stops=(*self.stops, stop)), self.folder.stopped)
        cure = "If they are right but few, it goes on as soon as they show."
        if of_class:
            cure = "If there are none, give the same command again: it goes on without them."
        named = self.space.kind == "class"
        same = f", for the classes {listed(self.space.names)}" if named else ""
        return LabelwallError(
            f"round {self.asked.number}: {found}, so the run stops here. {self.space.causes}"
            f". {left} are left: the same command goes on with them once the files are "
            f"mended{same} (and a service, or shards, have read them again). {cure}"
        )

    @property
    def remaining(self) -> Round:
        """The round, with the sums that it has left after a stop."""
        form = self.asked.form
        if not isinstance(form, SumsForm):
            return self.asked
        return replace(self.asked, form=replace(form, steps=max(1, form.steps - self.spent)))

    @property
    def _noise(self) -> float:
        """The deviation of a released number of records, of a round that asks by matrices."""
        form = self.asked.form
        if isinstance(form, CellsForm):
            counts = form.centroids * self.space.outputs
            return form.deviation * math.sqrt(counts) / form.neighbours
        assert isinstance(form, SumsForm)
        return form.gain * form.deviation * SENSITIVITY / COUNT

    @property
    def _needed(self) -> int:
        """How many counts show as many records as are guessed."""
        return math.ceil((EXPECTED * self._noise / self.guess) ** 2)

    @property
    def _hidden(self) -> bool:
        """Whether no counts of the round show them."""
        form = self.remaining.form
        return self._needed > max(form.steps - 1 if isinstance(form, SumsForm) else 0, 1)

    def warning(self) -> str:
        """What is said before anything is asked, where nothing can stop the round; else empty."""
        if self.asked.form.matrix is None or not self._hidden:
            return ""
        return (
            f"a count has noise of {self._noise:.0f}, so {self.guess} records (expected_records) "
            "cannot be seen. The run will not notice if no private row is read."
        )

    def use_extractor(self, spec: ExtractorSpec) -> None:
        self.extractor[:] = [spec]
        self.teacher.use_extractor(spec)

    def export(self, path: Path) -> None:
        self.teacher.export(path)

    def count(self, matrix: Matrix) -> NoisyCounts:
        """Noisy counts, whose mean is judged from the first on that would show so many records as
        are guessed.
        """
        form, noise, times, seen = self.asked.form, self._noise, len(self.stops), self.seen
        sent = anew(matrix, times)
        noisy = self.teacher.count(sent)
        if (counts := noisy.counts) is None:
            return noisy
        if isinstance(form, CellsForm):
            counts, unit = np.roll(counts, -times, axis=0), form.parts
            records = float(counts.sum()) / (form.parts * form.neighbours)
        else:
            assert isinstance(form, SumsForm)
            records, unit = form.gain * float(counts[0, -1]) / COUNT, SENSITIVITY
        seen[sent.entries.tobytes()] = records  # the same one again is no other release
        left, total = sum(noisy.receipt.left.values()), sum(seen.values())
        later = self.folder.round(self.asked.number) / f"weights_{len(seen) + 1}.npz"
        judged = len(seen) >= self._needed and left and not (self._hidden or later.exists())
        every = total + sum(s.records for s in self.stops if s.number == self.asked.number)
        shown = (
            total > SURE_COUNT * noise * math.sqrt(len(seen)),
            every > SURE_COUNT * noise * math.sqrt(len(seen) + self.spent),  # few rows, in the end
            np.mean((counts / unit / form.deviation) ** 2) > 1 + LOUD * math.sqrt(2 / counts.size),
        )
        if judged and not any(shown):
            deviation = noise / math.sqrt(len(seen))
            found = (
                f"a released count of {total / len(seen):.0f} +- {deviation:.0f} does not tell "
                f"the private rows from none, where about {self.guess} were expected"
            )
            raise self._stop(len(seen), total, found, self._left(left))
        if left and not later.exists() and (found := self._absent(sent, counts)):
            raise self._stop(len(seen), total, found, self._left(left), of_class=True)
        return replace(noisy, counts=counts)

    def _left(self, left: int) -> str:
        cap = self.folder.plan.slots[self.asked.slot].releases[0].cap
        return f"{left} of {cap} noisy counts"

    def _absent(self, sent: Matrix, counts: np.ndarray) -> str:
        """A line that names the classes of which the first counts show no records. It is empty if
        every class has some, or the counts do not tell. ``counts``: by the matrix ``sent``.
        """
        form = self.asked.form
        told = any(stop.of_class for stop in self.stops) or len(self.seen) > 1
        if told or self.shares is None:
            return ""
        if isinstance(form, CellsForm):
            by_class = counts.sum(axis=0) / (form.parts * form.neighbours)
            noise = form.deviation * math.sqrt(form.centroids) / form.neighbours
        else:
            assert isinstance(form, SumsForm)
            box = self.extractor[0].backbone == "box"  # whose rows have any length
            if box or form.labels != "class" or form.gain != 1:
                return ""
            length = unit_length(self.extractor[0], len(sent.entries) - 1)
            by_class, noise = records_by_class(counts[0], len(self.shares), form.clip, length)
            noise *= form.deviation
        usual = self.shares * max(0.0, by_class.sum())
        none = (usual >= EXPECTED * noise) & (by_class <= SURE_COUNT * noise)
        lacking = [f"{self.space.names[k]} (usually {usual[k]:.0f})" for k in np.flatnonzero(none)]
        if not lacking:
            return ""
        return f"released counts, +- {noise:.0f}, show no private row of {listed(lacking)}"

    def answer(self, queries: Queries) -> Answers:
        """Answers to the round's queries, TRIED of them first; no labels of those before a stop."""
        before, slot = self.spent, self.folder.plan.slots[queries.slot]
        if from_slot(slot).charging is Charging.PER_BATCH:  # a second one would be charged, too
            return self.teacher.answer(queries)
        first, rest = (
            replace(queries, inputs=part) for part in np.split(queries.inputs, [before + TRIED])
        )
        answers = self.teacher.answer(first)
        if len(rest.inputs):
            tried = replace(first, inputs=first.inputs[before:])
            if found := self._unseen(slot, tried, answers.outcomes[before:]):
                left = f"{len(rest.inputs)} of {len(queries.inputs)} rows"
                raise self._stop(TRIED, 0.0, found, left)
            answers = join_answers([answers, self.teacher.answer(rest)])
        labels, outcomes = answers.labels.copy(), answers.outcomes.copy()
        labels[:before], outcomes[:before] = ABSTAINED, Outcome.ABSTAINED
        return replace(answers, labels=labels, outcomes=outcomes)

    def _unseen(self, slot: Slot, tried: Queries, outcomes: np.ndarray) -> str:
        """What does not tell the records from none; empty where something does, or nothing can."""
        mechanism = from_slot(slot)
        if (none := mechanism.passed_by_noise) is not None:
            screened, answered = (release.cap for release in slot.releases)
            most, passed = binom.isf(MISSED, TRIED, none), int((outcomes == 0).sum())
            usual = answered / screened  # what the plan pays for
            known = binom.cdf(most, TRIED, usual) < FALSE and Outcome.CAP_REACHED not in outcomes
            if known and passed <= most:
                few = f"only {passed} of {TRIED} queries passed the screening"
                return f"{few}, as many as noise alone passes"
        deviation = mechanism.noise_of_neighbours
        if deviation is not None and not isinstance(self.teacher, Custodians):
            self.teacher.export(self.folder.ledger)
            results, stage = self.folder.ledger_state().results, mechanism.stages[0]
            known = {*tried.identities(self.extractor[0].sha256(), slot.mechanism)}
            mean = np.mean([np.ravel(results[query][stage])[0] for query in known])
            noise = deviation / math.sqrt(len(known))
            if EXPECTED * noise < MIN_NEIGHBOURS and mean <= SURE_COUNT * noise:
                near = f"{mean:.1f} +- {noise:.1f} neighbours a query"
                return f"{near} do not tell the private rows from none"
        return ""


def records_by_class(
    counts: np.ndarray, classes: int, clip: float, length: float
) -> tuple[np.ndarray, float]:
    """(records of each class, float64 [c]; their noise, in noise multipliers) by a linear model's
    first sum, where all records have one prediction.

    ``counts``: int64 [(d + 1) c + 1], a noisy sum at weights of 0 of inputs of this ``length``. A
    record of class k adds (1 / c - [j = k]) times unit and bias to the bias of class j, shrunk as
    far as its residual is longer than ``clip``: alike for all records, as inputs are equally long.
    """
    weights = np.zeros((1, classes), dtype=np.int16)
    longest = longest_residual("class", classes, math.inf, first=True)
    shrunk = longest_residual("class", classes, clip, first=True) / longest
    step = residual_unit(weights, clip, length) * shrunk * bias(length)
    noise = math.hypot(1 / (classes * COUNT), 1 / step) * SENSITIVITY
    return counts[-1] / COUNT / classes - counts[-1 - classes : -1] / step, noise


def anew(matrix: Matrix, times: int) -> Matrix:
    """The matrix as it is asked after so many stops, since stored answers are of the rows before.

    Cells come in another order. Weights of 0 get one entry of 1, which changes no residual but a
    value's, by a thousandth; later weights follow from new sums.
    """
    if not times or (matrix.kind == "weights" and matrix.entries.any()):
        return matrix
    entries = np.roll(matrix.entries, times, axis=0)
    if matrix.kind == "weights":
        entries.flat[(times - 1) % entries.size] = 1
    return replace(matrix, entries=entries)
