"""Time of an Ind-KNN query from embedded batch to committed answer: exact, hashed, and the paper's loop in numpy beside them.

    python benchmarks/ind_knn.py                    # 50,000 x 1,280, batch 256, cosine

Rows are synthetic: unit vectors around class centres, so that about a hundredth of the records are neighbours of a query. The
methods take turns in one process; a line is the median over rounds. Every round asks other queries. The ledger is on disk, with
full durability; "ledger" is the share of the exact path that reserving, paying and recording take.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from teacher.individual import answer_individually
from teacher.mechanisms.electorate import Electorate
from teacher.mechanisms.ind_knn import IndKnn
from teacher.neighbors import ExactIndex
from teacher.privacy.ledger import Ledger
from teacher.privacy.noise import SystemEntropy
from teacher.privacy.plan import Plan, Slot

CLASSES, LOOP_QUERIES = 10, 8


@dataclass
class Ours:
    """One mechanism with a ledger of its own; ``ledger_seconds`` adds up what its transactions take."""

    mechanism: IndKnn
    index: ExactIndex
    labels: np.ndarray
    folder: Path
    ledger_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir()
        plan = Plan(1e6, 1e-5, (Slot(self.mechanism.fields(), self.mechanism.releases(1, 1)),))
        self.ledger = Ledger.create(self.folder / "ledger.sqlite", dataset="benchmark", plan=plan, unsafe=False)
        self.serials = self.ledger.enrol(self.index.ids)
        for name in ("charge_prepaid", "record_prepaid"):
            setattr(self.ledger, name, self._timed(getattr(self.ledger, name)))

    def _timed(self, work):  # type: ignore[no-untyped-def]
        def timed(*args):  # type: ignore[no-untyped-def]
            started = time.perf_counter()
            try:
                return work(*args)
            finally:
                self.ledger_seconds += time.perf_counter() - started

        return timed

    def run(self, queries: np.ndarray, name: str) -> None:
        voters = Electorate(self.index, self.labels, CLASSES, queries)
        keys = [f"{name} {i}" for i in range(len(queries))]
        answer_individually(self.ledger, 0, self.mechanism, voters, self.serials, keys, SystemEntropy())


class PapersLoop:
    """UAI23 Algorithm 3 as printed, a query at a time on float32 rows; noise from numpy. No privacy comes of it."""

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


def recall(index: ExactIndex, mechanism: IndKnn, queries: np.ndarray) -> tuple[float, float]:
    """(share of neighbours above the threshold that hashing finds, neighbours a query)."""
    exact = index.similar(queries, mechanism.select(1.0))
    hashed = index.similar(queries, mechanism.select(1.0), mechanism.hashing())
    all_of_them = sum(len(found.rows) for found in exact)
    return sum(len(found.rows) for found in hashed) / max(1, all_of_them), all_of_them / len(queries)


def clocks() -> np.ndarray:
    """Seconds of the wall clock and of all threads' CPU time, float64 [2]: the second does not see who else is at work."""
    return np.array([time.perf_counter(), time.process_time()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=1280)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tables", type=int, default=30)
    parser.add_argument("--bits", type=int, default=8)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    x, labels = rows(options.records, options.dimensions, 1)
    mechanism = IndKnn(threshold=0.5, sigma_label=0.5, sigma_count=80.0, rho=0.03)
    hashed = replace(mechanism, tables=options.tables, bits=options.bits)
    index = ExactIndex(x, np.arange(len(x)))
    with tempfile.TemporaryDirectory() as folder:
        ours = {name: Ours(m, index, labels, Path(folder) / name) for name, m in (("exact", mechanism), ("hashed", hashed))}
        loop, seconds = (
            PapersLoop(x.astype(np.float32), labels, mechanism),
            dict[str, list[np.ndarray]](exact=[], hashed=[], paper=[]),
        )
        for number in range(-1, options.rounds):  # the first round builds tables and probes products
            queries, _ = rows(options.batch, options.dimensions, 100 + number)
            for name, path in ours.items():
                before = clocks()
                path.run(queries, str(number))
                seconds[name].append((clocks() - before) / len(queries))
            before = clocks()
            loop.run(queries[:LOOP_QUERIES].astype(np.float32))
            seconds["paper"].append((clocks() - before) / LOOP_QUERIES)
            if number < 0:
                seconds = {name: [] for name in seconds}
                ours["exact"].ledger_seconds = 0.0
        share = ours["exact"].ledger_seconds / (sum(wall for wall, _ in seconds["exact"]) * options.batch)
        found, neighbours = recall(index, hashed, queries)
    setting = f"{options.records:,} x {options.dimensions:,}, batch {options.batch}, {options.threads} threads"
    print(f"{setting}, {neighbours:.0f} neighbours a query")
    print("| method | ms a query | CPU ms a query |\n|---|---|---|")
    titles = {
        "exact": "exact",
        "hashed": f"hashed {options.tables} x {options.bits}",
        "paper": "the paper's loop in numpy, no ledger",
    }
    for name, title in titles.items():
        wall, cpu = 1000 * np.median(seconds[name], axis=0)
        print(f"| {title} | {wall:.2f} | {cpu:.2f} |")
    print(f"ledger: {100 * share:.0f}% of the exact path; hashing finds {100 * found:.0f}% of the neighbours above the threshold")


if __name__ == "__main__":
    main()
