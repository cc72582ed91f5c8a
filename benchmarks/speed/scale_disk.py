"""Time and memory of a query over shards on disk, up to 10^8 records; the answering process alone.

    python benchmarks/speed/scale_disk.py --data scratch/                 # 10^6 to 10^8 rows, 12 GB
    python benchmarks/speed/scale_disk.py --data scratch/ --rows 100000   # faster

The rows are independent integers in 64 dimensions, as embedding leaves them in the shards' folders:
features, places, labels and ids. Each line is measured in a process of its own. Memory is
the peak of RssAnon and RssShmem in /proc/self/status, read every few milliseconds: what the system
can not drop, in contrast to pages of mapped files. "Beyond the start" is less the process's after
its imports. Times are medians of rounds, of one thread, as wall clock and as the process's own time
on a processor, which other work on the machine disturbs less. Lists of two queries are compared
with those of all distances in int64, in blocks.
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from labelwall.benchmarks.shared.kept import kept
from labelwall.benchmarks.speed.scale import table
from labelwall.benchmarks.speed.scale_measures import BATCH, CHECKED, GAMMA, K, asked

DIMENSIONS = 64
CLASSES = 10
EXTRACTOR = "0" * 64
BLOCK = 1 << 20  # rows written together
ENTRIES = 32  # of a feature: -32 to 31
SAMPLED = 0.005  # seconds between two readings of the memory


def write(folder: Path, rows: int, shards: int) -> list[Path]:
    """The shards' folders, written if they are not there."""
    from labelwall.teacher.shards.worker import append, finish, journal

    folders = [folder / f"{number:04d}" for number in range(shards)]
    if all(journal(path / "rows").complete for path in folders):
        return folders
    places = [0] * shards
    for first in range(0, rows, BLOCK):
        ids = np.arange(first, min(first + BLOCK, rows))
        rng, shape = np.random.default_rng([7, first]), (len(ids), DIMENSIONS)
        features = rng.integers(-ENTRIES, ENTRIES, shape, dtype=np.int8)
        where, done = rng.integers(0, shards, len(ids)), first + len(ids)
        for shard, path in enumerate(folders):
            own = np.flatnonzero(where == shard)
            columns = {"labels": ids[own] % CLASSES, "ids": ids[own]}
            at = np.arange(places[shard], places[shard] + len(own))
            places[shard] += len(own)
            append(path / "rows", columns, done)
            embedded = {"features": features[own], "places": at, **columns}
            append(path / f"features-{EXTRACTOR}-cpu", embedded, done)
    for path in folders:
        finish(path / f"features-{EXTRACTOR}-cpu")
        finish(path / "rows")
    return folders


def memory() -> int:
    """Bytes of this process that the system can not drop."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return 1024 * sum(int(found[name].split()[0]) for name in ("RssAnon", "RssShmem"))


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The largest ``memory`` inside, as the list's only entry."""
    peak, done = [memory()], threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLED):
            peak[0] = max(peak[0], memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def nearest(folders: list[Path], query: np.ndarray, m: int) -> np.ndarray:
    """Ids of the m nearest of all shards by (squared distance, id), from differences in int64."""
    from labelwall.teacher.shards.worker import read

    distances, ids = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for path in folders:
        folder = path / f"features-{EXTRACTOR}-cpu"
        features, own = read(folder, "features"), read(folder, "ids")
        for start in range(0, len(own), 1 << 16):
            part = slice(start, start + (1 << 16))
            squared = ((features[part].astype(np.int64) - query) ** 2).sum(axis=1)
            distances = np.concatenate([distances, squared])
            ids = np.concatenate([ids, own[part]])
            if len(ids) > m:
                near = np.flatnonzero(distances <= np.partition(distances, m - 1)[m - 1])
                distances, ids = distances[near], ids[near]
    return ids[np.lexsort((ids, distances))[:m]]


def measured(folders: list[str], backend: str, rounds: int) -> dict[str, float]:
    """One line of the table: seconds a batch, bytes of memory, are lists right."""
    import torch

    torch.set_num_threads(1)
    from labelwall.teacher.mechanisms.voters import Voters
    from labelwall.teacher.noise.entropy import SystemEntropy
    from labelwall.teacher.search.poisson_sampling import prefix_length
    from labelwall.teacher.shards.pools import RayPool, ShardPool
    from labelwall.teacher.shards.scale_config import ScaleConfig
    from labelwall.teacher.shards.shards import ShardedIndex

    paths, m = [Path(folder) for folder in folders], prefix_length(K, GAMMA)
    pool = ShardPool(paths)
    if backend == "ray":
        pool = RayPool(paths, ScaleConfig(backend="ray", shards=len(paths)))
    start, wall, own = memory(), [], []
    with peak_memory() as peak:
        began = time.perf_counter()
        over = ShardedIndex(pool, EXTRACTOR, 10)
        opened = time.perf_counter() - began
        for number in range(rounds + 1):  # the first one warms up
            queries = asked(DIMENSIONS, BATCH, number)
            began, worked = time.perf_counter(), time.process_time()
            voters, keys = Voters(over, over.labels, CLASSES, queries), list(map(str, range(BATCH)))
            voters.votes(K, GAMMA, keys, "vote", SystemEntropy())
            wall.append(time.perf_counter() - began)
            own.append(time.process_time() - worked)
    resident = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    checked = asked(DIMENSIONS, CHECKED, 10_000)
    lists = over.ids[over.prefix(checked, m)]
    right = all(
        np.array_equal(nearest(paths, query.astype(np.int64), m), found)
        for query, found in zip(checked, lists, strict=True)
    )
    return {
        "opened": opened,
        "wall": float(np.median(wall[1:])),
        "processor": float(np.median(own[1:])),
        "start": start,
        "peak": peak[0],
        "resident": resident,
        "right": float(right),
    }


def in_process(folders: list[Path], backend: str, rounds: int) -> dict[str, float]:
    order = json.dumps({"folders": [*map(str, folders)], "backend": backend, "rounds": rounds})
    command = [sys.executable, __file__, "--one", order]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def show(title: str, found: dict[int, dict[str, float]]) -> None:
    """A line for each size; bytes a record are the growth from the size before."""
    columns = ["records", "opening, s", "ms a query", "on a processor", "ns a record"]
    columns += ["MiB at start", "MiB beyond", "bytes a record more", "equal to brute force"]
    lines, before = [], (0, 0.0)
    for rows, line in found.items():
        beyond = line["peak"] - line["start"]
        grown = (beyond - before[1]) / (rows - before[0]) if before[0] else float("nan")
        before = rows, beyond
        lines.append(
            [
                rows,
                line["opened"],
                1e3 * line["wall"] / BATCH,
                1e3 * line["processor"] / BATCH,
                1e9 * line["processor"] / BATCH / rows,
                line["start"] / 2**20,
                beyond / 2**20,
                grown,
                "yes" if line["right"] else "NO",
            ]
        )
    print(table(title, columns, lines), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=[10**6, 10**7, 10**8])
    parser.add_argument("--ray_rows", type=int, nargs="*", default=[10**6, 10**7])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("scratch"), help="folder of the shards")
    parser.add_argument("--results", type=Path, help="folder that keeps the measurements")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(**json.loads(options.one))))
        return
    for backend, sizes in (("local", options.rows), ("ray", options.ray_rows)):
        found = {}
        for rows in sizes:
            folders = write(options.data / f"{rows}-{options.shards}", rows, options.shards)
            name = f"disk_{backend}_{rows}_{options.shards}"
            line = partial(in_process, folders, backend, options.rounds)
            found[rows] = kept(options.results, name, line)
        if not found:
            continue
        where = "one process" if backend == "local" else "Ray workers: the process that answers"
        show(f"{options.shards} shards of {DIMENSIONS} dimensions, {where}", found)


if __name__ == "__main__":
    main()
