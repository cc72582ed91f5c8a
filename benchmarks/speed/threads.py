"""What a step of a small network takes by one and by two threads, beside busy CPUs.

    python benchmarks/speed/threads.py --busy 2

So many processes compute meanwhile. Figures are medians of steps, whose threads take turns.
"""

import argparse
import time
from itertools import chain
from multiprocessing import get_context
from statistics import median

import torch

from labelwall.wall.computing import free_threads
from labelwall.wall.networks import build

SHAPE, ROWS = (28, 28, 1), 256


def compute() -> None:
    """Keep a CPU busy, without end."""
    for _ in iter(int, 1):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy", type=int, default=2, help="other processes [count]")
    parser.add_argument("--steps", type=int, default=9, help="of each number of threads [count]")
    options = parser.parse_args()
    network, x = build("small_cnn", input_shape=SHAPE, num_classes=10), torch.rand(ROWS, 1, 28, 28)
    others = [get_context("spawn").Process(target=compute) for _ in range(options.busy)]
    for other in others:
        other.start()
    try:
        seconds: dict[int, list[float]] = {1: [], 2: []}
        time.sleep(1)  # until they compute
        print("threads that a run would take, of 2:", free_threads(2))
        for threads in chain((1, 2), (1, 2) * options.steps):
            torch.set_num_threads(threads)
            began = time.perf_counter()
            network(x).sum().backward()
            seconds[threads].append(time.perf_counter() - began)
    finally:
        for other in others:
            other.kill()
    for threads, each in seconds.items():  # the first step of each takes longer
        print(f"{threads} threads: {1000 * median(each[1:]):.0f} ms a step")


if __name__ == "__main__":
    main()
