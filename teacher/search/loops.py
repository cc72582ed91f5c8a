"""Loops that numba compiles, and a parallel map over threads."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """``function``, compiled at its first call, so that an import writes nothing.

    It releases the GIL. The result is cached on disk for the next process. Without a writable
    place, each process compiles anew.
    """

    @cache
    def built() -> Callable[..., None]:
        from numba import njit  # takes a fifth of a second

        try:
            return njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # neither beside the source nor in the user's cache
            return njit(nogil=True)(function)  # type: ignore[no-any-return]

    return lambda *arrays: built()(*arrays)


def default_threads() -> int:
    import torch

    return torch.get_num_threads()


def parallel_map(threads: int, function: Callable[..., T], *columns: Iterable[object]) -> list[T]:
    """``function`` of each row of ``columns``, in order, on at most ``threads`` threads.

    Products inside start no threads of their own. Raises what ``function`` raises, once no thread
    works any more.
    """
    rows = list(zip(*columns, strict=True))
    threads = min(threads, len(rows))
    if threads <= 1:
        return [function(*row) for row in rows]
    results: dict[int, T] = {}
    remaining = iter(range(len(rows)))  # a step of it is atomic

    def work() -> None:
        for number in remaining:
            results[number] = function(*rows[number])

    workers = [_pool(threads, os.getpid()).submit(work) for _ in range(threads)]
    wait(workers)
    for worker in workers:
        worker.result()
    return [results[number] for number in range(len(rows))]


@lru_cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads are kept, since new ones stay on their creator's core. ``process``: the process id,
    since a fork inherits the cache but no threads.
    """
    return ThreadPoolExecutor(threads, initializer=_use_one_thread)


def _use_one_thread() -> None:
    default_threads()  # torch sets a thread's number when it is first asked
    ThreadpoolController().limit(limits=1, user_api="openmp")
