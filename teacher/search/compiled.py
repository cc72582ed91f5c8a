"""Loops that numba compiles when they are first called."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from numba import njit


def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """``function``, compiled at its first call, so that an import writes nothing.

    It releases the GIL. The result is cached on disk for the next process. Without a writable
    place, each process compiles anew.
    """
    lock, built = Lock(), list[Callable[..., None]]()

    def call(*arrays: object) -> None:
        with lock:
            if not built:
                try:
                    built.append(njit(nogil=True, cache=True)(function))
                except RuntimeError:  # neither beside the source nor in the user's cache
                    built.append(njit(nogil=True)(function))
        built[0](*arrays)

    return call
