"""Runs one labelwall command and prints what it opened, as JSON.

The exit status, the number of files opened, and those of them in FORBIDDEN folders.

    python watched.py COLON:SEPARATED:FORBIDDEN COMMAND...

An audit hook records every file that Python, its libraries' Python code and SQLite open, from the
first import on. What child processes open is not recorded.
"""

from __future__ import annotations

import json
import os
import sys
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


def main(forbidden: list[str], command: list[str]) -> None:
    from labelwall import pipeline

    status = pipeline.main(command)
    own = within([os.getcwd()])
    print(
        json.dumps({"status": status, "opened": len(OPENED), "own": own, "seen": within(forbidden)})
    )


if __name__ == "__main__":
    sys.addaudithook(listen)  # before anything else is loaded
    main(sys.argv[1].split(":"), sys.argv[2:])
