"""The runner of all sweeps of kills: a process dies at one point after another, and what it left
behind is examined. A sweep runs in a process of its own, so that its forks start without threads.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa
import torch  # noqa: F401 - else each of the forks would load it again
from sqlalchemy.dialects import sqlite  # noqa: F401

from tests.make import Watched
from tests.programs import REPOSITORY, environment


def kills(program: str, root: Path, *arguments: object) -> list[dict[str, Any]]:
    """What a program of kills prints, one JSON line a kill. On a server each has a schema, named by
    ``root``, which is new.
    """
    root.mkdir(parents=True)
    command = [sys.executable, "-m", f"tests.programs.{program}", str(root), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=REPOSITORY, env=environment()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"point"')]
    return [json.loads(line) for line in lines]


def sweep(kill: Callable[..., tuple[bool, dict[str, Any]]]) -> None:
    """The program ROOT STRIDE [ARGUMENTS]: print what ``kill(folder, point, *arguments)`` finds at
    every STRIDE-th point, until it says that the work was finished, and no kill was met.
    """
    root, stride, *arguments = sys.argv[1:]
    point, finished = 1, False
    while not finished:
        folder = Path(root) / str(point)
        folder.mkdir()
        finished, findings = kill(folder, point, *arguments)
        print(json.dumps({"point": point, **findings}), flush=True)
        point += int(stride)


class Witness(Watched):
    """The real entropy, leaving a durable note of every release that it is about to draw."""

    def __init__(self, notes: Path) -> None:
        super().__init__(self._hear)
        self._notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, release: str, count: int) -> None:
        os.write(self._notes, f"{release} {count}\n".encode())

    def _hear(self, law: str, _: float, keys: Sequence[str], release: str) -> None:
        if law == "discrete_gaussian":
            self.note(release, len(keys))


def started(work: Callable[[], int | None]) -> int:
    """The number of a child at ``work``, which returns its exit code (None for 0)."""
    process = os.fork()
    if process == 0:
        try:
            os._exit(work() or 0)
        except BaseException as error:  # a child never returns into its parent's program
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(111)
    return process


def forked(work: Callable[[], int | None]) -> int:
    """The exit code of ``work`` in a child that comes to its end, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(started(work), 0)[1])


def is_finished(work: Callable[[], None]) -> bool:
    """Whether ``work`` came to its end in a child. Raises AssertionError where it failed."""
    status = forked(work)
    assert status in (0, -signal.SIGKILL), status
    return status == 0


def killed_at(point: int) -> None:
    """SIGKILL this process before the ``point``-th change of its disk: a file that it opens for
    writing, renames or removes, a folder that it makes, or a commit of a ledger. Never for 0.
    """
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1
        if count == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(event: str, arguments: tuple) -> None:
        written = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        made = event == "os.mkdir" and not os.path.exists(arguments[0])
        if written or made or event in ("os.rename", "os.remove", "os.rmdir"):
            step()

    sys.addaudithook(heard)
    sa.event.listen(sa.Engine, "commit", step)


@contextmanager
def killed_before(point: int, folder: str, names: Sequence[str]) -> Iterator[None]:
    """SIGKILL this process before the ``point``-th statement of these files below ``folder``.

    ``folder``: relative to the repository. Raises AssertionError for a name that is not there.
    """
    watched = {path for path in (REPOSITORY / folder).rglob("*.py") if path.name in names}
    assert {path.name for path in watched} == set(names)
    count = 0
    is_watched = cache(lambda name: Path(name).resolve() in watched)

    def trace(frame: FrameType, event: str, _: object) -> Any:
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
