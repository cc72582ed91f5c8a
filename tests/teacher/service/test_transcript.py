"""No byte of any reply depends on records that change no released value.

On one tape, a data set and the same with one record more give the same answers here. Then the whole
transcripts must be equal, whether the record is present at the start and removed or added midway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.classifiers import cnn_ensemble
from labelwall.teacher.features import hog
from labelwall.teacher.mechanisms import registry
from labelwall.teacher.mechanisms.attributes import GnmaxAttributes, PrivateKnnAttributes
from labelwall.teacher.mechanisms.batch import BatchKnn, RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.pate import ConfidentGnmax, Gnmax, Lnmax
from labelwall.teacher.mechanisms.registry import AnyMechanism
from labelwall.teacher.mechanisms.sums import (
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
    ReverseKnn,
)
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.teacher.mechanisms.votes import NaiveKnn, PrivateKnn, PrivateRadius
from labelwall.teacher.records.sources import Records
from labelwall.teacher.service import queue as queue_module
from labelwall.teacher.service import routes
from labelwall.teacher.service.jobs import Job, QueryJob
from labelwall.teacher.service.queue import RequestQueue
from labelwall.teacher.shards import worker
from labelwall.teacher.teacher import Teacher
from labelwall.wall.label_kinds import numbered_space
from labelwall.wall.messages import ExtractorSpec
from tests.teacher.service.transcript import (
    BATCH,
    WORLDS,
    Case,
    Conversation,
    after_a_restart,
    conversation,
    transcript,
)

CLASSES, DIMENSIONS, RECORDS = 3, 3, 60
SHAPE = (8, 9, 1)
RAW = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
BOX = ExtractorSpec(
    "box", (DIMENSIONS,), CLASSES, mean=(0.0,) * DIMENSIONS, std=(4.0,) * DIMENSIONS
)
HOG = ExtractorSpec("hog", SHAPE, CLASSES)
ANSWERING: tuple[AnyMechanism, ...] = (
    PrivateKnn(k=3, threshold=1, sigma_screen=2.0, sigma_vote=2.0, sampling_probability=0.5),
    PrivateKnnAttributes(k=3, tau=2, sigma_vote=1.0, sampling_probability=0.5),
    PrivateKnnMean(k=3, sigma_mean=0.5, sampling_probability=0.5),
    PrivateKnnMedian(
        k=3,
        epsilon=2.0,
        cells=8,
        window=1,
        threshold=1,
        sigma_screen=30.0,
        sampling_probability=0.5,
    ),
    PrivateRadius(
        share=0.2, threshold=1, sigma_screen=2.0, sigma_vote=2.0, sampling_probability=0.5
    ),
    NaiveKnn(k=3, sigma_vote=2.0),
    IndKnn(threshold=0.8, sigma_label=0.2, sigma_count=3.0, rho=0.6, reuse=True),
    Lnmax(teachers=7, scale=0.5),
    Gnmax(teachers=7, sigma_vote=1.0),
    ConfidentGnmax(teachers=7, threshold=5, sigma_screen=1.0, sigma_vote=1.0),
    GnmaxAttributes(teachers=7, tau=2, sigma_vote=1.0),
    ReverseKnn(centroids=6, neighbours=2, sigma=2.0),
    PrivateLinear(sigma=2.0),
    PrivateLinearAttributes(sigma=2.0),
    PrivateLinearValue(sigma=2.0),
    RadiusNeighbours(radius=0.1, epsilon=5.0),
    BatchKnn(k=9, epsilon=40.0, records=RECORDS),
)
# The extra record moves one network's votes: noise that hides a vote leaves what else would tell.
OF_NETWORKS: tuple[AnyMechanism, ...] = (
    Lnmax(teachers=5, scale=1000.0, classifier="cnn"),
    Gnmax(teachers=5, sigma_vote=1000.0, classifier="cnn"),
    ConfidentGnmax(
        teachers=5, threshold=2, sigma_screen=1000.0, sigma_vote=1000.0, classifier="cnn"
    ),
)
MECHANISMS, NETWORKS = ({each.kind: each for each in all_} for all_ in (ANSWERING, OF_NETWORKS))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that one record more changes all progress, and few finished jobs are kept."""
    monkeypatch.setattr(worker, "BLOCK", BATCH)
    monkeypatch.setattr(hog, "CHUNK", BATCH)
    monkeypatch.setattr(cnn_ensemble, "STEPS", 2)
    monkeypatch.setattr(queue_module, "MAX_FINISHED", 6)


def vectors(name: str, **options: object) -> Case:
    """Three clouds of vectors and queries within them; the extra record is far from all queries.

    Where counts of all records, or of all in a shard, are released, its features are not finite.
    """
    rng = np.random.default_rng(0)
    attributes = MECHANISMS[name].label_space == "attributes"
    labels = rng.integers(0, 1 << CLASSES if attributes else CLASSES, RECORDS)
    x = 3 * np.eye(DIMENSIONS)[labels % CLASSES] + rng.normal(size=(RECORDS, DIMENSIONS)) / 2
    queries = (
        3 * np.eye(DIMENSIONS)[np.arange(10) % CLASSES] + rng.normal(size=(10, DIMENSIONS)) / 2
    )
    records = Records(
        x.astype(np.float32),
        labels.astype(np.int64),
        rng.permutation(7 * RECORDS)[:RECORDS].astype(np.int64),
    )
    counted = name == "gnmax_attributes" or MECHANISMS[name].query_form.matrix is not None
    far = np.full((1, DIMENSIONS), 3e38 if counted else -9.0, dtype=np.float32)
    extra = Records(far, np.zeros(1, dtype=np.int64), np.array([5000]))
    outputs = numbered_space(MECHANISMS[name].label_space, CLASSES).outputs
    plain = BOX if name in ("radius", "batch_knn") else RAW
    spec = network(outputs) if counted else replace(plain, num_classes=outputs)
    if MECHANISMS[name].query_form.landmarks:
        near = 40 * np.eye(DIMENSIONS, dtype=np.int8)[np.arange(9) % DIMENSIONS]
        spec = replace(spec, landmarks=near.tobytes())
    embedder = replace(network(outputs), scale=60.0)
    queries = queries.astype(np.float32)
    return Case(MECHANISMS[name], records, extra, queries, embedder, spec, **options)  # type: ignore[arg-type]


def images(name: str) -> Case:
    """Noise with a bright column per class; the extra image is in one classifier's training set."""
    rng = np.random.default_rng(1)

    def drawn(labels: np.ndarray) -> np.ndarray:
        pixels = rng.integers(0, 90, (len(labels), *SHAPE))
        pixels[np.arange(len(labels)), :, 3 * labels] += 150
        return pixels.astype(np.uint8)

    labels, one = rng.integers(0, CLASSES, RECORDS), np.zeros(1, dtype=np.int64)
    records = Records(drawn(labels), labels, rng.permutation(10 * RECORDS)[:RECORDS])
    queries = drawn(np.arange(10) % CLASSES)
    return Case(
        NETWORKS[name],
        records,
        Records(drawn(one), one, one + 5000),
        queries,
        replace(HOG, scale=2.0),
        HOG,
    )


def network(outputs: int) -> ExtractorSpec:
    """Random weights, the same in every run, without a say in what they are good for."""
    import torch

    from labelwall.wall.networks import build, to_safetensors

    with torch.random.fork_rng():
        torch.manual_seed(0)
        untrained = build("mlp", input_shape=(DIMENSIONS,), num_classes=outputs)
    return ExtractorSpec("mlp", (DIMENSIONS,), outputs, to_safetensors(untrained), scale=50.0)


# Every mechanism; over shards; for each analyst; PATE's networks.
CASES: dict[str, Callable[[], Case]] = {
    **{name: partial(vectors, name) for name in MECHANISMS},
    **{f"{name}, shards": partial(vectors, name, shards=2) for name in MECHANISMS},
    **{f"{name}, each": partial(vectors, name, each=True) for name in ("private_knn", "ind_knn")},
    **{f"{name}, networks": partial(images, name) for name in NETWORKS},
}
# One for each way through the service, so that the rest may be slow. Networks are restarted below.
FAST = "private_knn", "reverse_knn", "private_knn, shards"


def transcripts(
    folder: Path, case: Case, monkeypatch: pytest.MonkeyPatch, worlds: Sequence[str] = tuple(WORLDS)
) -> dict[str, Conversation]:
    return {world: transcript(folder / world, case, world, monkeypatch) for world in worlds}


def differences(talks: dict[str, Conversation]) -> list[tuple[str, object, object]]:
    """(world, what was seen without the record, what was seen there) wherever they part first."""
    (_, plain), *others = talks.items()
    return [
        next((world, *pair) for pair in zip_longest(plain.seen, talk.seen) if pair[0] != pair[1])
        for world, talk in others
        if plain.seen != talk.seen
    ]


def progress(talks: dict[str, Conversation]) -> list[list[tuple[str, int, int]]]:
    """The teacher's progress over private rows in each world."""
    return [[now for now in talk.heard if "queries" not in now[0]] for talk in talks.values()]


def test_every_mechanism_is_among_the_cases() -> None:
    assert set(registry.MECHANISMS) == set(MECHANISMS)
    assert set(CASES) >= set(MECHANISMS) | {f"{name}, shards" for name in MECHANISMS} | set(FAST)
    names = {kind: {each.name for each in fields(m)} for kind, m in registry.MECHANISMS.items()}
    assert {kind for kind, known in names.items() if "classifier" in known} == set(NETWORKS)


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_callers_are_told_nothing_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    talks = transcripts(tmp_path, CASES[name](), monkeypatch)
    assert differences(talks) == []
    never, leaves, _ = progress(talks)
    assert never != leaves  # the teacher does work otherwise, and says so: to the custodian
    present = [
        talk.made.service.teacher.present(talk.case.extra.ids).all() for talk in talks.values()
    ]
    assert present == [False, False, True]
    assert all(talk.shown[-len(talk.heard) :] == talk.heard for talk in talks.values())
    states = {state for reply in talks["never"].seen for state in _states(reply)}
    assert {"queued", "running", "done"} <= states
    assert states <= {"queued", "running", "done"}


@pytest.mark.parametrize(
    "name", ["gnmax, networks", pytest.param("private_knn", marks=pytest.mark.slow)]
)
def test_a_record_that_the_source_got_meanwhile_shows_in_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A restarted service computes what is missing: different numbers of networks or rows."""
    talks = restarted(tmp_path, CASES[name](), monkeypatch)
    assert differences(talks) == []
    plain, later = progress(talks)
    assert plain != later


def restarted(folder: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> dict[str, Conversation]:
    sources = {"never": case.records, "comes": case.records.joined(case.extra)}
    return {
        world: after_a_restart(folder / world, case, rows, monkeypatch)
        for world, rows in sources.items()
    }


def _states(reply: tuple[object, ...]) -> list[str]:
    """The status of a job that a caller was told of."""
    if reply[3] not in (200, 202) or not str(reply[2]).startswith(
        ("jobs/", "extractors/", "labels", "cells", "weights")
    ):
        return []
    return [json.loads(reply[5])["status"]]  # type: ignore[arg-type]


def tell_percent(monkeypatch: pytest.MonkeyPatch, what: str = "") -> None:
    """A job has what the teacher says of its progress, as it once had."""
    step, progress = RequestQueue._step, RequestQueue.progress

    def remember(self: RequestQueue, jobs: list[Job]) -> None:
        # not of queries: how far those are is what the queue itself goes by
        vars(self)["running"] = None if isinstance(jobs[0], QueryJob) else jobs[0]
        step(self, jobs)

    def write(self: RequestQueue, said: str, done: int, total: int) -> None:
        progress(self, said, done, total)
        job = vars(self).get("running")
        if job is not None and what in said and not job.future.done():
            job.done, job.total = done, total

    monkeypatch.setattr(RequestQueue, "_step", remember)
    monkeypatch.setattr(RequestQueue, "progress", write)


def share_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that change the records take the room of analysts' requests."""
    monkeypatch.setattr(
        routes, "Job", lambda *given, from_custodian=False, **more: Job(*given, **more)
    )


def share_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished changes of the records push out analysts' finished jobs."""

    def forget(self: RequestQueue, from_custodian: bool) -> None:
        finished = [key for key, job in self._jobs.items() if job.future.done()]
        for key in finished[: max(0, len(finished) - queue_module.MAX_FINISHED + 1)]:
            del self._jobs[key]

    monkeypatch.setattr(RequestQueue, "_forget_finished", forget)


def tell_in_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """An extractor's result says how many rows have features."""
    finish = RequestQueue._finish

    def counted(self: RequestQueue, job: Job, outcome: object) -> None:
        counts = {"records": len(self._teacher._index)} if job.kind == "extractor" else {}
        finish(self, job, {**outcome, **counts} if isinstance(outcome, dict) else outcome)  # type: ignore[arg-type]

    monkeypatch.setattr(RequestQueue, "_finish", counted)


def tell_by_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag that changes with the records."""
    reply = routes.JSONResponse

    class Tagged(reply):  # type: ignore[misc, valid-type]
        def __init__(self, content: object, status: int = 200) -> None:
            super().__init__(
                content, status, headers={"etag": str(vars(queue_module).get("changes", 0))}
            )

    add = Teacher.add

    def tagged(self: Teacher, records: Records) -> None:
        vars(queue_module)["changes"] = vars(queue_module).get("changes", 0) + 1
        add(self, records)

    monkeypatch.setattr(queue_module, "changes", 0, raising=False)
    monkeypatch.setattr(Teacher, "add", tagged)
    monkeypatch.setattr(routes, "JSONResponse", Tagged)


@pytest.mark.parametrize(
    ("plant", "name", "world"),
    [
        (tell_percent, "private_knn", "leaves"),
        pytest.param(tell_percent, "private_knn, shards", "leaves", marks=pytest.mark.slow),
        (share_the_queue, "private_knn", "comes"),
        (share_what_is_kept, "private_knn", "comes"),
        pytest.param(tell_in_a_result, "private_knn", "leaves", marks=pytest.mark.slow),
        pytest.param(tell_by_a_header, "private_knn", "comes", marks=pytest.mark.slow),
    ],
)
def test_a_service_that_tells_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    name: str,
    world: str,
) -> None:
    plant(monkeypatch)
    assert differences(transcripts(tmp_path, CASES[name](), monkeypatch, ("never", world))) != []


def test_a_service_that_tells_how_many_networks_are_missing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_percent(monkeypatch, "training")
    assert differences(restarted(tmp_path, CASES["gnmax, networks"](), monkeypatch)) != []


def test_the_custodians_page_has_the_percentage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an analyst, who asks at the same moment, has not."""
    case, pages = vectors("private_knn"), list[str]()
    with conversation(tmp_path, case, case.records, monkeypatch) as talk:
        glance = talk.glance
        monkeypatch.setattr(
            talk, "glance", lambda: (pages.append(talk.made.browse().text), glance())
        )
        talk.put("ann", case.embedder)
        talk.drain()
        pages.append(talk.made.browse().text)
    for text, percent in zip(pages, (26, 53, 80), strict=False):
        assert f"embedding private records (percent): {percent} of 100" in text
    assert len(pages) > 2
    assert "<dd>nothing</dd>" in pages[-1]
    assert ("embedding private records (percent)", 26, 100) in talk.shown
    assert "percent" not in str(talk.seen)
