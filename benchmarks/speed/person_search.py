"""Time of the votes of the k nearest persons, against those of the k nearest rows.

    python benchmarks/speed/person_search.py --data ../shared/data

MNIST's training rows under HOG, 10 rows a person, grouped in three ways: at random; by likeness
(each next row in the order of the first principal axis with the rows nearest to it, the worst for
a walk over the list); and one person of 1,000 rows among persons of 10. The same queries, Private-
kNN's samples (k = 300, gamma = 0.15), both releases of a query; ways alternate, and the ratio is
the median over rounds, each with queries of its own.
"""

import argparse
import time
from pathlib import Path

import numpy as np

K, GAMMA, CLASSES = 300, 0.15, 10
SIZE, ROUNDS, BATCH = 10, 7, 256


def alike(features: np.ndarray) -> np.ndarray:
    """Persons of SIZE rows that are near each other: int64 [n].

    Rows are cut into SIZE^3 blocks along the first principal axis; in each a row takes its nearest.
    """
    centred = features.astype(np.float32) - features.mean(axis=0, dtype=np.float32)
    axis = np.random.default_rng(0).normal(size=features.shape[1]).astype(np.float32)
    for _ in range(20):
        axis = centred.T @ (centred @ axis)
        axis /= np.linalg.norm(axis)
    found, number = np.empty(len(features), dtype=np.int64), 0
    for block in np.array_split(np.argsort(centred @ axis), max(1, len(features) // 1000)):
        left = block
        while len(left):
            distance = ((centred[left] - centred[left[0]]) ** 2).sum(axis=1)
            own = np.argsort(distance, kind="stable")[:SIZE]
            found[left[own]] = number
            left, number = np.delete(left, own), number + 1
    return found


def groupings(features: np.ndarray) -> dict[str, np.ndarray]:
    """Persons by row, by how they were grouped."""
    n = len(features)
    random = np.random.default_rng(1).permutation(n) // SIZE
    large = random.copy()
    large[np.random.default_rng(2).permutation(n)[:1000]] = n
    return {"at random": random, "by likeness": alike(features), "one of 1,000 rows": large}


def main() -> None:
    import torch
    from torchvision.datasets import MNIST

    from labelwall.teacher.mechanisms.voters import Voters
    from labelwall.teacher.noise.entropy import SystemEntropy
    from labelwall.teacher.search.cpu import ExactIndex
    from labelwall.wall.features.embedder import Embedder
    from labelwall.wall.messages import ExtractorSpec

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with MNIST in torchvision's layout")
    parser.add_argument("--rows", type=int, default=60_000, help="private rows, a count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--features", type=Path, help="npz file that keeps the features")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.features is not None and options.features.exists():
        held = np.load(options.features)
        records, queries = held["records"], held["queries"]
    else:
        hog = Embedder(ExtractorSpec("hog", (28, 28, 1), CLASSES), workers=2)
        parts = (MNIST(options.data, train=train).data.numpy() for train in (True, False))
        records, queries = (hog.embed(part[..., None])[0] for part in parts)
        if options.features is not None:
            np.savez(options.features, records=records, queries=queries)
    records = records[: options.rows]
    ids, labels = np.arange(len(records)), np.zeros(len(records), dtype=np.int64)
    ways = {"rows": ExactIndex(records, ids)}
    for name, persons in groupings(records).items():
        ways[name] = ExactIndex(records, ids, persons)

    def votes(index: ExactIndex, batch: np.ndarray) -> float:
        started, keys = time.perf_counter(), [f"{row}" for row in range(len(batch))]
        for release in ("screen", "aggregate"):
            voters = Voters(index, labels, CLASSES, batch)
            voters.votes(K, GAMMA, keys, release, SystemEntropy())
        return time.perf_counter() - started

    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        batch = queries[number * BATCH : (number + 1) * BATCH]
        for name, index in ways.items():
            times[name].append(votes(index, batch))
    print(f"{len(records):,} rows, {BATCH} queries, two releases each, {options.threads} threads")
    for name, found in times.items():
        ratios = np.array(found[1:]) / np.array(times["rows"][1:])
        print(f"{name:20} {np.median(found[1:]):7.3f} s  {np.median(ratios):5.2f} times rows")


if __name__ == "__main__":
    main()
