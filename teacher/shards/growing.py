"""Arrays on disk that grow by blocks.

An interrupted writer resumes after the last complete block.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ...wall.files import whole

JOURNAL = "journal.json"


@dataclass(frozen=True)
class Journal:
    """What is on disk.

    ``done``: how much of the source has been read, in its own unit; ``rows``: of every array;
    ``complete``: no more rows follow.
    """

    done: int = 0
    rows: int = 0
    complete: bool = False


def journal(directory: Path) -> Journal:
    """The journal in ``directory``; an empty one if there is none."""
    path = directory / JOURNAL
    return Journal(**json.loads(path.read_text())) if path.exists() else Journal()


def append(directory: Path, blocks: Mapping[str, np.ndarray], done: int) -> None:
    """Add rows to the arrays NAME.npy.

    Each block is [n, ...] of the same n, and an array's blocks have the same dtype and row shape.
    All of it is on disk when this returns. A crash before that leaves the former rows unchanged.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = journal(directory)
    rows = before.rows + len(next(iter(blocks.values())))
    for name, block in blocks.items():
        path, row_shape = directory / f"{name}.npy", block.shape[1:]
        header = {"descr": block.dtype.str, "fortran_order": False, "shape": (rows, *row_shape)}
        with path.open("r+b" if path.exists() else "w+b") as file:
            # numpy pads the header: its length does not depend on the number of rows.
            np.lib.format.write_array_header_1_0(file, header)
            row_bytes = block.dtype.itemsize * int(np.prod(row_shape))
            file.seek(before.rows * row_bytes, os.SEEK_CUR)  # overwrites a torn block
            file.write(np.ascontiguousarray(block).data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    _write(directory, Journal(done, rows))


def finish(directory: Path) -> None:
    """Record that no more rows follow."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(directory, replace(journal(directory), complete=True))


def has(directory: Path, name: str) -> bool:
    """Whether there is an array of that name."""
    return (directory / f"{name}.npy").exists()


def read(directory: Path, name: str) -> np.ndarray:
    """An array, mapped into memory. Only what is used is read, and nothing is written back."""
    mapped: np.ndarray = np.load(directory / f"{name}.npy", mmap_mode="c", allow_pickle=False)
    return np.asarray(mapped)


def _write(directory: Path, content: Journal) -> None:
    with whole(directory / JOURNAL) as file:
        file.write(json.dumps(asdict(content)).encode())
