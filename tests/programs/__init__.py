"""Programs that tests start in processes of their own. All import this checkout."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

PROGRAMS = Path(__file__).parent
REPOSITORY = PROGRAMS.parents[1]


def environment(**more: str) -> dict[str, str]:
    """Environment variables of a program: this process's, one thread, and ``more``."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **more}


@contextmanager
def killed_before(point: int, folder: str, names: Sequence[str]) -> Iterator[None]:
    """SIGKILL this process before the ``point``-th statement of these files below ``folder``.

    ``folder``: relative to the repository. Raises AssertionError for a name that is not there.
    """
    watched = {path for path in (REPOSITORY / folder).rglob("*.py") if path.name in names}
    assert {path.name for path in watched} == set(names)
    count = 0
    is_watched = cache(lambda name: Path(name).resolve() in watched)

    def trace(frame: FrameType, event: str, _: object):
        nonlocal count
        if not is_watched(frame.f_code.co_filename):
            return None
        if event == "line":
            count += 1
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    yield
    sys.settrace(None)
