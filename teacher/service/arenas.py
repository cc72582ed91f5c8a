"""Memory of a service that lives for long. Loads nothing, so that it can be called first."""

from __future__ import annotations

import ctypes
from contextlib import suppress

M_ARENA_MAX = -8  # of glibc's mallopt


def share_arenas() -> None:
    """Let the threads of this process allocate from two arenas, where the C library is glibc.

    With an arena for each thread, what one has freed does not serve another, and a service of many
    short requests grows for hours. Arenas that are there stay: call it before threads start.
    """
    with suppress(AttributeError):  # another library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


def return_free_memory() -> None:
    """Return the heap's free pages to the system, where the C library is glibc.

    By itself it returns those at the end alone, and what a service keeps lies between what it
    frees.
    """
    with suppress(AttributeError):  # another library
        ctypes.CDLL(None).malloc_trim(0)
