"""An audit hook that records every file that Python, its libraries' Python code and SQLite open,
but for child processes."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EVENTS = ("open", "os.listdir", "os.scandir", "sqlite3.connect")
_opened: list[str] | None = None


def _listen(event: str, args: tuple[object, ...]) -> None:
    if _opened is not None and event in EVENTS and isinstance(args[0], str | os.PathLike):
        _opened.append(os.path.abspath(os.fspath(args[0]).removeprefix("file:").partition("?")[0]))


# A hook can not be removed, so there is one, which only listens inside the block.
sys.addaudithook(_listen)


@contextmanager
def recorded() -> Iterator[list[str]]:
    """`with recorded() as paths:` collects every path that is opened or listed inside the block."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None
