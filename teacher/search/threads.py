"""Work that several threads share, of which the caller is one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")


def default_threads() -> int:
    """torch's number."""
    import torch

    return torch.get_num_threads()


def spread(threads: int, function: Callable[..., T], *columns: Iterable[object]) -> list[T]:
    """``function`` of each row of ``columns``, as by ``map``, on so many threads, whose products start no threads of their own.

    The caller takes rows as the others do. Were it to wait instead, the system would begin by putting two of those that it
    wakes on one core. Raises what the function raises, when nobody works any more.
    """
    rows = list(zip(*columns, strict=True))
    threads = min(threads, len(rows))
    if threads <= 1:
        return [function(*row) for row in rows]
    results: dict[int, T] = {}
    left = iter(range(len(rows)))  # a step of it is one for all threads

    def take() -> None:
        for number in left:
            results[number] = function(*rows[number])

    others = [_pool(threads - 1, os.getpid()).submit(take) for _ in range(threads - 1)]
    try:
        with _libraries().limit(limits=1, user_api="openmp"):
            take()
    finally:
        started = [other for other in others if not other.cancel()]
        failures = [other.exception() for other in started]
    for failure in filter(None, failures):
        raise failure
    return [results[number] for number in range(len(rows))]


@lru_cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Kept, as new threads begin on their maker's core and stay there for milliseconds. ``process``: a fork has no threads."""
    return ThreadPoolExecutor(threads, initializer=_alone)


def _alone() -> None:
    default_threads()  # torch sets a thread's number when it is first asked
    _libraries().limit(limits=1, user_api="openmp")


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    """Those of this process, looked for once: that takes milliseconds."""
    return ThreadpoolController()
