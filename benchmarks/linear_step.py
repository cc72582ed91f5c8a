"""Seconds of one step of private_linear: the sum of all records' clipped gradients, without noise.

python benchmarks/linear_step.py --records 60000 --dimensions 128 --classes 10
"""

import argparse
import statistics
import time

import numpy as np

from labelwall.teacher.mechanisms.gradient import gradient_sums
from labelwall.teacher.search.cpu import ExactIndex


def seconds(records: int, dimensions: int, classes: int, rounds: int) -> list[float]:
    """Of each round: the same random records (public law), other weights."""
    rng = np.random.default_rng(0)
    features = rng.integers(-40, 41, (records, dimensions)).astype(np.int8)
    labels = rng.integers(0, classes, records)
    index, found = ExactIndex(features, np.arange(records)), []
    for _ in range(rounds):
        weights = rng.integers(-500, 501, (1, dimensions + 1, classes)).astype(np.int16)
        start = time.perf_counter()
        gradient_sums(weights, (2000,), 60, "class", 1, index, labels)
        found.append(time.perf_counter() - start)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("records", 60_000), ("dimensions", 128), ("classes", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    found = seconds(options.records, options.dimensions, options.classes, options.rounds)
    print(f"median {statistics.median(found):.3f} s, fastest {min(found):.3f} s")


if __name__ == "__main__":
    main()
