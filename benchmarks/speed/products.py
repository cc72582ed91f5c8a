"""What the search would cost with another product of int8 rows than the kernel for few queries.

    python benchmarks/speed/products.py --threads 1

All products search the same rows in one process, one after another in each round, in turning order:
a figure is the median over rounds of a product's time against the kernel's in the same round.
"""

import argparse
import time

import numpy as np
import torch
from numba import njit

from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.int8_matmul import float32_product, int8_product

RECORDS, DIMENSIONS, WIDTH = 60_000, 784, 1_500


def onednn(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    rows, columns = torch.from_numpy(left), torch.from_numpy(right)
    torch._int_mm(rows, columns.T, out=torch.from_numpy(out))


@njit(nogil=True)
def loops(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """Plain loops over records, queries and dimensions."""
    for record in range(np.uint64(len(right))):
        x = right[record]
        for query in range(np.uint64(len(left))):
            q, total = left[query], np.int32(0)
            for k in range(np.uint64(len(x))):
                total = np.int32(total + np.int32(np.int32(q[k]) * np.int32(x[k])))
            out[query, record] = total


PRODUCTS = {"kernel": int8_product, "oneDNN": onednn, "float32": float32_product, "loops": loops}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    random = np.random.default_rng(0)
    features = random.integers(-63, 64, (RECORDS, DIMENSIONS)).astype(np.int8)
    indexes = {
        name: ExactIndex(features, np.arange(RECORDS), product=product, threads=options.threads)
        for name, product in PRODUCTS.items()
    }
    print("| batch | kernel, ms |" + "".join(f" {name} |" for name in list(PRODUCTS)[1:]))
    print("|---" * (len(PRODUCTS) + 1) + "|")
    for batch in options.batches:
        seconds = {name: list[float]() for name in PRODUCTS}
        for number in range(options.rounds + 1):
            queries = random.integers(-63, 64, (batch, DIMENSIONS)).astype(np.int8)
            for name in list(PRODUCTS)[:: 1 if number % 2 else -1]:
                start = time.perf_counter()
                indexes[name].prefix(queries, WIDTH)
                seconds[name].append(time.perf_counter() - start)
        taken = {name: np.array(times[1:]) for name, times in seconds.items()}
        ratios = [np.median(taken[name] / taken["kernel"]) for name in list(PRODUCTS)[1:]]
        middle = 1e3 * np.median(taken["kernel"])
        print(f"| {batch} | {middle:.1f} |" + "".join(f" {ratio:.2f}x |" for ratio in ratios))


if __name__ == "__main__":
    main()
