"""A small private data set, and teachers over it, with all rows in memory or in shards."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.teacher.classifiers.linear_ensemble import KEY, KEY_BYTES
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms import sums, votes
from labelwall.teacher.mechanisms.attributes import GnmaxAttributes, PrivateKnnAttributes
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch import BatchKnn, RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.registry import AnyMechanism
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.teacher.records.persons import codes_of, row_ids
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.teacher.shards.shards import ShardedIndex, ShardedRows, Stream
from labelwall.teacher.teacher import Teacher
from labelwall.wall.guarantee import Unit
from labelwall.wall.label_kinds import numbered_space
from labelwall.wall.labels import LabelSpace
from labelwall.wall.matrices import Cells, Matrix, Weights
from labelwall.wall.messages import ExtractorSpec, Queries
from labelwall.wall.progress import no_progress
from labelwall.wall.questions import MatrixForm
from tests import make
from tests.seeded_noise import SeededNoise

DIMENSIONS, CLASSES = 3, 3
ONE_OF_EACH: tuple[AnyMechanism, ...] = (
    votes.PrivateKnn(k=20, threshold=8, sigma_screen=2.0, sigma_vote=2.0, sample_rate=0.3),
    PrivateKnnAttributes(k=20, tau=2, sigma_vote=1.0, sample_rate=0.5),
    PrivateKnnMean(k=20, sigma_mean=0.5, sigma_screen=30.0, sample_rate=0.5),
    PrivateKnnMedian(
        k=20,
        epsilon=2.0,
        cells=8,
        window=1,
        threshold=3,
        sigma_screen=30.0,
        sample_rate=0.5,
    ),
    votes.PrivateRadius(share=0.2, threshold=8, sigma_screen=2.0, sigma_vote=2.0, sample_rate=0.3),
    votes.NaiveKnn(k=15, sigma_vote=2.0),
    IndKnn(threshold=0.8, sigma_label=0.2, sigma_count=3.0, rho=0.6),
    votes.Lnmax(teachers=7, scale=0.5),
    votes.Gnmax(teachers=7, sigma_vote=1.0),
    votes.ConfidentGnmax(teachers=7, threshold=5, sigma_screen=1.0, sigma_vote=1.0),
    GnmaxAttributes(teachers=7, tau=2, sigma_vote=1.0),
    sums.ReverseKnn(centroids=6, neighbours=2, sigma=2.0),
    sums.Score(sigma=2.0),
    sums.ScoreAttributes(sigma=2.0),
    sums.ScoreValue(sigma=2.0),
    sums.ScoreTables(sigma=2.0, thresholds=2),
    sums.ScoreTablesAttributes(sigma=2.0, thresholds=2),
    sums.PrivateLinear(steps=2, noise_multiplier=2.0, clip=1.0),
    sums.PrivateLinearAttributes(steps=2, noise_multiplier=2.0, clip=0.5),
    sums.PrivateLinearValue(noise_multiplier=2.0),
    RadiusNeighbours(radius=0.1, epsilon=5.0),
    BatchKnn(k=9, epsilon=40.0),
)
MECHANISMS: dict[str, AnyMechanism] = {each.kind: each for each in ONE_OF_EACH} | {
    "ind_knn_hash": IndKnn(
        kernel="rbf", threshold=0.5, sigma_label=0.2, sigma_count=3.0, rho=0.6, tables=2, bits=2
    ),
    "batch_knn_interactive": BatchKnn(k=9, epsilon=40.0, conversion="interactive"),
    "batch_knn_none": BatchKnn(k=9, epsilon=40.0, conversion="none"),
}


def space_of(name: str) -> LabelSpace:
    return numbered_space(MECHANISMS[name].label_space, CLASSES)


def spec_of(name: str) -> ExtractorSpec:
    """Raw vectors, or a box for the mechanisms that count in balls; with landmarks for radii."""
    plain = BOX if name.startswith(("radius", "batch")) else RAW
    landmarks = LANDMARKS if getattr(MECHANISMS[name].query_form, "landmarks", 0) else b""
    return replace(plain, num_classes=space_of(name).outputs, landmarks=landmarks)


LANDMARKS = np.random.default_rng(3).integers(-40, 41, (30, DIMENSIONS)).astype(np.int8).tobytes()
RAW = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
BOX = ExtractorSpec(
    "box", (DIMENSIONS,), CLASSES, mean=(0.0,) * DIMENSIONS, std=(4.0,) * DIMENSIONS
)


def records(n: int = 400, seed: int = 0, attributes: bool = False, unit: Unit = "row") -> Records:
    """Rounded, so that distances tie and rows repeat; ids neither sorted nor dense nor positive."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 1 << CLASSES if attributes else CLASSES, n)
    x = (rng.normal(size=(n, DIMENSIONS)) + 2 * np.eye(CLASSES)[labels % CLASSES]).round()
    x[:3] = np.inf  # dropped before ranking
    ids = rng.permutation(7 * n)[:n] - n
    records = Records(x.astype(np.float32), labels.astype(np.int64), ids.astype(np.int64))
    return records if unit == "row" else of_persons(records, rng.integers(0, max(1, n // 5), n))


def records_of(name: str, n: int = 400, unit: Unit = "row") -> Records:
    return records(n, attributes=MECHANISMS[name].label_space == "attributes", unit=unit)


def of_persons(rows: Records, persons: np.ndarray) -> Records:
    codes = codes_of([str(person) for person in persons.tolist()])
    return Records(rows.inputs, rows.labels, row_ids(codes, rows.ids), codes)


def queries(n: int = 40, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIMENSIONS)).round(1).astype(np.float32)


def matrix(
    mechanism: Mechanism, dimensions: int = DIMENSIONS, classes: int = CLASSES, seed: int = 2
) -> Matrix | None:
    """A public matrix that a mechanism may be asked by; None where it answers rows."""
    rng, form = np.random.default_rng(seed), mechanism.query_form
    if not isinstance(form, MatrixForm):
        return None
    outputs = numbered_space(mechanism.label_space, classes).outputs
    shape = form.shape(dimensions, outputs)
    if form.matrix == "cells":
        return Cells(rng.integers(-63, 64, shape).astype(np.int8))
    return Weights(rng.integers(-1000, 1001, shape).astype(np.int16))


def streamed(rows: Records) -> Stream:
    def stream(size: int, start: int) -> Iterator[tuple[int, int, Records]]:
        for first in range(start, len(rows.ids), size):
            part = slice(first, first + size)
            done = min(first + size, len(rows.ids))
            yield done, len(rows.ids), rows.take(part)

    return stream


def ledger_in(directory: Path, mechanism: AnyMechanism, asked: int, unit: Unit = "row") -> Ledger:
    directory.mkdir(parents=True, exist_ok=True)
    # PATE's teachers are the same in every directory.
    (directory / KEY).write_bytes(bytes(range(KEY_BYTES)))
    return make.ledger_in(directory, make.plan_of(mechanism, asked, unit=unit), unsafe=True)


def teacher(
    directory: Path,
    name: str,
    rows: Records,
    scale: ScaleConfig,
    asked: int = 1000,
    device: str = "cpu",
    unit: Unit = "row",
) -> Teacher:
    """A teacher over rows in this process for 0 shards, else over shards; with seeded noise."""
    ledger = ledger_in(directory, MECHANISMS[name], asked, unit)
    place = ledger, directory, CLASSES, SeededNoise(5)
    if not scale.shards:
        return Teacher(lambda: rows, *place, batch_size=16, device=device)
    sharded = partial(ShardedRows, scale=scale, input_shape=(DIMENSIONS,), source=str)
    return Teacher(streamed(rows), *place, batch_size=16, device=device, rows=sharded)


def ready(
    directory: Path, name: str, rows: Records, shards: int = 0, unit: Unit = "row", **more: Any
) -> Teacher:
    teacher_ = teacher(directory, name, rows, ScaleConfig(shards=shards), unit=unit, **more)
    teacher_.use_extractor(spec_of(name))
    return teacher_


def index_of(directory: Path, rows: Records, count: int, unit: Unit = "row") -> ShardedIndex:
    index = on_disk(directory, streamed(rows), count, unit=unit).prepare(RAW).index
    assert isinstance(index, ShardedIndex)
    return index


def on_disk(
    directory: Path, stream: Stream, count: int, dimensions: int = DIMENSIONS, unit: Unit = "row"
) -> ShardedRows:
    mechanism = MECHANISMS["private_knn"]
    return ShardedRows(
        stream,
        ledger_in(directory, mechanism, 1000, unit),
        numbered_space("class", CLASSES),
        [mechanism],
        scale=ScaleConfig(shards=count),
        input_shape=(dimensions,),
        source=str,
        directory=directory,
        device="cpu",
        batch_size=16,
        workers=1,
        progress=no_progress,
    )


def ask(teacher: Any, name: str, rows: np.ndarray, seed: int = 2) -> tuple[Any, Any]:
    """(what was released, the receipt, which contains the ledger's head)."""
    if (counting := matrix(MECHANISMS[name], seed=seed)) is not None:
        counted = teacher.count(counting)
        return np.asarray(counted.counts).tolist(), counted.receipt
    answers = teacher.answer(Queries(rows))
    return (answers.labels.tolist(), answers.outcomes.tolist()), answers.receipt


def asked(teacher: Teacher, name: str) -> list[object]:
    """The answers to two calls."""
    return [ask(teacher, name, queries(30, seed), seed) for seed in (1, 2)]
