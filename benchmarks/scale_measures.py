"""One measurement of benchmarks/scale.py in its own process: search, shards, merging, Ray."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scale_model import LIST, asked_for

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
    from labelwall.teacher.features.embedder import quantise

    for number in range(-(-rows // BLOCK)):
        x = np.random.default_rng([7, number]).standard_normal(
            (BLOCK, dimensions), dtype=np.float32
        )
        yield quantise(x, (), 16 * math.sqrt(dimensions))[0][: rows - number * BLOCK]


def written(folder: Path, rows: int, dimensions: int) -> np.ndarray:
    """The rows, mapped into memory."""
    from labelwall.teacher.shards.growing import append, finish, journal, read

    for done, block in enumerate(blocks(rows, dimensions), start=1):
        if journal(folder).done < done:
            append(folder, {"features": block}, done)
    finish(folder)
    return read(folder, "features")


def asked(dimensions: int, count: int, number: int) -> np.ndarray:
    """Other queries each round: int8 [count, d]."""
    from labelwall.teacher.features.embedder import quantise

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
    from labelwall.teacher.search.int8_matmul import choose_product, minus_twice

    product, out = choose_product(), np.empty(BATCH * PART, dtype=np.int32)

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


def sharded(
    folder: Path, rows: int, dimensions: int, shards: int, backend: str, rounds: int, threads: int
) -> dict[str, float]:
    """One index beside shards over the same rows.

    The shards are in this process or in Ray workers of a thread each.
    """
    import torch

    torch.set_num_threads(threads)
    from labelwall.teacher.features.embedder import Embedder
    from labelwall.teacher.records.sources import Records
    from labelwall.teacher.search.cpu import ExactIndex
    from labelwall.teacher.search.poisson_sampling import prefix_length
    from labelwall.teacher.shards.config import ScaleConfig
    from labelwall.teacher.shards.shards import Shards
    from labelwall.wall.messages import ExtractorSpec

    def stream(size: int, start: int) -> Iterator[tuple[int, int, Records]]:
        for number, block in enumerate(blocks(rows, dimensions)):
            first, ids = number * BLOCK, np.arange(number * BLOCK, number * BLOCK + len(block))
            if first >= start:
                yield first + len(block), rows, Records(block.astype(np.float32), ids % 10, ids)

    folder.mkdir(parents=True, exist_ok=True)
    spec = ExtractorSpec("raw", (dimensions,), 10)
    scale = ScaleConfig(backend="ray" if backend == "ray" else "local", shards=shards)
    made = Shards(folder, scale, stream, (dimensions,))
    made.open(lambda *_: None)
    over = made.index(spec, None, BATCH, lambda *_: None)
    embedded = [
        Embedder(spec, probe=None).embed(block.astype(np.float32))[0]
        for block in blocks(rows, dimensions)
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
        self._ids = [np.sort(own) for own in ids]

    def ask(self, requests: Sequence[Any]) -> list[Any]:
        return [
            self._answer(request, number, ids)
            for number, (request, ids) in enumerate(zip(requests, self._ids, strict=True))
        ]

    def _answer(self, request: Any, number: int, ids: np.ndarray) -> Any:
        from labelwall.teacher.shards.requests import RowsBetween, Summary, SummaryOf

        if isinstance(request, SummaryOf):
            return Summary(len(ids), DIMENSIONS, (0, 0), ids[:: request.every])
        if isinstance(request, RowsBetween):
            inside = ids >= request.low
            own = ids[inside if request.high is None else inside & (ids < request.high)]
            return own, np.zeros(len(own), dtype=np.int64), None
        rng, shape = np.random.default_rng(number), (len(request.queries), request.width(len(ids)))
        rows = rng.integers(0, len(ids), shape).astype(np.int32)
        return rows, np.sort(rng.integers(0, 1 << 20, shape), axis=1).astype(np.int32)


def merging(folder: Path, shards: int, rounds: int, threads: int) -> dict[str, float]:
    """Milliseconds to merge one entry: a sharded index's time less that of its lists."""
    from labelwall.teacher.shards.index import ShardedIndex
    from labelwall.teacher.shards.requests import NearestOf

    rows = 100_000
    pool = FixedPool(shards, rows)
    over, width = ShardedIndex(pool, shards, ""), asked_for(shards)
    made = {
        "all": lambda q: over.prefix(q, LIST),
        "lists": lambda q: pool.ask([NearestOf("", q, LIST, rows)] * shards),
    }
    found = medians(made, DIMENSIONS, 16, rounds)
    return {"entry": (found["all"] - found["lists"]) / (shards * width)}


@dataclass(frozen=True, eq=False)
class Echo:
    """A request that costs a worker nothing, which leaves only the round trip."""

    queries: np.ndarray
    width: int

    def __call__(self, shard: object) -> tuple[np.ndarray, np.ndarray]:
        empty = np.zeros((len(self.queries), self.width), dtype=np.int32)
        return empty, empty.copy()


def echoed(folder: Path, rounds: int, threads: int) -> dict[str, float]:
    """Milliseconds a batch of an idle Ray worker, by entries a query that it returns."""
    from labelwall.teacher.shards.config import ScaleConfig
    from labelwall.teacher.shards.pools import RayPool

    folder.mkdir(parents=True)
    pool = RayPool([folder], ScaleConfig(backend="ray", shards=1))

    def asking(width: int) -> Callable[[np.ndarray], object]:
        return lambda queries: pool.ask([Echo(queries, width)])

    found = medians({str(width): asking(width) for width in ECHOES}, DIMENSIONS, BATCH, rounds)
    return {width: BATCH * each for width, each in found.items()}


WORKS = {"size": one_size, "sharded": sharded, "merging": merging, "echoed": echoed}

if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    place = Path(fields.pop("folder")) / "rows"
    print(json.dumps(WORKS[fields.pop("work")](place, **fields)))
