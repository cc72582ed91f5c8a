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
