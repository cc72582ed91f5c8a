"""Time of an Ind-KNN query from embedded batch to committed answer.

    python benchmarks/speed/ind_knn.py     # 50,000 x 1,280, batch 256, cosine
    python benchmarks/speed/ind_knn.py --cache FEATURES --hashes 30x8 30x12 30x14

Exact, hashed, and the paper's loop in numpy. FEATURES: the cache of shared/image_features.py.

Without a cache rows are synthetic: unit vectors around class centres, so that about a hundredth of
the records are neighbours of a query. With one, the records are the train split, and the queries
are test rows after the first 5,000, whose mean centres all. The methods take turns in one process;
a line is the median over rounds. Every round asks other queries. The ledger is on disk, with full
durability; "ledger" is the share of the exact path that reserving, paying and recording take.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labelwall.benchmarks.shared import image_features
from labelwall.benchmarks.shared.record import add_record, record
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.charging import answer_prepaid
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import Similar

CLASSES = 10
LOOP_QUERIES = 8
PUBLIC = 5000
PAPER = "the paper's loop in numpy, no ledger"


@dataclass
class Ours:
    """One mechanism with its ledger; ``ledger_seconds`` is the time of its transactions."""

    mechanism: IndKnn
    index: ExactIndex
    labels: np.ndarray
    folder: Path
    ledger_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir()
        plan = Plan(1e6, 1e-5, (Slot(self.mechanism.fields(), self.mechanism.releases(1, 1)),))
        self.ledger = Ledger.create(
            self.folder / "ledger.sqlite", dataset="benchmark", plan=plan, unsafe=False
        )
        self.serials = self.ledger.enrol(self.index.ids)
        for name in ("charge_prepaid", "record_prepaid"):
            setattr(self.ledger, name, self._timed(getattr(self.ledger, name)))

    def _timed(self, work: Callable[..., object]) -> Callable[..., object]:
        def timed(*args: object) -> object:
            started = time.perf_counter()
            try:
                return work(*args)
            finally:
                self.ledger_seconds += time.perf_counter() - started

        return timed

    def run(self, queries: np.ndarray, name: str) -> None:
        voters = Voters(self.index, self.labels, CLASSES, queries)
        keys = [f"{name} {i}" for i in range(len(queries))]
        answer_prepaid(self.ledger, 0, self.mechanism, voters, self.serials, keys, SystemEntropy())


class PapersLoop:
    """UAI23 Algorithm 3 as printed, a query at a time on float32 rows.

    Not private: its noise comes from numpy.
    """

    def __init__(self, rows: np.ndarray, labels: np.ndarray, mechanism: IndKnn) -> None:
        self.x = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        self.labels, self.m, self.rng = labels, mechanism, np.random.default_rng(0)
        self.z = np.full(len(rows), mechanism.rho)

    def run(self, queries: np.ndarray) -> None:
        one = 1 / (2 * self.m.sigma_count**2)
        for query in queries:
            q = query / np.linalg.norm(query)
            active = np.flatnonzero(self.z >= one)
            kernel = self.x[active] @ q
            near = kernel >= self.m.threshold
            rows, weights = active[near], kernel[near]
            count = max(len(rows) + self.rng.normal(scale=self.m.sigma_count), 30)
            self.z[rows] -= one
            variance = self.m.sigma_label**2 * count
            weights = np.minimum(weights, np.sqrt(2 * variance * self.z[rows]))
            self.z[rows] -= weights**2 / (2 * variance)
            sums = np.zeros(CLASSES)
            for label, weight in zip(self.labels[rows], weights, strict=True):
                sums[label] += weight
            (sums + self.rng.normal(scale=np.sqrt(variance), size=CLASSES)).argmax()


def rows(n: int, dimensions: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], labels int64 [n]): a mixture of 100 centres, ten a class."""
    centres = np.random.default_rng(0).normal(size=(100, dimensions))
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 100, n)
    x = centres[which] + rng.normal(size=(n, dimensions)).astype(np.float32) * 0.8
    x *= 16 * np.sqrt(dimensions) / np.linalg.norm(x, axis=1, keepdims=True)
    return np.clip(np.rint(x), -63, 63).astype(np.int8), which % CLASSES


def split(cache: Path, records: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An image data set's public-weight features.

    (int8 [records, d], labels int64 [records], queries int8 [m, d]).
    """
    scaling = image_features.public_scaling(cache, PUBLIC)
    x, labels = image_features.read(cache, "train", scaling, records)
    return x, labels, image_features.read(cache, "test", scaling)[0][PUBLIC:]


class Everything:
    """Selects every record that the index looks at."""

    def __call__(self, cross: np.ndarray, norms: np.ndarray, norm: int) -> Similar:
        return Similar(np.arange(len(cross)), np.ones(len(cross)))

    def bounds(self, least: int, largest: int, norms: np.ndarray) -> np.ndarray:
        return np.full(len(norms), np.iinfo(np.int32).max, dtype=np.int32)


def looked_at(index: ExactIndex, mechanism: IndKnn, queries: np.ndarray) -> tuple[float, float]:
    """(share of the records that hashing looks at, its recall of neighbours at the threshold)."""
    hashing = mechanism.hashing()
    candidates = index.similar(queries, Everything(), hashing)
    exact, hashed = (
        index.similar(queries, mechanism.select(1.0), among) for among in (None, hashing)
    )
    seen, found, relevant = (
        sum(len(similar.rows) for similar in lists) for lists in (candidates, hashed, exact)
    )
    return seen / (len(queries) * len(index)), found / max(1, relevant)


def clocks() -> np.ndarray:
    """Seconds of the wall clock and of all threads' CPU time, float64 [2].

    Other processes do not affect the second.
    """
    return np.array([time.perf_counter(), time.process_time()])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=1280)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--hashes", nargs="*", default=["30x8"], help="hash tables x hyperplanes of a table"
    )
    parser.add_argument(
        "--cache",
        type=Path,
        help="features of benchmarks/shared/image_features.py; synthetic ones if left out",
    )
    add_record(parser)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    if options.cache is None:
        (x, labels), threshold = rows(options.records, options.dimensions, 1), 0.5
    else:
        (x, labels, pool), threshold = split(options.cache, options.records), 0.3

    def ask(number: int) -> np.ndarray:
        if options.cache is None:
            return rows(options.batch, options.dimensions, 100 + number)[0]
        return np.roll(pool, -number * options.batch, axis=0)[: options.batch]

    exact = IndKnn(threshold=threshold, sigma_label=0.5, sigma_count=80.0, rho=0.03)
    mechanisms = {"exact": exact}
    for name in options.hashes:
        tables, bits = (int(part) for part in name.split("x"))
        mechanisms[f"hashed {tables} x {bits}"] = replace(exact, tables=tables, bits=bits)
    measure(mechanisms, x, labels, ask, options)


def measure(
    mechanisms: dict[str, IndKnn],
    x: np.ndarray,
    labels: np.ndarray,
    ask: Callable[[int], np.ndarray],
    options: argparse.Namespace,
) -> None:
    """Take turns, then print the table."""
    index = ExactIndex(x, np.arange(len(x)))
    loop = PapersLoop(x.astype(np.float32), labels, mechanisms["exact"])
    seconds: dict[str, list[np.ndarray]] = {name: [] for name in (*mechanisms, PAPER)}
    with tempfile.TemporaryDirectory() as folder:
        # An index for each: it keeps the hash tables of one setting.
        ours = {
            name: Ours(m, ExactIndex(x, index.ids), labels, Path(folder) / name.replace(" ", ""))
            for name, m in mechanisms.items()
        }
        # The first round builds tables and probes products; it is not timed.
        for number in range(-1, options.rounds):
            queries = ask(number)
            for name, path in ours.items():
                before = clocks()
                path.run(queries, str(number))
                seconds[name].append((clocks() - before) / len(queries))
            before, few = clocks(), queries[:LOOP_QUERIES].astype(np.float32)
            loop.run(few)
            seconds[PAPER].append((clocks() - before) / len(few))
            if number < 0:
                seconds = {name: [] for name in seconds}
                ours["exact"].ledger_seconds = 0.0
        total = sum(wall for wall, _ in seconds["exact"]) * options.batch
        share = ours["exact"].ledger_seconds / total
    neighbours = np.mean(
        [len(found.rows) for found in index.similar(queries, mechanisms["exact"].select(1.0))]
    )
    setting = f"{len(x):,} x {x.shape[1]:,}, batch {options.batch}, {options.threads} threads"
    print(f"{setting}, {neighbours:.0f} neighbours a query")
    print("| method | ms a query | CPU ms a query | records looked at | neighbours found |")
    print("|---|---|---|---|---|")
    measured = []
    for name, taken in seconds.items():
        wall, cpu = 1000 * np.median(taken, axis=0)
        seen, found = (
            looked_at(index, mechanisms[name], queries) if name.startswith("hashed") else (1.0, 1.0)
        )
        print(f"| {name} | {wall:.2f} | {cpu:.2f} | {seen:.1%} | {found:.0%} |", flush=True)
        cells = round(wall, 2), round(cpu, 2), round(100 * seen, 1), round(100 * found)
        measured.append([name, *map(float, cells)])
    print(f"ledger: {100 * share:.0f}% of the exact path")
    if options.record:
        columns = ("method", "ms", "CPU ms", "% of the records looked at", "% of neighbours found")
        record("ind_knn_time", columns, measured, keys=1, seeds="fresh noise")


if __name__ == "__main__":
    main()
