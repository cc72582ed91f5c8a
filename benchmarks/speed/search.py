"""Queries per second of the exact search and of the whole path to noisy labels, beside others.

    python benchmarks/speed/search.py --data ../shared/data  # MNIST HOG (torchvision's layout)
    python benchmarks/speed/search.py                        # synthetic

All methods see the same features and run interleaved in one process, so that a busy machine slows
all of them: ratios are medians over rounds of a method's time against FAISS IndexFlatL2 in the same
round. Every round asks other queries.

With --device cuda our own methods search on the GPU, the others where they did. How much of the
device's limit the search reaches is printed for each batch size: the limit is the fastest int8
product of large matrices and the fastest copy, measured there and then.
"""

from __future__ import annotations

import os

# One library's idle threads must not spin on the next one's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwall.benchmarks.shared.clocks import Clocks
from labelwall.benchmarks.shared.record import add_record, record

if TYPE_CHECKING:
    import torch

    from labelwall.benchmarks.shared.limits import Limits
    from labelwall.teacher.noise.entropy import SystemEntropy
    from labelwall.teacher.search.cpu import ExactIndex

K = 300
CLASSES = 10
GAMMA = 0.15
LOOP_QUERIES = 4  # the per-query loop is too slow for whole batches
ALL = "all"
FAISS = "FAISS IndexFlatL2, k=300, float32"
OURS = "labelwall: the ordered prefix that k hits need"
PATH = "labelwall: 2 samples, screening, argmax, ledger"


@dataclass(frozen=True)
class Task:
    """``records``, ``queries``: int8 [n, d]; ``labels``: int64 [n_records]."""

    name: str
    records: np.ndarray
    labels: np.ndarray
    queries: np.ndarray


def load(folder: str | None, size: int) -> Task:
    """MNIST under HOG from a folder, or rows with the same sparsity."""
    rng = np.random.default_rng(0)
    if folder is None:
        rows = rng.integers(1, 40, (size + 4096, 1296), dtype=np.int8)
        rows *= rng.integers(0, 4, rows.shape, dtype=np.int8) == 0
        name, labels = f"synthetic rows, {size:,} x 1,296", rng.integers(0, CLASSES, size)
        return Task(name, rows[:size], labels, rows[size:])
    from torchvision.datasets import MNIST

    from labelwall.wall.features.embedder import Embedder
    from labelwall.wall.messages import ExtractorSpec

    hog = Embedder(ExtractorSpec("hog", (28, 28, 1), CLASSES), workers=2)
    train, test = MNIST(folder, train=True), MNIST(folder, train=False)
    records, queries = (hog.embed(part.data.numpy()[..., None])[0] for part in (train, test))
    return Task(
        f"MNIST HOG, {size:,} x 1,296", records[:size], train.targets.numpy()[:size], queries
    )


def methods(
    task: Task, threads: int, device: torch.device, workplace: Path
) -> dict[str, Callable[[np.ndarray], int]]:
    """Each takes a batch of queries (int8 [b, d]) and returns how many of them it worked on."""
    import faiss
    import torch
    from sklearn.neighbors import NearestNeighbors

    from labelwall.teacher.search.accelerators import index_on
    from labelwall.teacher.search.kernels import cosine
    from labelwall.teacher.search.poisson_sampling import prefix_length

    faiss.omp_set_num_threads(threads)
    torch.set_num_threads(threads)
    floats = task.records.astype(np.float32)
    flat = faiss.IndexFlatL2(floats.shape[1])
    flat.add(floats)
    int8 = faiss.IndexScalarQuantizer(
        floats.shape[1], faiss.ScalarQuantizer.QT_8bit_direct_signed, faiss.METRIC_L2
    )
    int8.add(floats)
    brute = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(floats)
    tensor, norms = torch.from_numpy(floats), torch.from_numpy((floats**2).sum(axis=1))
    index = index_on(device, task.records, np.arange(len(task.records)))

    some = task.queries[:16].astype(np.float32)
    cosines = some @ floats.T / np.outer(np.linalg.norm(some, axis=1), norms.sqrt())
    select = cosine(float(np.median(np.sort(cosines, axis=1)[:, -K])))

    def top(batch: np.ndarray) -> None:
        torch.topk(norms - 2 * torch.from_numpy(batch) @ tensor.T, K, largest=False)

    def on_floats(search: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], int]:
        return whole_batch(lambda batch: search(batch.astype(np.float32)))

    length = prefix_length(K, GAMMA)
    return {
        FAISS: on_floats(lambda batch: flat.search(batch, K)),
        "FAISS IndexScalarQuantizer, k=300, the same int8": on_floats(
            lambda batch: int8.search(batch, K)
        ),
        OURS: whole_batch(lambda batch: index.prefix(batch, length)),
        PATH: path(task, device, workplace),
        "labelwall: Ind-KNN's neighbours and weights, about 300": whole_batch(
            lambda batch: index.similar(batch, select)
        ),
        "float32 torch: product and topk, k=300": on_floats(top),
        "scikit-learn brute force, k=300": on_floats(
            lambda batch: brute.kneighbors(batch, return_distance=False)
        ),
        "Private-kNN's published loop, one query at a time": partial(published_loop, floats),
    }


def whole_batch(search: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], int]:
    """A method that works on all queries of a batch."""

    def run(batch: np.ndarray) -> int:
        search(batch)
        return len(batch)

    return run


def published_loop(records: np.ndarray, queries: np.ndarray) -> int:
    """The published Private-kNN code's work for a query: a sample, all differences, a full sort."""
    rng = np.random.default_rng(0)
    queries = queries[:LOOP_QUERIES].astype(np.float32)
    for query in queries:
        sample = rng.choice(len(records), int(GAMMA * len(records)))
        np.argsort(np.linalg.norm(records[sample] - query, axis=1))[:K]
    return len(queries)


def path(
    task: Task,
    device: torch.device,
    workplace: Path,
    clocks: Clocks | None = None,
    *,
    split: bool = False,
) -> Callable[[np.ndarray], int]:
    """Charge; sample and screen; record and charge; sample and vote; record.

    Three commits, as a teacher makes them (charging.py). Every query takes both stages, the most
    expensive case. ``split``: clock the search's products and selection, too.
    """
    from labelwall.teacher.accounting.plan import Plan, Slot
    from labelwall.teacher.ledger.ledger import Ledger
    from labelwall.teacher.mechanisms.voters import Voters
    from labelwall.teacher.mechanisms.votes import PrivateKnn
    from labelwall.teacher.noise.entropy import SystemEntropy
    from labelwall.teacher.search.accelerators import index_on

    noise = {"sigma_screen": 75.0, "sigma_vote": 25.0}
    mechanism = PrivateKnn(k=K, sample_rate=GAMMA, **noise)
    entropy, asked = SystemEntropy(), 0
    first, second = mechanism.stages
    plan = Plan(1e9, 1e-5, (Slot(mechanism.fields(), mechanism.releases(10**6, 10**6)),))
    file = workplace / "ledger.sqlite"
    ledger = Ledger.create(file, dataset="benchmark", plan=plan, unsafe=False)
    ledger.use_extractor({})
    # Not shared: a batch searched before would be free.
    index = index_on(device, task.records, np.arange(len(task.records)))

    if clocks is None:
        clocks = Clocks()
    else:
        clock(clocks, index, entropy, split)

    def run_path(batch: np.ndarray) -> int:
        nonlocal asked
        with clocks.part("the rest"):
            keys = [f"{asked + i:064x}" for i in range(len(batch))]
            asked += len(batch)
            voters = Voters(index, task.labels, CLASSES, batch)
            with clocks.part("ledger: charge"):
                charge = ledger.charge(0, first, keys)
            for stage, following in ((first, second), (second, None)):
                with clocks.part("screening and argmax"):
                    drawn = mechanism.draw(stage, voters, keys, entropy)
                results = dict(zip(keys, drawn.tolist(), strict=True))
                with clocks.part("ledger: record"):
                    charge = ledger.record(charge, results, following, lambda: keys)
        return len(batch)

    return run_path


def clock(clocks: Clocks, index: ExactIndex, entropy: SystemEntropy, split: bool) -> None:
    """Clock the parts of the path; ``split``: of the search, too."""
    from labelwall.teacher.mechanisms import voters
    from labelwall.teacher.search import cpu

    clocks.around(index, "prefix", "search: bounds and the rest" if split else "search")
    clocks.around(entropy, "inclusion", "inclusion bits")
    clocks.around(entropy, "discrete_gaussian", "noise")
    clocks.around(voters.Voters, "votes", "votes")
    if split:
        clocks.around(index, "_product", "search: products")
        clocks.around(cpu, "_collect", "search: selection")


def batches(queries: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Batches of ``size`` queries, others each time, around the set."""
    start = 0
    while True:
        yield queries[np.arange(start, start + size) % len(queries)]
        start += size


def seconds(work: Callable[[np.ndarray], int], batch: np.ndarray) -> float:
    """Seconds a query."""
    start = time.perf_counter()
    count = work(batch)
    return (time.perf_counter() - start) / count


def compare(
    task: Task, runners: dict[str, Callable[[np.ndarray], int]], size: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Method -> (median queries/s, median ratio to FAISS) at one batch size.

    The first round warms up and is not counted.
    """
    source = batches(task.queries, size)
    times: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(rounds + 1):
        batch = next(source)
        for name, work in runners.items():
            taken = seconds(work, batch)
            if number:
                times[name].append(taken)
    base = np.array(times[FAISS])
    return {
        name: (float(1 / np.median(t)), float(np.median(base / np.array(t))))
        for name, t in times.items()
    }


def shares(
    task: Task, device: torch.device, workplace: Path, sizes: list[int], rounds: int, threads: int
) -> dict[int, dict[str, np.ndarray]]:
    """Milliseconds a query of each part of the path by batch size: 10th, 50th, 90th percentile.

    All parts are clocked inside the same calls, each without the parts inside it; "all" has a clock
    of its own. On one thread of the processor the search is split further.
    """
    results, split = {}, threads == 1 and device.type == "cpu"
    with Clocks() as clocks:
        run = path(task, device, workplace, clocks, split=split)
        for size in sizes:
            source, taken = batches(task.queries, size), []
            for _ in range(rounds + 1):
                clocks.seconds.clear()
                batch = next(source)
                start = time.perf_counter()
                run(batch)
                taken.append({**clocks.seconds, ALL: time.perf_counter() - start})
            results[size] = {
                name: np.percentile([t[name] for t in taken[1:]], [10, 50, 90]) / size * 1e3
                for name in sorted(taken[1], key=lambda name: -taken[1][name])
            }
    return results


def parts_table(results: dict[int, dict[str, np.ndarray]], rounds: int) -> list[str]:
    """Lines of Markdown."""
    lines = []
    for size, parts in results.items():
        whole = parts[ALL][1]
        summed = sum(middle for name, (_, middle, _) in parts.items() if name != ALL)
        lines += [
            "",
            f"Parts of the path at batch {size}, ms a query over {rounds} rounds; the medians of "
            f"the parts add up to {summed:.3f}:",
            "",
            "| part | median | 10% to 90% | share |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {middle:.3f} | {low:.3f} to {high:.3f} | {100 * middle / whole:.0f}% |"
            for name, (low, middle, high) in parts.items()
        ]
    return lines


def reached(
    task: Task,
    results: dict[int, dict[str, tuple[float, float]]],
    limits: Limits,
    device: torch.device,
) -> list[str]:
    """How much of the device's limit the search reaches, by batch, as lines of Markdown."""
    lines = [
        f"The limit of this device ({device.type}), measured before: "
        f"{limits.operations / 1e12:.2f} 10^12 operations a second in int8 products, "
        f"{limits.bytes / 1e9:.1f} GB a second in a copy. "
        "At least: all products once, all features read once.",
        "",
        "| batch | at least, ms a query | search, ms a query | share of the limit | bound by |",
        "|---|---|---|---|---|",
    ]
    for size, rates in results.items():
        least, bound = limits.least(size, *task.records.shape)
        least, taken = least / size, 1 / rates[OURS][0]
        lines.append(
            f"| {size} | {1e3 * least:.4f} | {1e3 * taken:.4f} "
            f"| {100 * least / taken:.0f}% | {bound} |"
        )
    return lines


def table(
    task: Task,
    results: dict[int, dict[str, tuple[float, float]]],
    parts: dict[int, dict[str, np.ndarray]],
    shares_of_limit: list[str],
    threads: int,
    rounds: int,
) -> str:
    """The results as Markdown."""
    sizes = list(results)
    lines = [
        f"{task.name}, int8; {threads} threads; medians of {rounds} interleaved rounds. "
        "Queries/s (ratio to FAISS), by batch:",
        "",
        "| | " + " | ".join(f"batch {size}" for size in sizes) + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    for name in results[sizes[0]]:
        cells = [
            f"{rate:,.0f} ({ratio:.2f}x)" for rate, ratio in (results[size][name] for size in sizes)
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += parts_table(parts, rounds)
    return "\n".join([*lines, "", *shares_of_limit]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        help="folder with MNIST in torchvision's layout; synthetic rows where it is not given",
    )
    parser.add_argument("--records", type=int, default=60_000, help="private records, a count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where our own methods search: cpu or cuda")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1, 16, 256], help="queries a batch"
    )
    parser.add_argument(
        "--out", type=Path, help="file for the table (Markdown); printed in any case"
    )
    add_record(parser)
    options = parser.parse_args()
    import torch

    from labelwall.benchmarks.shared.limits import limits_of
    from labelwall.wall.devices import device_of

    torch.set_num_threads(options.threads)
    task, device = load(options.data, options.records), device_of(options.device)
    limits = limits_of(device)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        runners = methods(task, options.threads, device, Path(one))
        results = {size: compare(task, runners, size, options.rounds) for size in options.batches}
        parts = shares(task, device, Path(two), options.batches, options.rounds, options.threads)
    limit = reached(task, results, limits, device)
    text = table(task, results, parts, limit, options.threads, options.rounds)
    print(text)
    if options.out:
        options.out.write_text(text)
    if options.record:
        rows = [
            [name, size, round(rate), round(ratio, 2)]
            for size, found in results.items()
            for name, (rate, ratio) in found.items()
        ]
        columns = ("method", "batch", "queries a second", "times FAISS")
        record("search", columns, rows, keys=2, seeds="fresh noise")


if __name__ == "__main__":
    main()
