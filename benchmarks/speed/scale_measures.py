"""One measurement of scale.py in its own process: search, shards, merging, Ray."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwall.benchmarks.speed.scale_model import LIST, asked_for

if TYPE_CHECKING:
    from labelwall.teacher.shards.shards import ShardedIndex
    from labelwall.wall.messages import ExtractorSpec

K = 300
GAMMA = 0.15
BATCH = 256
DIMENSIONS = 256
BLOCK = 16_384  # rows generated at once
CHECKED = 2  # queries whose lists are compared with brute force
# Rows of the bare product: its output stays in cache, as the search's does.
PART = 8192
KEPT = 4096
# Seconds before each work: the previous one's threads wait actively for a few milliseconds.
PAUSE = 0.02
# Small sizes take more rounds, as a round lasts a few milliseconds.
SECONDS = 3.0
MAX_ROUNDS = 200
ECHOES = (100, 500, LIST)  # entries a query that a worker returns without work


def blocks(rows: int, dimensions: int) -> Iterator[np.ndarray]:
    """int8 [<= BLOCK, d] until there are ``rows``; the same rows whatever their number."""
    from labelwall.wall.features.embedder import quantise

    for number in range(-(-rows // BLOCK)):
        x = np.random.default_rng([7, number]).standard_normal(
            (BLOCK, dimensions), dtype=np.float32
        )
        yield quantise(x, (), 16 * math.sqrt(dimensions))[0][: rows - number * BLOCK]


def written(folder: Path, rows: int, dimensions: int) -> np.ndarray:
    """The rows, mapped into memory."""
    from labelwall.teacher.shards.worker import append, finish, journal, read

    for done, block in enumerate(blocks(rows, dimensions), start=1):
        if journal(folder).done < done:
            append(folder, {"features": block}, done)
    finish(folder)
    return read(folder, "features")


def asked(dimensions: int, count: int, number: int) -> np.ndarray:
    """Other queries each round: int8 [count, d]."""
    from labelwall.wall.features.embedder import quantise

    x = np.random.default_rng([8, number]).standard_normal((count, dimensions))
    return quantise(x, (), 16 * math.sqrt(dimensions))[0]


def medians(
    works: dict[str, Callable[[np.ndarray], object]], dimensions: int, batch: int, rounds: int
) -> dict[str, float]:
    """Milliseconds a query of each work, by turns; the first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    began = time.perf_counter()
    for number in range(MAX_ROUNDS):
        if number > rounds and time.perf_counter() - began > SECONDS:
            break
        queries = asked(dimensions, batch, number)
        for name, work in works.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            work(queries)
            if number:
                taken[name].append(1000 * (time.perf_counter() - start) / batch)
    return {name: float(np.median(times)) for name, times in taken.items()}


def bare_product(features: np.ndarray) -> Callable[[np.ndarray], None]:
    """All int8 products of a batch, and nothing done with them."""
    from labelwall.teacher.search.int8_matmul import best_product
    from labelwall.teacher.search.kernels import minus_twice

    product, out = best_product(), np.empty(BATCH * PART, dtype=np.int32)

    def run(queries: np.ndarray) -> None:
        left = minus_twice(queries)
        for start in range(0, len(features), PART):
            part = features[start : start + PART]
            product(left, part, out[: len(left) * len(part)].reshape(len(left), len(part)))

    return run


def brute_force(features: np.ndarray, query: np.ndarray, m: int) -> np.ndarray:
    """Rows of the m nearest by (squared distance, row), from differences in int64."""
    distances = np.concatenate(
        [
            ((features[s : s + KEPT].astype(np.int64) - query) ** 2).sum(axis=1)
            for s in range(0, len(features), KEPT)
        ]
    )
    return np.argsort(distances, kind="stable")[:m]


def one_size(
    folder: Path, rows: int, dimensions: int, batch: int, rounds: int, threads: int
) -> dict[str, float]:
    """Search beside the bare product; bytes of memory beyond the features; are lists correct."""
    import torch

    torch.set_num_threads(threads)
    from labelwall.teacher.search.cpu import ExactIndex
    from labelwall.teacher.search.poisson_sampling import prefix_length

    m, features = prefix_length(K, GAMMA), written(folder, rows, dimensions)
    index = ExactIndex(features, np.arange(rows))
    found = medians(
        {"search": lambda q: index.prefix(q, m), "product": bare_product(features)},
        dimensions,
        batch,
        rounds,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    checked = asked(dimensions, CHECKED, 10_000)
    right = [
        np.array_equal(brute_force(features, q.astype(np.int64), m), r)
        for q, r in zip(checked, index.prefix(checked, m), strict=True)
    ]
    return {**found, "beyond": peak - features.nbytes, "right": float(all(right))}


def index_over(
    folder: Path, rows: int, dimensions: int, shards: int, backend: str
) -> tuple[ExtractorSpec, ShardedIndex]:
    """The extractor and the index of generated rows in new shards."""
    from labelwall.teacher.accounting.plan import Plan, Slot
    from labelwall.teacher.ledger.ledger import Ledger
    from labelwall.teacher.mechanisms.votes import PrivateKnn
    from labelwall.teacher.records.private_records import Records
    from labelwall.teacher.shards.scale_config import ScaleConfig
    from labelwall.teacher.shards.shards import ShardedRows
    from labelwall.wall.label_kinds import numbered_space
    from labelwall.wall.messages import ExtractorSpec

    def stream(size: int, start: int) -> Iterator[tuple[int, int, Records]]:
        for number, block in enumerate(blocks(rows, dimensions)):
            first, ids = number * BLOCK, np.arange(number * BLOCK, number * BLOCK + len(block))
            if first >= start:
                yield first + len(block), rows, Records(block.astype(np.float32), ids % 10, ids)

    folder.mkdir(parents=True, exist_ok=True)
    spec = ExtractorSpec("raw", (dimensions,), 10)
    scale = ScaleConfig(backend="ray" if backend == "ray" else "local", shards=shards)
    mechanism = PrivateKnn(sigma_screen=1.0, sigma_vote=1.0)
    plan = Plan(1.0, 1e-5, (Slot(mechanism.fields(), mechanism.releases(1, 1)),))
    ledger = Ledger.create(folder / "ledger.sqlite", dataset="rows", plan=plan, unsafe=True)
    place: dict[str, Any] = {"directory": folder, "device": "cpu", "batch_size": BATCH}
    place |= {"workers": 1, "progress": lambda *_: None, "scale": scale, "source": str}
    space, shape = numbered_space("class", 10), (dimensions,)
    on_disk = ShardedRows(stream, ledger, space, [mechanism], input_shape=shape, **place)
    return spec, on_disk.prepare(spec).index


def sharded(
    folder: Path, rows: int, dimensions: int, shards: int, backend: str, rounds: int, threads: int
) -> dict[str, float]:
    """One index beside shards over the same rows.

    The shards are in this process or in Ray workers of a thread each.
    """
    import torch

    torch.set_num_threads(threads)
    from labelwall.teacher.search.cpu import ExactIndex
    from labelwall.teacher.search.poisson_sampling import prefix_length
    from labelwall.wall.features.embedder import Embedder

    spec, over = index_over(folder, rows, dimensions, shards, backend)
    embedded = [
        Embedder(spec).embed(block.astype(np.float32))[0] for block in blocks(rows, dimensions)
    ]
    index, m = ExactIndex(np.concatenate(embedded), np.arange(rows)), prefix_length(K, GAMMA)
    queries = asked(dimensions, 16, 10_000)
    same = np.array_equal(over.ids[over.prefix(queries, m)], index.prefix(queries, m))
    works = {"one": lambda q: index.prefix(q, m), "shards": lambda q: over.prefix(q, m)}
    return {**medians(works, dimensions, BATCH, rounds), "same": float(same)}


class FixedPool:
    """Shards with constant lists, which leave only the work of the process that answers."""

    def __init__(self, shards: int, rows: int) -> None:
        ids = np.array_split(np.random.default_rng(9).permutation(rows), shards)
        self._ids, self.size = [np.sort(own) for own in ids], shards

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        answer = {"summary": self._summary, "rows_between": self._rows, "nearest": self._nearest}
        return [answer[name](number, *arguments[1:]) for number in range(self.size)]

    def _summary(self, number: int, every: int) -> Any:
        from labelwall.teacher.shards.worker import ShardSummary

        ids = self._ids[number]
        return ShardSummary(len(ids), DIMENSIONS, ids[::every])

    def _rows(self, number: int, low: int, high: int | None) -> tuple[Any, ...]:
        ids = self._ids[number]
        own = ids[(ids >= low) & (True if high is None else ids < high)]
        return own, np.zeros(len(own), dtype=np.int64), None

    def _nearest(self, number: int, queries: np.ndarray, m: int, total: int) -> tuple[Any, ...]:
        rng, shape = np.random.default_rng(number), (len(queries), asked_for(self.size))
        rows = rng.integers(0, len(self._ids[number]), shape).astype(np.int32)
        return rows, np.sort(rng.integers(0, 1 << 20, shape), axis=1).astype(np.int32)


def merging(folder: Path, shards: int, rounds: int, threads: int) -> dict[str, float]:
    """Milliseconds to merge one entry: a sharded index's time less that of its lists."""
    from labelwall.teacher.shards.shards import ShardedIndex

    rows = 100_000
    pool = FixedPool(shards, rows)
    over, width = ShardedIndex(pool, "", 10), asked_for(shards)
    works = {
        "all": lambda q: over.prefix(q, LIST),
        "lists": lambda q: pool.ask("nearest", "", q, LIST, rows),
    }
    times = medians(works, DIMENSIONS, 16, rounds)
    return {"entry": (times["all"] - times["lists"]) / (shards * width)}


@dataclass(frozen=True, eq=False)
class Echo:
    """A count that costs a worker nothing, which leaves only the round trip."""

    queries: np.ndarray
    width: int

    def __call__(self, index: object, labels: object) -> tuple[np.ndarray, np.ndarray]:
        empty = np.zeros((len(self.queries), self.width), dtype=np.int32)
        return empty, empty.copy()


def echoed(folder: Path, rounds: int, threads: int) -> dict[str, float]:
    """Milliseconds a batch of an idle Ray worker, by entries a query that it returns."""
    spec, over = index_over(folder, 8, DIMENSIONS, 1, "ray")

    def asking(width: int) -> Callable[[np.ndarray], object]:
        return lambda queries: over._pool.ask("total", spec.sha256(), Echo(queries, width))

    times = medians({str(width): asking(width) for width in ECHOES}, DIMENSIONS, BATCH, rounds)
    return {width: BATCH * each for width, each in times.items()}


WORKS = {"size": one_size, "sharded": sharded, "merging": merging, "echoed": echoed}

if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    place = Path(fields.pop("folder")) / "rows"
    print(json.dumps(WORKS[fields.pop("work")](place, **fields)))
