"""Several trainings at a time, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from joblib import Parallel, delayed

from .config import StudentConfig
from .data import Pool
from .devices import kind

Result = TypeVar("Result")
Task = Callable[[], Result]
SECRETS = "LABELWALL_"  # environment variables that begin so are the caller's, such as its key
LONG = 3_000_000  # numbers that a training reads; a shorter one ends before its process has begun


def process_count(workers: int, config: StudentConfig, pool: Pool) -> int:
    """How many trainings of ``config`` on ``pool`` run at a time, each in a process of its own.

    At most ``workers``. It is 1, in this process, where a training takes no longer than starting a
    process, is on a GPU, whose memory it may fill, or has several processes of its own.
    """
    rows = config.batch_labelled + (config.objective != "supervised") * config.batch_unlabelled
    long = pool.inputs.ndim == 4 and config.steps * rows * pool.inputs[0].size >= LONG
    return workers if long and kind(config) == "cpu" and config.devices == 1 else 1


def parallel(processes: int, tasks: Iterable[Task[Result]]) -> Iterator[Result]:
    """What the ``tasks`` return, in order, so many of them at a time.

    Each has its share of this process's threads. With several processes the first tasks begin at
    once, otherwise each when it is asked for.
    """
    run = partial(_with_threads, share_of_threads(processes))
    pool = Parallel(processes, backend="loky", return_as="generator", max_nbytes=None)
    with no_secrets():
        results: Iterator[Result] = pool(delayed(run)(task) for task in tasks)
    return results


@contextmanager
def no_secrets() -> Iterator[None]:
    """Processes that are started meanwhile do not inherit the caller's SECRETS."""
    secrets = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(SECRETS)}
    try:
        yield
    finally:
        os.environ |= secrets


def share_of_threads(processes: int) -> int:
    """Threads of each of so many processes."""
    return max(1, torch.get_num_threads() // processes)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for this process's products."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _with_threads(count: int, task: Task[Result]) -> Result:
    with threads(count):
        return task()
