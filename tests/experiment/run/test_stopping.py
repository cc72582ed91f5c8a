"""When a run stops: how often it does so by chance, against the noise that is really drawn; what it
asks anew."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.stopping import (
    EXPECTED,
    FALSE,
    MISSED,
    TRIED,
    Stop,
    Stops,
    Watch,
    anew,
    records_by_class,
)
from labelwall.student.results import write
from labelwall.teacher.accounting.discrete_gaussian import log_at_least
from labelwall.teacher.accounting.plan import Slot
from labelwall.teacher.mechanisms.batch import RadiusNeighbours
from labelwall.teacher.mechanisms.gradient import gradient_sums
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn, PrivateRadius, SampledVotes
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.errors import LabelwallError
from labelwall.wall.label_kinds import STEPS, ClassLabels
from labelwall.wall.matrices import (
    COUNT,
    SENSITIVITY,
    Cells,
    Matrix,
    NoisyCounts,
    Weights,
    bias,
    residual_unit,
)
from labelwall.wall.messages import Answers, ExtractorSpec, Queries, Receipt
from labelwall.wall.questions import QueryForm, Round
from tests.experiment import tiny

CLASSES, DRAWS = 3, 3000
LINEAR = PrivateLinear(steps=20, noise_multiplier=5.0).query_form
CELLS = ReverseKnn(centroids=8, sigma=20.0).query_form
RECEIPT = Receipt(1, 0, {}, {"released": 9}, 1, "")


def folder(path: Path, slot: Any = None) -> RunFolder:
    """A run folder whose plan has one slot."""
    known = RunFolder(path)
    release = SimpleNamespace(name="released", cap=20)
    slot = slot or SimpleNamespace(releases=[release])
    known.plan = SimpleNamespace(slots=[slot])  # type: ignore[assignment]
    return known


def watch(
    path: Path, form: QueryForm, teacher: Any = None, slot: Any = None, guess: int = 1000
) -> Watch:
    if teacher is not None:
        vars(teacher).setdefault("export", lambda path: None)  # the copy of a ledger
    return Watch(
        teacher=teacher,
        asked=Round(number=1, slot=0, queries=None, once=True, form=form, seed=0),
        folder=folder(path, slot),
        space=ClassLabels.of(CLASSES),
        guess=guess,
    )


def stopped(path: Path, form: QueryForm, records: int, guess: int) -> float:
    """How often a round's first count stops the run, with fresh noise of the sampler."""
    shape = (1, 7) if form.matrix == "weights" else (form.centroids, CLASSES)
    scale = form.noise * (SENSITIVITY if form.matrix == "weights" else 1)
    keys = [str(draw) for draw in range(DRAWS)]
    width = shape[0] * shape[1]
    noise = SystemEntropy().discrete_gaussian(scale, keys, "released", width)
    found = 0
    for drawn in noise:
        counts = np.zeros(shape, dtype=np.int64)
        counts.flat[-1] = records * (COUNT if form.matrix == "weights" else 1)
        counts += drawn.reshape(shape)
        reply = NoisyCounts(counts, RECEIPT)
        teacher = SimpleNamespace(count=lambda _, reply=reply: reply)
        count = watch(path, form, teacher, guess=guess).count
        matrix = (
            Weights(np.zeros((2, 3), np.int16))
            if form.matrix == "weights"
            else Cells(np.zeros((8, 2), "i1"))
        )
        try:
            count(matrix)
        except LabelwallError:
            found += 1
            (path / "stopped.json").unlink()
    return found / DRAWS


@pytest.mark.fresh_noise
@pytest.mark.parametrize("form", [LINEAR, CELLS], ids=["sums", "histogram"])
def test_records_as_guessed_stop_no_run_and_none_stop_most(tmp_path, form) -> None:
    one = form.noise * (SENSITIVITY / COUNT if form.matrix == "weights" else math.sqrt(8 * CLASSES))
    least = math.ceil(EXPECTED * one)  # the smallest guess that one count is judged by
    assert stopped(tmp_path, form, least, least) < 3 / DRAWS  # 1 in 30,000
    assert 0.96 < stopped(tmp_path, form, 0, least) < 0.99
    assert stopped(tmp_path, form, 0, least - 1) == 0.0


@pytest.mark.fresh_noise
def test_few_records_are_judged_by_the_mean_of_as_many_counts_as_show_them(tmp_path) -> None:
    """A third of the noise's EXPECTED: nine counts. No records never spend all steps."""
    guess = math.ceil(EXPECTED * LINEAR.noise * SENSITIVITY / COUNT / 3)
    ends = {0: list[int](), guess: list[int]()}
    for records, found in ends.items():
        for draw in range(300):
            keys = [f"{records} {draw} {step}" for step in range(20)]
            noise = SystemEntropy().discrete_gaussian(5.0 * SENSITIVITY, keys, "sum", 7)
            noise[:, -1] += records * COUNT
            sums = iter(noise)
            teacher = SimpleNamespace(
                count=lambda _, sums=sums: NoisyCounts(next(sums)[None], RECEIPT)
            )
            count, step = watch(tmp_path, LINEAR, teacher, guess=guess).count, 0
            try:
                for step in range(20):
                    count(Weights(np.full((2, 3), step, np.int16)))
                found.append(20)
            except LabelwallError:
                found.append(step + 1)
                (tmp_path / "stopped.json").unlink()
    assert set(ends[guess]) == {20}
    assert min(ends[0]) == 9
    assert np.mean(np.array(ends[0]) == 9) > 0.93
    assert np.mean(np.array(ends[0]) == 20) < 0.03  # those that the first count misses: 2.3%


@pytest.mark.parametrize(
    "mechanism",
    [
        PrivateKnn(k=300, threshold=180, sigma_screen=60.0, sigma_vote=20.0),
        PrivateKnn(k=300, threshold=30, sigma_screen=60.0, sigma_vote=20.0),
        PrivateRadius(threshold=20, sigma_screen=15.0, sigma_vote=10.0),
    ],
)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 1.0])
def test_votes_stop_a_run_by_chance_as_rarely_as_is_said(
    tmp_path, mechanism: SampledVotes, share: float
) -> None:
    """By the exact law of the bits: without records, and with the share that the plan pays for."""
    slot = Slot(mechanism.fields(), mechanism.releases(1000, round(1000 * share)))
    rows = np.zeros((TRIED + 1, 2), np.float32)
    none = math.exp(log_at_least(np.array([mechanism.threshold + 1]), mechanism.sigma_screen)[0])
    ends = []
    for passed in range(TRIED + 1):
        outcomes = (np.arange(TRIED) >= passed).astype(np.uint8)
        reply = Answers(np.zeros(TRIED, np.int64), outcomes, RECEIPT)
        teacher = SimpleNamespace(answer=lambda _, reply=reply: reply)
        try:
            watch(tmp_path, mechanism.query_form, teacher, slot).answer(Queries(rows))
            ends.append(False)
        except LabelwallError:
            ends.append(True)
            (tmp_path / "stopped.json").unlink()
    law = [binom.pmf(range(TRIED + 1), TRIED, p) for p in (none, share)]
    missed, false = 1 - law[0][ends].sum(), law[1][ends].sum()
    assert false < FALSE
    assert missed < 1.1 * MISSED or not any(ends)
    assert any(ends) == (none < {0.02: 0.0, 0.3: 0.05, 0.6: 0.1, 1.0: 1.0}[share])


def test_a_batch_stays_whole(tmp_path) -> None:
    rows, asked = np.zeros((TRIED + 50, 2), np.float32), []

    def answer(queries: Queries) -> Answers:
        asked.append(len(queries.inputs))
        return Answers(np.zeros(asked[-1], np.int64), np.zeros(asked[-1], np.uint8), RECEIPT)

    batch = RadiusNeighbours(epsilon=1.0)
    slot = Slot(batch.fields(), batch.releases(1, 1))
    watched = watch(tmp_path, batch.query_form, SimpleNamespace(answer=answer), slot)
    assert len(watched.answer(Queries(rows)).labels) == len(rows)
    assert asked == [len(rows)]


@pytest.mark.parametrize(("dimensions", "classes", "told"), [(6, 3, True), (64, 10, False)])
def test_a_few_records_show_by_the_whole_sum_if_numbers_are_few(
    tmp_path, dimensions, classes, told
) -> None:
    """300 records whose count is 1.8 deviations: three classes far apart, and ten that are not."""
    rng, labels = np.random.default_rng(0), np.arange(300) % classes
    centers = rng.normal(0, 2.0 if told else 0.4, (classes, dimensions))
    rows = centers[labels] + rng.normal(size=(300, dimensions)) - centers.mean(axis=0)
    index, zeros = (
        ExactIndex(tiny.integers(rows), np.arange(300)),
        np.zeros((dimensions + 1, classes), "i2"),
    )
    unit = residual_unit(zeros, 0.1, 63.0)
    sums = gradient_sums(zeros[None], (unit,), bias(63.0), "class", 1, index, labels)
    form = PrivateLinear(steps=20, noise_multiplier=20.4).query_form
    teacher = SimpleNamespace(count=lambda _: NoisyCounts(sums, RECEIPT))  # as noise is 0 in mean
    count = watch(tmp_path, form, teacher).count
    above = ((sums / 20.4 / SENSITIVITY) ** 2).sum() / math.sqrt(2 * sums.size)
    assert 11 < above < 14 if told else above < 1
    if told:
        count(Weights(zeros))
    else:
        with pytest.raises(LabelwallError):
            count(Weights(zeros))


def test_few_records_show_at_last(tmp_path) -> None:
    """The same command again, of right files: counts of all its tries add up."""
    asked = []

    def count(matrix: Matrix) -> NoisyCounts:
        asked.append(matrix.entries.tobytes())
        records = 1.1 * 5.0 * SENSITIVITY  # a bit more than a deviation
        return NoisyCounts(np.array([[round(records)]]), RECEIPT)

    def again() -> None:
        watched = watch(tmp_path, LINEAR, SimpleNamespace(count=count))
        watched.count(Weights(np.zeros((2, 3), np.int16)))

    for _ in range(3):
        with pytest.raises(LabelwallError, match=r"a released count of 44 \+- 40 does not"):
            again()
    again()
    assert len(set(asked)) == 4


SPACES = {"class": 3, "attributes": 2, "value": 1}


@pytest.mark.parametrize("space", SPACES)
def test_a_sum_that_is_asked_anew_is_another_release_of_the_same_sum(space) -> None:
    """To the last unit, but for a value's prediction of a thousandth of half the range."""
    rng, width = np.random.default_rng(0), SPACES[space]
    features = rng.integers(-63, 64, (50, 4)).astype(np.int8)
    labels = rng.integers(0, {"class": 3, "attributes": 4, "value": STEPS}[space], 50)
    zeros = np.zeros((5, width), np.int16)
    sums, names = [], []
    for times in range(width * 5 + 1):
        matrix = anew(Weights(zeros), times)
        unit = residual_unit(matrix.entries, 0.25, 63.0, space)
        index = ExactIndex(features, np.arange(50))
        sums.append(
            gradient_sums(matrix.entries[None], (unit,), bias(63.0), space, 1, index, labels)
        )
        names.append(matrix.identity("", {}))
    assert len(set(names)) == len(names)
    most = 50 * 63 * 0.001 * residual_unit(zeros, 0.25, 63.0, space) if space == "value" else 0
    assert max(np.abs(each - sums[0]).max() for each in sums) <= most
    later = Weights(np.ones((5, width), np.int16))
    assert anew(later, 3) is later


def test_cells_that_are_asked_anew_come_back_in_their_own_order(tmp_path) -> None:
    centers = np.arange(8, dtype=np.int8).reshape(4, 2)
    stops = tuple(Stop(number=number, releases=1, records=0.0) for number in (1, 1, 2))
    write(Stops(stops=stops), tmp_path / "stopped.json")

    def count(matrix: Matrix) -> NoisyCounts:
        assert matrix.entries[:, 0].tolist() == [2, 4, 6, 0]
        return NoisyCounts(
            10_000 * np.repeat(matrix.entries[:, :1], 3, axis=1).astype(int), RECEIPT
        )

    watched = watch(tmp_path, CELLS, SimpleNamespace(count=count))
    assert watched.spent == 2
    counts = watched.count(Cells(centers)).counts
    assert counts is not None
    assert (counts[:, 0] == 10_000 * centers[:, 0].astype(int)).all()


@pytest.mark.parametrize("times", [0, 1, 4])
@pytest.mark.parametrize("clip", [0.25, 1.0])
def test_a_first_sum_counts_the_records_of_each_class(times: int, clip: float) -> None:
    """By brute force, of rows of one length, but for rounding."""
    rng, classes, length = np.random.default_rng(2), 4, 63.0
    labels = np.repeat(np.arange(classes), [200, 90, 40, 0])
    x = rng.normal(size=(len(labels), 6))
    x *= length / np.linalg.norm(x, axis=1, keepdims=True)
    sent = anew(Weights(np.zeros((7, classes), np.int16)), times)
    unit, index = (
        residual_unit(sent.entries, clip, length),
        ExactIndex(np.rint(x).astype(np.int8), np.arange(len(labels))),
    )
    sums = gradient_sums(sent.entries[None], (unit,), bias(length), "class", 1, index, labels)
    found, _ = records_by_class(sums[0], classes, clip, length)
    assert np.abs(found - [200, 90, 40, 0]).max() < 2
    assert found.sum() == pytest.approx(330, rel=1e-3)


@pytest.mark.fresh_noise
@pytest.mark.parametrize("absent", [False, True])
def test_a_class_stops_a_run_only_where_it_would_show(tmp_path, absent) -> None:
    """Of classes with 6 deviations of records one in 30,000 looks like none; of those without
    records 43 in 44 do."""
    length, shape = 63.0, (3, CLASSES)
    _, noise = records_by_class(np.zeros(9 + 1), CLASSES, LINEAR.clip, length)
    each = math.ceil(EXPECTED * LINEAR.noise * noise * 2)
    there = np.array([each, each, 0 if absent else each])
    unit = residual_unit(np.zeros(shape, np.int16), LINEAR.clip, length)
    rows = np.repeat(np.arange(CLASSES), there)
    index = ExactIndex(np.full((len(rows), 2), [63, 0], np.int8), np.arange(len(rows)))
    zeros = np.zeros((1, *shape), np.int16)
    sums = gradient_sums(zeros, (unit,), bias(length), "class", 1, index, rows)[0]
    keys = [str(draw) for draw in range(300)]
    drawn = SystemEntropy().discrete_gaussian(LINEAR.noise * SENSITIVITY, keys, "sum", len(sums))
    found = 0
    for noisy in sums + drawn:
        reply = NoisyCounts(noisy[None], RECEIPT)
        teacher = SimpleNamespace(count=lambda _, reply=reply: reply, use_extractor=lambda _: None)
        watched = replace(
            watch(tmp_path, LINEAR, teacher, guess=each), shares=np.full(CLASSES, 1 / CLASSES)
        )
        watched.use_extractor(ExtractorSpec("raw", (2,), CLASSES))
        try:
            watched.count(Weights(zeros[0]))
        except LabelwallError:
            found += 1
            (tmp_path / "stopped.json").unlink()
    assert (found > 280) if absent else (found == 0)
