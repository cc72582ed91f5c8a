"""Arrays on disk that grow by blocks. Who was killed while writing one, goes on after the last whole block."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

JOURNAL = "journal.json"


@dataclass(frozen=True)
class Journal:
    """``done``: how much of the source was taken in, in its own unit; ``rows``: of every array; ``complete``: nothing follows."""

    done: int = 0
    rows: int = 0
    complete: bool = False


def journal(directory: Path) -> Journal:
    """What is on disk; an empty one where nothing is."""
    path = directory / JOURNAL
    return Journal(**json.loads(path.read_text())) if path.exists() else Journal()


def append(directory: Path, blocks: Mapping[str, np.ndarray], done: int) -> None:
    """Add rows to the arrays NAME.npy, each block [n, ...] of the same n and always of the same dtype and row shape.

    On disk when this returns, all of it; a crash before that leaves the former rows alone.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = journal(directory)
    rows = held.rows + len(next(iter(blocks.values())))
    for name, block in blocks.items():
        path = directory / f"{name}.npy"
        with path.open("r+b" if path.exists() else "w+b") as file:
            description = {
                "descr": block.dtype.str,
                "fortran_order": False,
                "shape": (rows, *block.shape[1:]),
            }
            np.lib.format.write_array_header_1_0(
                file, description
            )  # padded by numpy: as long for any number of rows
            size = block.dtype.itemsize * int(np.prod(block.shape[1:]))
            file.seek(held.rows * size, os.SEEK_CUR)  # a torn block is written over
            file.write(np.ascontiguousarray(block).data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    _write(directory, Journal(done, rows))


def finish(directory: Path) -> None:
    """Nothing will follow."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    held = journal(directory)
    _write(directory, Journal(held.done, held.rows, True))


def read(directory: Path, name: str) -> np.ndarray:
    """An array, mapped into memory: what is looked at is read, and nothing is ever written back."""
    mapped: np.ndarray = np.load(directory / f"{name}.npy", mmap_mode="c", allow_pickle=False)
    return np.asarray(mapped)


def _write(directory: Path, held: Journal) -> None:
    scratch = directory / f"{JOURNAL}.part"
    with scratch.open("w") as file:
        json.dump(asdict(held), file)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(directory / JOURNAL)
