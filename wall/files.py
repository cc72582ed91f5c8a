"""Files as all rooms write them: whole or not at all, with one number for their formats.

One hash names the rows that they follow from.
"""

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from .errors import LabelwallError

FORMAT = 1  # of ledgers, anchors, directories and runs
PART = ".part"  # ends the name of what is not whole yet, which a kill leaves
ROWS = "rows"  # the folder with rows that a program had in memory
DELETE = (
    "Delete it, and metrics.json beside it if there is one: the run's command makes them again, "
    "and pays for nothing twice."
)


def other_format(what: str, found: object) -> str | None:
    """The error of a file that names another format, or none; None if it names this one."""
    if type(found) is int and found == FORMAT:
        return None
    found = repr(found)[:20]
    return f"`format` of {what} must be {FORMAT}. Found {found}. Another labelwall wrote it."


@contextmanager
def whole(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write, which is at ``path`` once all of it is on the disk.

    A process that dies before leaves what was there, and a file beside it that ends in .part.
    ``mode``: of a new file, less the process's mask. An OSError names the file.
    """
    scratch = path.with_name(path.name + PART)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException as error:
        scratch.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file atomically."""
    with whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def digest(rows: np.ndarray, *further: object) -> str:
    """SHA-256 (hex) of PUBLIC rows in their order, and of what ``further`` decides."""
    about = repr((rows.shape, rows.dtype.str, *further)).encode()
    return hashlib.sha256(about + np.ascontiguousarray(rows).data).hexdigest()


def write_arrays(path: Path, array: np.ndarray | None = None, **named: Any) -> None:
    """Write an npy file of one array, or an npz file of ``named`` ones, atomically."""
    content = io.BytesIO()
    if array is None:
        np.savez(content, **named)
    else:
        np.save(content, array)
    write_file(path, content.getvalue())


@contextmanager
def reading(path: Path, cure: str = DELETE) -> Iterator[None]:
    """Raises LabelwallError, which names the file, if what was written whole does not load."""
    try:
        yield
    except Exception as error:  # zipfile, numpy, safetensors and json raise many types
        if isinstance(error, OSError) and error.errno:
            raise
        raise LabelwallError(f"{path} is damaged. {cure}") from error
