"""One shard of the private rows: its files, its embeddings, its index. The same class in this process and as a Ray actor."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from labelwall import ROOT
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.mechanisms.pate.linear_ensemble import shard_numbers
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.devices import device_of
from labelwall.teacher.search.gpu import index_on
from labelwall.teacher.search.index import WholeIndex
from labelwall.teacher.shards.growing import Journal, append, finish, journal, read
from labelwall.wall.errors import LabelwallError
from labelwall.wall.messages import ExtractorSpec

COLUMNS = ("inputs", "labels", "ids")
ROWS = "rows"  # raw rows' folder
BLOCK, BLOCK_BYTES = (
    16_384,
    1 << 26,
)  # the most rows, and raw bytes, that are taken in, embedded or copied together
T = TypeVar("T")
Request = Callable[["Shard"], T]  # a frozen description; whatever it does may be done again


class ShardFailed(LabelwallError):
    """A constant, as it crosses processes and their logs: why stands in the custodian's directory."""

    def __init__(self) -> None:
        super().__init__("a shard of the private rows failed.")

    def __reduce__(self) -> tuple[type[ShardFailed], tuple[()]]:
        return (
            ShardFailed,
            (),
        )  # exceptions are made from their text again, which this one does not take


@dataclass(frozen=True)
class Sight:
    """What a worker sees: ``program``, a digest of the code that it runs, and its rows' journal."""

    program: str
    rows: Journal


@cache
def program() -> str:
    """SHA-256 (hex) of the source files of this process's private side and wall."""
    digest = hashlib.sha256()
    for package in ("teacher", "wall"):
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT).as_posix()} ".encode() + path.read_bytes())
    return digest.hexdigest()


class Shard:
    """The rows in ``directory``. It keeps no state that its files do not hold, so that a restarted worker goes on.

    ``threads``: of torch in a process of its own; None leaves this process's number. ``device``: type of the one that computes.
    """

    def __init__(self, directory: str, threads: int | None = None, device: str = "cpu") -> None:
        self._directory, self._device = Path(directory), device
        self._loaded: tuple[str, WholeIndex, np.ndarray] | None = None
        self._sorted: np.ndarray | None = None
        self._parted: tuple[tuple[str, bytes, int], np.ndarray] | None = None
        self._embedder: tuple[str, Embedder] | None = None
        if threads is not None:
            import torch

            torch.set_num_threads(threads)

    def __repr__(self) -> str:
        return "Shard()"

    def do(self, request: Request[T]) -> T:
        """The request's result. Raises ShardFailed for any failure: what went wrong may depend on a record."""
        try:
            return request(self)
        except Exception:
            text = traceback.format_exc()
            with contextlib.suppress(OSError), (self._directory / "errors.log").open("a") as file:
                file.write(text)
        raise ShardFailed

    def look(self) -> Sight:
        """What is seen from here; no rows where the directory can not be read and written."""
        usable = os.access(self._directory, os.R_OK | os.W_OK | os.X_OK)
        return Sight(program(), journal(self._directory / ROWS) if usable else Journal())

    def embed_block(
        self, spec: ExtractorSpec, probe: np.ndarray | None, batch_size: int
    ) -> tuple[int, int]:
        """Embed the next rows that have no features yet: (rows done, rows).

        Features lie by rising id, without rows whose features are not finite; of rows of one id the first counts.
        """
        folder, rows = self._folder(spec.sha256()), self._directory / ROWS
        order = self._order()
        done = journal(folder).done
        if not journal(folder).complete:
            part = order[done : done + block_rows(spec.input_shape)]
            inputs = (
                read(rows, "inputs")[part]
                if len(order)
                else np.zeros((0, *spec.input_shape), dtype=_dtype(spec))
            )
            if self._embedder is None or self._embedder[0] != spec.sha256():
                self._embedder = (
                    spec.sha256(),
                    Embedder(spec, probe=probe, batch_size=batch_size, device=self._device),
                )
            features, finite = self._embedder[1].embed(inputs)
            done += len(part)
            append(folder, {"features": features[finite], "places": part[finite]}, done)
            if done == len(order):
                finish(folder)
                self._sorted = None
        return done, len(order)

    def index(self, extractor: str) -> tuple[WholeIndex, np.ndarray]:
        """(index of the embedded rows, their labels int64 [n]), both by rising id."""
        if self._loaded is None or self._loaded[0] != extractor:
            folder, rows = self._folder(extractor), self._directory / ROWS
            places = read(folder, "places")
            labels, ids = (self._column(rows, name)[places] for name in ("labels", "ids"))
            self._loaded = (
                extractor,
                index_on(device_of(self._device), read(folder, "features"), ids),
                labels,
            )
        return self._loaded[1], self._loaded[2]

    def part(
        self, extractor: str, key: bytes, teachers: int, number: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(features int8 [m, d], labels, ids int64 [m] each) of the embedded rows here that belong to one of PATE's teachers."""
        index, labels = self.index(extractor)
        if self._parted is None or self._parted[0] != (extractor, key, teachers):
            self._parted = (extractor, key, teachers), shard_numbers(index.ids, key, teachers)
        rows = np.flatnonzero(self._parted[1] == number)
        return read(self._folder(extractor), "features")[rows], labels[rows], index.ids[rows]

    def rows_of(self, ids: np.ndarray, like: Records) -> Records:
        """The rows here of some ids (int64 [m]); ``like``: none, of the same form."""
        order = self._order()
        places = np.sort(order[np.isin(self._column(self._directory / ROWS, "ids")[order], ids)])
        if not len(places):
            return like
        inputs, labels, held = (read(self._directory / ROWS, name)[places] for name in COLUMNS)
        return Records(inputs, labels, held)

    def amend(self, named: np.ndarray, added: Records) -> None:
        """The rows without those of ids ``named`` (int64 [m]), then ``added``; embeddings of a shard that changed are deleted.

        May be done again wherever it was killed: the rows are the old ones, or the new ones, or the new ones still to be renamed.
        """
        rows, scratch, left = (
            self._directory / f"{ROWS}{ending}" for ending in ("", ".part", ".old")
        )
        if not rows.exists() and journal(scratch).complete:
            scratch.rename(rows)
        for path in (scratch, left):
            if path.exists():
                shutil.rmtree(path)
        columns = {name: read(rows, name) for name in COLUMNS} if journal(rows).rows else {}
        kept = (
            np.flatnonzero(~np.isin(columns["ids"], named))
            if columns
            else np.zeros(0, dtype=np.int64)
        )
        gone = len(columns["ids"]) - len(kept) if columns else 0
        if gone == 0 and len(added.ids) == 0:
            return
        self._loaded = self._sorted = self._parted = None
        size = block_rows(added.inputs.shape[1:])
        for start in range(0, len(kept), size):
            part = kept[start : start + size]
            append(
                scratch, {name: column[part] for name, column in columns.items()}, start + len(part)
            )
        append(
            scratch,
            {"inputs": added.inputs, "labels": added.labels, "ids": added.ids},
            len(kept) + len(added.ids),
        )
        finish(scratch)
        for old in self._directory.glob("features-*"):
            shutil.rmtree(old)
        rows.rename(left)
        scratch.rename(rows)
        shutil.rmtree(left)

    def _order(self) -> np.ndarray:
        """Places of the rows by rising id, the first of each: int64 [n]."""
        if self._sorted is None:  # once, and not for each block
            self._sorted = np.unique(
                self._column(self._directory / ROWS, "ids"), return_index=True
            )[1]
        return self._sorted

    def _column(self, rows: Path, name: str) -> np.ndarray:
        return read(rows, name) if journal(rows).rows else np.zeros(0, dtype=np.int64)

    def _folder(self, extractor: str) -> Path:
        return self._directory / f"features-{extractor[:16]}-{self._device}"


def block_rows(shape: tuple[int, ...]) -> int:
    """How many rows of a shape are held together."""
    return max(1, min(BLOCK, BLOCK_BYTES // (math.prod(shape) * (1 if len(shape) == 3 else 4))))


def _dtype(spec: ExtractorSpec) -> type:
    return np.uint8 if len(spec.input_shape) == 3 else np.float32
