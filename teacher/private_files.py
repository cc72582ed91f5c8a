"""Files of the custodian's directory: locks that follow no symbolic link, a log that stays small.

Every file is its owner's alone (mode 0600).
"""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..wall.errors import InvalidInput, TeacherFailed

ERRORS = "errors.log"
LARGEST_LOG = 1 << 20  # bytes; the one before is kept as errors.log.1


def open_lock(path: Path) -> IO[str]:
    """A file to be locked, made where there is none. Raises InvalidInput for a symbolic link."""
    return open(_opened(path, os.O_RDWR), "w")


def log_failure(directory: Path, *, quoting: bool = True) -> None:
    """Append the present exception to the directory's errors.log. Never fails, as disks fill up.

    ``quoting``: with its text. Without it the log says where it was raised, and no byte of a
    request enters.
    """
    path, text = directory / ERRORS, traceback.format_exc()
    if not quoting and (error := sys.exception()) is not None:
        text = "".join([*traceback.format_tb(error.__traceback__), f"{type(error).__name__}\n"])
    with suppress(OSError, InvalidInput):
        if path.exists() and path.stat().st_size > LARGEST_LOG:
            path.replace(path.with_name(f"{ERRORS}.1"))
        with open(_opened(path, os.O_WRONLY | os.O_APPEND), "a") as log:
            log.write(text[-LARGEST_LOG:])


@contextmanager
def failures_hidden(directory: Path) -> Iterator[None]:
    """Replace every failure of private work by one constant text; the directory's log has it.

    Which Exception is raised may depend on a record. An interrupt is the operator's, and passes.
    """
    try:
        yield
    except Exception as error:
        log_failure(directory)
        raise TeacherFailed from error


def _opened(path: Path, flags: int) -> int:
    if path.is_symlink():
        raise InvalidInput(path.name, "a file of its own directory", "a symbolic link")
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def make_private(directory: Path) -> None:
    """Create a directory of mode 0700, or give that mode to it, and 0600 to its files.

    Raises InvalidInput where it can not be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        if not os.access(directory, os.W_OK | os.X_OK):  # of a file system without write access
            raise PermissionError
    except OSError as error:
        rule = "a folder of your own that can be written"
        raise InvalidInput("custodian_dir", rule, str(directory)) from error
    for path in directory.iterdir():
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o077:
            path.chmod(0o600)


def require_private(directory: Path) -> None:
    """Raise InvalidInput where others than the owner can write in a directory."""
    if directory.stat().st_mode & 0o022:
        rule = "a directory in which nobody else can write"
        cure = "Use `chmod 700` on it, if nobody has written there."
        raise InvalidInput("custodian_dir", rule, str(directory), cure)
