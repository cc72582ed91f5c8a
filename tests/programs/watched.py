"""An audit hook that records every file that Python, its libraries' Python code and SQLite open.

What child processes open is not recorded.
"""

import os
from collections.abc import Sequence

OPENED: list[str] = []
EVENTS = ("open", "os.listdir", "os.scandir", "sqlite3.connect")


def listen(event: str, args: tuple[object, ...]) -> None:
    if event in EVENTS and isinstance(args[0], str | os.PathLike):
        OPENED.append(os.path.abspath(os.fspath(args[0]).removeprefix("file:").partition("?")[0]))


def within(folders: Sequence[str]) -> list[str]:
    """What was opened in one of these folders, or is one of them."""
    return [
        path
        for path in OPENED
        if any(path == folder or path.startswith(folder + os.sep) for folder in folders)
    ]
