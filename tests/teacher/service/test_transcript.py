"""No byte of any reply depends on records that change no released value, nor does the order of the
ledger's entries. On one tape, answers are the same with one record more."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.classifiers import cnn_ensemble
from labelwall.teacher.mechanisms import registry
from labelwall.teacher.mechanisms.registry import AnyMechanism
from labelwall.teacher.records import embedding_cache
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.service import queue as queue_module
from labelwall.teacher.service import routes
from labelwall.teacher.service.queue import Job, RequestQueue
from labelwall.teacher.shards import worker
from labelwall.teacher.teacher import Teacher
from labelwall.wall.features import embedder
from labelwall.wall.label_kinds import numbered_space
from labelwall.wall.messages import ExtractorSpec
from tests import ledgers
from tests.teacher.service.transcript import (
    BATCH,
    WORLDS,
    Case,
    Conversation,
    after_a_restart,
    conversation,
    transcript,
)
from tests.teacher.shards.tiny import BOX, CLASSES, DIMENSIONS, ONE_OF_EACH, RAW

RECORDS = 60
SHAPE = (8, 9, 1)
HOG = ExtractorSpec("hog", SHAPE, CLASSES)
EACH_KIND = {each.kind: each for each in ONE_OF_EACH}
CHANGED: dict[str, dict[str, Any]] = {  # for 60 records
    "private_knn": {"k": 3, "threshold": 1},
    "private_knn_median": {"k": 3, "threshold": 1},
    "private_knn_attributes": {"k": 3},
    "private_knn_mean": {"k": 3},
    "naive_knn": {"k": 3},
    "private_radius": {"threshold": 1},
    "ind_knn": {"reuse": True},
    "batch_knn": {"records": RECORDS},
}
MECHANISMS: dict[str, AnyMechanism] = {
    kind: replace(each, **CHANGED.get(kind, {})) for kind, each in EACH_KIND.items()
}
# The extra record moves one network's votes: noise that hides a vote leaves what else would tell.
NETWORKS = replace(EACH_KIND["gnmax"], classifier="cnn", sigma_vote=1000.0)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks so small that one record more changes all progress, and few finished jobs are kept."""
    monkeypatch.setattr(worker, "BLOCK", BATCH)
    monkeypatch.setattr(embedder, "CHUNK", BATCH)
    monkeypatch.setattr(cnn_ensemble, "STEPS", 2)
    monkeypatch.setattr(queue_module, "MAX_FINISHED", 6)


def vectors(name, **options):
    """Clouds of vectors and queries within them. The extra record is far from all queries, or not
    finite where counts of all records are released.
    """
    rng = np.random.default_rng(0)
    attributes = MECHANISMS[name].label_space == "attributes"
    labels = rng.integers(0, 1 << CLASSES if attributes else CLASSES, RECORDS)
    of = np.concatenate([labels, np.arange(10)]) % CLASSES
    rows = 3 * np.eye(DIMENSIONS)[of] + rng.normal(size=(len(of), DIMENSIONS)) / 2
    x, queries = np.split(rows.astype(np.float32), [RECORDS])
    records = Records(x, labels.astype(np.int64), rng.permutation(7 * RECORDS)[:RECORDS])
    counted = name == "gnmax_attributes" or MECHANISMS[name].query_form.matrix is not None
    far = np.full((1, DIMENSIONS), 3e38 if counted else -9.0, dtype=np.float32)
    extra = Records(far, np.zeros(1, dtype=np.int64), np.array([5000]))
    outputs = numbered_space(MECHANISMS[name].label_space, CLASSES).outputs
    plain = BOX if name in ("radius", "batch_knn") else RAW
    spec = network(outputs) if counted else replace(plain, num_classes=outputs)
    if getattr(MECHANISMS[name].query_form, "landmarks", 0):
        near = 40 * np.eye(DIMENSIONS, dtype=np.int8)[np.arange(9) % DIMENSIONS]
        spec = replace(spec, landmarks=near.tobytes())
    embedder = replace(network(outputs), scale=60.0)
    return Case(MECHANISMS[name], records, extra, queries, embedder, spec, **options)


def images():
    """Noise with a bright column per class; the extra image is in one classifier's training set."""
    rng = np.random.default_rng(1)

    def drawn(labels):
        pixels = rng.integers(0, 90, (len(labels), *SHAPE))
        pixels[np.arange(len(labels)), :, 3 * labels] += 150
        return pixels.astype(np.uint8)

    labels, one = rng.integers(0, CLASSES, RECORDS), np.zeros(1, dtype=np.int64)
    records = Records(drawn(labels), labels, rng.permutation(10 * RECORDS)[:RECORDS])
    queries, extra = drawn(np.arange(10) % CLASSES), Records(drawn(one), one, one + 5000)
    return Case(NETWORKS, records, extra, queries, replace(HOG, scale=2.0), HOG)


def network(outputs):
    """Random weights, the same in every run, without a say in what they are good for."""
    import torch

    from labelwall.wall.networks import build, to_safetensors

    with torch.random.fork_rng():
        torch.manual_seed(0)
        untrained = build("mlp", input_shape=(DIMENSIONS,), num_classes=outputs)
    return ExtractorSpec("mlp", (DIMENSIONS,), outputs, to_safetensors(untrained), scale=50.0)


CASES: dict[str, Callable[[], Case]] = {
    **{name: partial(vectors, name) for name in MECHANISMS},
    **{f"{name}, shards": partial(vectors, name, shards=2) for name in MECHANISMS},
    **{f"{name}, each": partial(vectors, name, each=True) for name in ("private_knn", "ind_knn")},
    "gnmax, networks": images,
}
# One for each way through the service, so that the rest may be slow. Networks are restarted below.
FAST = "private_knn", "reverse_knn", "private_knn, shards"


def transcripts(folder, case, monkeypatch, worlds=tuple(WORLDS)):
    return {world: transcript(folder / world, case, world, monkeypatch) for world in worlds}


def differences(talks):
    """(world, what was seen without the record, what was seen there) wherever they part first."""
    (_, plain), *others = talks.items()
    return [
        next((world, *pair) for pair in zip_longest(plain.seen, talk.seen) if pair[0] != pair[1])
        for world, talk in others
        if plain.seen != talk.seen
    ]


def progress(talks):
    """The teacher's progress over private rows in each world."""
    return [[now for now in talk.heard if "queries" not in now[0]] for talk in talks.values()]


def test_every_mechanism_is_among_the_cases():
    assert set(registry.MECHANISMS) == set(MECHANISMS)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in CASES if name not in FAST]


@pytest.mark.parametrize("name", [*FAST, *SLOW])
def test_callers_are_told_nothing_of_a_record(tmp_path, monkeypatch, name):
    talks = transcripts(tmp_path, CASES[name](), monkeypatch)
    assert differences(talks) == []
    never, leaves, _ = progress(talks)
    assert never != leaves  # the teacher does work otherwise, and says so: to the custodian
    teachers = [(talk.made.service.teacher, talk.case.extra.ids) for talk in talks.values()]
    assert [each.present(ids).all() for each, ids in teachers] == [False, False, True]
    assert all(talk.shown[-len(talk.heard) :] == talk.heard for talk in talks.values())
    told = b"".join(reply[-1] for reply in talks["never"].seen)
    assert {*re.findall(rb'"status":"(\w+)","done"', told)} == {b"queued", b"running", b"done"}


@pytest.mark.parametrize(
    "name", ["gnmax, networks", pytest.param("private_knn", marks=pytest.mark.slow)]
)
def test_a_record_that_the_source_got_meanwhile_shows_in_nothing(tmp_path, monkeypatch, name):
    """A restarted service computes what is missing: different numbers of networks or rows."""
    talks = restarted(tmp_path, CASES[name](), monkeypatch)
    assert differences(talks) == []
    plain, later = progress(talks)
    assert plain != later


def restarted(folder, case, monkeypatch):
    sources = {"never": case.records, "comes": case.records.joined(case.extra)}
    return {
        world: after_a_restart(folder / world, case, rows, monkeypatch)
        for world, rows in sources.items()
    }


def tell_percent(monkeypatch, what=""):
    """A job has what the teacher says of its progress, as it once had."""
    step, progress = RequestQueue._step, RequestQueue.progress

    def remember(self, jobs):
        # not of queries: how far those are is what the queue itself goes by
        vars(self)["running"] = None if jobs[0].kind == "labels" else jobs[0]
        step(self, jobs)

    def write(self, said, done, total):
        progress(self, said, done, total)
        job = vars(self).get("running")
        if job is not None and what in said and not job.future.done():
            job.done, job.total = done, total

    monkeypatch.setattr(RequestQueue, "_step", remember)
    monkeypatch.setattr(RequestQueue, "progress", write)


def share_the_queue(monkeypatch):
    """Requests that change the records take the room of analysts' requests."""
    monkeypatch.setattr(
        routes, "Job", lambda *given, from_custodian=False, **more: Job(*given, **more)
    )


def share_what_is_kept(monkeypatch):
    """Finished changes of the records push out analysts' finished jobs."""

    def forget(self, from_custodian):
        finished = [key for key, job in self._jobs.items() if job.future.done()]
        for key in finished[: max(0, len(finished) - queue_module.MAX_FINISHED + 1)]:
            del self._jobs[key]

    monkeypatch.setattr(RequestQueue, "_forget_finished", forget)


def tell_in_a_result(monkeypatch):
    """An extractor's result says how many rows have features."""
    finish = RequestQueue._finish

    def counted(self, job, outcome):
        counts = {"records": len(self._teacher._index)} if job.kind == "extractor" else {}
        finish(self, job, {**outcome, **counts} if isinstance(outcome, dict) else outcome)

    monkeypatch.setattr(RequestQueue, "_finish", counted)


def tell_by_a_header(monkeypatch):
    """A tag that changes with the records."""
    changes, add, reply = [0], Teacher.add, routes.JSONResponse

    def tagged(self, records):
        changes[0] += 1
        add(self, records)

    def response(content, status=200):
        return reply(content, status, headers={"etag": str(changes[0])})

    monkeypatch.setattr(Teacher, "add", tagged)
    monkeypatch.setattr(routes, "JSONResponse", response)


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
def test_a_service_that_tells_is_seen(tmp_path, monkeypatch, plant, name, world):
    plant(monkeypatch)
    assert differences(transcripts(tmp_path, CASES[name](), monkeypatch, ("never", world))) != []


def test_a_service_that_tells_how_many_networks_are_missing_is_seen(tmp_path, monkeypatch):
    tell_percent(monkeypatch, "training")
    assert differences(restarted(tmp_path, CASES["gnmax, networks"](), monkeypatch)) != []


def order_of_answers(folder, n, monkeypatch, gone=False):
    """The queries of each release in the ledger, where embedding has a turn for 16 of n rows.

    Meanwhile bob asks ten batches under an extractor, and ann a few under two, whose features are
    kept, or ``gone``, as after a damage of the custodian's disk.
    """
    monkeypatch.setattr(embedding_cache, "block_rows", lambda _: BATCH)
    monkeypatch.setattr(queue_module, "TURN", 0.0)
    for polls in ("look", "glance"):
        monkeypatch.setattr(Conversation, polls, lambda _: None)
    case, rng = vectors("naive_knn"), np.random.default_rng(4)
    queries = rng.normal(size=(14 * BATCH, DIMENSIONS)).astype(np.float32)
    x = rng.normal(size=(n, DIMENSIONS)).astype(np.float32)
    records = Records(x, np.arange(n) % CLASSES, np.arange(n))
    other = replace(case.spec, scale=2.0)
    with conversation(folder, case, records, monkeypatch) as talk:
        talk.made.service.shared.max_jobs = 99
        talk.prepare(case.spec, other)
        if gone:
            for path in folder.glob("embeddings-*"):
                path.unlink()
        talk.put("ann", case.embedder)
        talk.ask("bob", queries[: 10 * BATCH])
        talk.ask("ann", queries[10 * BATCH : 12 * BATCH], spec=other)
        talk.ask("ann", queries[12 * BATCH :])
        talk.drain()
        releases = ledgers.contents(folder / "ledger.sqlite", "release")
    return [list(release["results"]) for release in releases]


@pytest.mark.parametrize("gone", [False, True], ids=["features kept", "features gone"])
def test_the_order_of_entries_counts_no_turns_of_embedding(tmp_path, monkeypatch, gone):
    orders = [order_of_answers(tmp_path / str(n), n, monkeypatch, gone) for n in (64, 65, 81)]
    assert len(orders[0]) == 14
    assert orders[1:] == [orders[0]] * 2


def test_a_service_that_counts_turns_of_embedding_is_seen(tmp_path, monkeypatch):
    """Whose extractor is embedded waits, so others' answers count its turns."""
    answerable = RequestQueue._answerable

    def waiting(self):
        embedding = {job.caller for job in self._pending if job.embeds}
        return [job for job in answerable(self) if job.caller not in embedding]

    monkeypatch.setattr(RequestQueue, "_answerable", waiting)
    first, second = (order_of_answers(tmp_path / str(n), n, monkeypatch) for n in (64, 81))
    assert first != second
