"""What a query costs as records, dimensions, queries and shards grow, what Ray adds, what 10^9 records on 100 machines cost.

    python benchmarks/scale.py --results kept/ --out docs/figures       # 10^4 to 10^7 rows x 256: 40 minutes on two quiet cores
    python benchmarks/scale.py --rows 10000 100000 --ray_rows 100000    # minutes, and no word about large data sets

Rows are unit vectors of random directions as the extractor "raw" quantises them, made block by block into a file that is mapped
into memory. Each size runs in a process of its own, whose peak memory is the system's figure (mapped pages included). Every time
is a median of interleaved rounds, in wall clock: other work on the machine shows. Lists are compared with those of all distances
in int64 for some queries.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from kept import kept  # noqa: E402

K, GAMMA, BATCH, DIMENSIONS = 300, 0.15, 256, 256
BLOCK, CHECKED = 16_384, 2  # rows made together; queries whose lists are compared with brute force
PART, KEPT = 8192, 4096  # rows of the bare product: its output stays in cache, as the search's does
MACHINES, LARGE, CORES, NETWORK = 100, 10**9, 16, 1.25e9  # of the model: rows, cores a machine, bytes a second of its network


def blocks(rows: int, dimensions: int) -> Iterator[np.ndarray]:
    """int8 [<= BLOCK, d] until there are ``rows``; the same rows whatever their number."""
    from teacher.features import quantise

    for number in range(-(-rows // BLOCK)):
        x = np.random.default_rng([7, number]).standard_normal((BLOCK, dimensions), dtype=np.float32)
        yield quantise(x, (), 16 * math.sqrt(dimensions))[0][: rows - number * BLOCK]


def written(folder: Path, rows: int, dimensions: int) -> np.ndarray:
    """The rows, mapped into memory."""
    from teacher.scale.growing import append, finish, journal, read

    for done, block in enumerate(blocks(rows, dimensions), start=1):
        if journal(folder).done < done:
            append(folder, {"features": block}, done)
    finish(folder)
    return read(folder, "features")


def asked(dimensions: int, count: int, number: int) -> np.ndarray:
    """Other queries each round: int8 [count, d]."""
    from teacher.features import quantise

    x = np.random.default_rng([8, number]).standard_normal((count, dimensions))
    return quantise(x, (), 16 * math.sqrt(dimensions))[0]


def medians(works: dict[str, Callable[[np.ndarray], object]], dimensions: int, batch: int, rounds: int) -> dict[str, float]:
    """Milliseconds a query of each work, by turns; the first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        queries = asked(dimensions, batch, number)
        for name, work in works.items():
            start = time.perf_counter()
            work(queries)
            if number:
                taken[name].append(1000 * (time.perf_counter() - start) / batch)
    return {name: float(np.median(times)) for name, times in taken.items()}


def bare_product(features: np.ndarray) -> Callable[[np.ndarray], None]:
    """All int8 products of a batch, and nothing done with them."""
    from teacher.gemm import choose_product, minus_twice

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
        [((features[s : s + KEPT].astype(np.int64) - query) ** 2).sum(axis=1) for s in range(0, len(features), KEPT)]
    )
    return np.argsort(distances, kind="stable")[:m]


def one_size(folder: Path, rows: int, dimensions: int, batch: int, rounds: int, threads: int) -> dict[str, float]:
    """Search beside bare product; peak memory beyond the features, bytes; whether lists are right."""
    import torch

    torch.set_num_threads(threads)
    from teacher.neighbors import ExactIndex
    from teacher.votes import prefix_length

    m, features = prefix_length(K, GAMMA), written(folder, rows, dimensions)
    index = ExactIndex(features, np.arange(rows))
    found = medians({"search": lambda q: index.prefix(q, m), "product": bare_product(features)}, dimensions, batch, rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    checked = asked(dimensions, CHECKED, 10_000)
    right = [
        np.array_equal(brute_force(features, q.astype(np.int64), m), r)
        for q, r in zip(checked, index.prefix(checked, m), strict=True)
    ]
    return {**found, "beyond": peak - features.nbytes, "right": float(all(right))}


def sharded(folder: Path, rows: int, dimensions: int, shards: int, backend: str, rounds: int, threads: int) -> dict[str, float]:
    """One index beside shards over the same rows, in this process or in Ray workers of a thread each."""
    import torch

    torch.set_num_threads(threads)
    from teacher.features import Embedder
    from teacher.neighbors import ExactIndex
    from teacher.records import Records
    from teacher.scale.config import ScaleConfig
    from teacher.scale.shards import Shards
    from teacher.votes import prefix_length
    from wall.messages import ExtractorSpec

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
    embedded = [Embedder(spec, probe=None).embed(block.astype(np.float32))[0] for block in blocks(rows, dimensions)]
    index, m = ExactIndex(np.concatenate(embedded), np.arange(rows)), prefix_length(K, GAMMA)
    queries = asked(dimensions, 16, 10_000)
    same = np.array_equal(over.ids[over.prefix(queries, m)], index.prefix(queries, m))
    works = {"one": lambda q: index.prefix(q, m), "shards": lambda q: over.prefix(q, m)}
    return {**medians(works, dimensions, BATCH, rounds), "same": float(same)}


def in_process(work: str, **fields: Any) -> dict[str, float]:
    """A measurement in a process of its own, so that its peak memory is its own."""
    with tempfile.TemporaryDirectory(dir=fields.pop("scratch", None)) as folder:
        order = json.dumps({"work": work, "folder": folder, **fields})
        done = subprocess.run([sys.executable, __file__, "--one", order], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def run_one(order: str) -> None:
    fields = json.loads(order)
    folder = Path(fields.pop("folder")) / "rows"
    work = {"size": one_size, "sharded": sharded}[fields.pop("work")]
    print(json.dumps(work(folder, **fields)))


def exponent(sizes: list[int], times: list[float]) -> float:
    """Slope of log time by log size, least squares."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def model(per_pair: float, fixed: float, rows: int, machines: int, cores: int) -> dict[str, float]:
    """Rows over machines with ``cores`` shards each, a thread a shard: what a query costs, from two measured constants.

    ``per_pair``: ms of a thread for a query and a record; ``fixed``: ms of one thread a query and list. The share that a shard
    is asked for is that of teacher/scale/index.py; an entry travels as 8 bytes and is merged at 2e-5 ms.
    """
    from teacher.votes import prefix_length

    shards, m = machines * cores, prefix_length(K, GAMMA)
    share = m / shards
    entries = shards * (share + 6 * math.sqrt(share) + 8)
    search, merge = per_pair * rows / shards + fixed * min(1.0, (share + 6 * math.sqrt(share) + 8) / m), 2e-5 * entries
    return {
        "search ms": search,
        "merge ms": merge,
        "network ms": 1000 * (8 * entries + shards * DIMENSIONS) / NETWORK,
        "bytes a query": 8 * entries + shards * DIMENSIONS,
        "GiB a machine": rows / machines * (DIMENSIONS + 28) / 2**30,
        "GiB of the driver": rows * 24 / 2**30,
    }


def table(title: str, heading: list[str], lines: list[list[object]]) -> str:
    shown = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines]
    return "\n".join([f"\n{title}\n", *(f"| {' | '.join(line)} |" for line in [heading, ["---"] * len(heading), *shown])])


def draw(folder: Path, sizes: dict[int, dict[str, float]]) -> None:
    from figures import PALETTE, picture

    folder.mkdir(parents=True, exist_ok=True)
    with picture(folder / "scale_rows.svg") as (axes,):
        for name, color in zip(("search", "product"), PALETTE, strict=False):
            label = {"search": "exact ordered list", "product": "int8 product alone"}[name]
            axes.loglog(list(sizes), [found[name] for found in sizes.values()], "o-", color=color, label=label)
        axes.set(xlabel=f"records of {DIMENSIONS} dimensions", ylabel=f"milliseconds a query, batches of {BATCH}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7], help="sizes, counts of records")
    parser.add_argument("--dimensions", type=int, nargs="+", default=[64, 256, 1024], help="at the second size")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 256], help="queries a batch, at the second size")
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 2, 5, 16], help="in one process, at the second size")
    parser.add_argument("--ray", type=int, nargs="*", default=[1, 2], help="Ray workers")
    parser.add_argument("--ray_rows", type=int, default=10**6, help="records for them, a count")
    parser.add_argument("--threads", type=int, default=2, help="of this process; Ray workers have one each")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for the rows' files; 3 GB for 10^7 rows")
    parser.add_argument("--results", type=Path, help="folder that keeps what was measured, so that a killed study goes on")
    parser.add_argument("--out", type=Path, help="folder for the plot")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one)
        return
    common = {"rounds": options.rounds, "scratch": options.scratch and str(options.scratch)}

    def size(rows: int, dimensions: int = DIMENSIONS, batch: int = BATCH, threads: int = options.threads) -> dict[str, float]:
        fields = {"rows": rows, "dimensions": dimensions, "batch": batch, "threads": threads}
        return kept(
            options.results, f"size_{rows}_{dimensions}_{batch}_{threads}", lambda: in_process("size", **fields, **common)
        )

    def parted(rows: int, shards: int, backend: str) -> dict[str, float]:
        fields = {"rows": rows, "dimensions": DIMENSIONS, "shards": shards, "backend": backend, "threads": options.threads}
        return kept(options.results, f"{backend}_{rows}_{shards}", lambda: in_process("sharded", **fields, **common))

    report(options, size, parted)


def report(options: argparse.Namespace, size: Callable[..., dict[str, float]], parted: Callable[..., dict[str, float]]) -> None:
    """Measure and print, part by part."""
    middle = options.rows[min(1, len(options.rows) - 1)]
    columns = ["search, ms a query", "product", "ratio", "beyond the features, GiB", "equal to brute force"]

    def line(found: dict[str, float]) -> list[object]:
        good = "yes" if found["right"] else "NO"
        return [found["search"], found["product"], found["search"] / found["product"], found["beyond"] / 2**30, good]

    sizes = {rows: size(rows) for rows in options.rows}
    print(
        table(
            f"Records, {DIMENSIONS} dimensions, batches of {BATCH}",
            ["records", *columns],
            [[r, *line(f)] for r, f in sizes.items()],
        )
    )
    large = [rows for rows in sizes if rows >= 10**5]
    if len(large) > 1:
        slope = exponent(large, [sizes[rows]["search"] for rows in large])
        each = [sizes[rows]["search"] / rows for rows in large]
        spread = 100 * (max(each) / min(each) - 1)
        print(f"\ntime ~ records^{slope:.3f} from {large[0]} on; a record's share of it differs by {spread:.0f}%")
    wide = {d: size(middle, dimensions=d) for d in options.dimensions}
    print(table(f"Dimensions, {middle} records", ["dimensions", *columns], [[d, *line(f)] for d, f in wide.items()]))
    many = {b: size(middle, batch=b) for b in options.batches}
    print(table(f"Queries a batch, {middle} records", ["queries", *columns], [[b, *line(f)] for b, f in many.items()]))
    local = {s: parted(middle, s, "local") for s in options.shards}
    ray = {w: parted(options.ray_rows, w, "ray") for w in options.ray}
    heading = ["shards", "one index, ms a query", "shards, ms a query", "ratio", "same lists"]
    for title, found in ((f"Shards in one process, {middle} records", local), (f"Ray workers, {options.ray_rows} records", ray)):
        lines = [[s, f["one"], f["shards"], f["shards"] / f["one"], "yes" if f["same"] else "NO"] for s, f in found.items()]
        print(table(title, heading, lines))
    alone = {rows: size(rows, threads=1)["search"] for rows in (middle, options.ray_rows)}
    if len(alone) == 2:
        show_model(alone, ray, options.ray_rows)
    if options.out:
        draw(options.out, sizes)


def show_model(alone: dict[int, float], ray: dict[int, dict[str, float]], ray_rows: int) -> None:
    """Two constants from one thread's times at two sizes, the model's word on the Ray runs, and on the large case."""
    (small, fast), (big, slow) = sorted(alone.items())
    per_pair = (slow - fast) / (big - small)
    fixed = max(0.0, fast - per_pair * small)
    print(f"\nModel: {1e6 * per_pair:.3g} ns a pair, {fixed:.3g} ms a list, of one thread")
    for workers, found in ray.items():
        said = model(per_pair, fixed, ray_rows, 1, workers)
        total = said["search ms"] + said["merge ms"]
        print(f"  {workers} Ray workers, {ray_rows} records: {total:.3g} ms said, {found['shards']:.3g} measured")
    parts = model(per_pair, fixed, LARGE, MACHINES, CORES)
    print(f"  {LARGE} records on {MACHINES} machines of {CORES} cores: " + ", ".join(f"{k} {v:.3g}" for k, v in parts.items()))


if __name__ == "__main__":
    main()
