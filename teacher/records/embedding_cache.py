"""A cache of private features in the custodian's directory, so that a restart reuses them.

Each row belongs to one record, by the digest of what it was computed from. A removed record is
removed from every cache: the file that contains it is rewritten without it, or deleted. PATE's
networks are deleted whole.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...wall.datasets.arrays import required_member
from ...wall.errors import InvalidInput, MissingData
from ...wall.features.embedder import VECTORS, Embedder, quantised
from ...wall.files import whole
from ...wall.messages import ExtractorSpec, blank_inputs
from ...wall.progress import TaskProgress
from .private_records import Records

NETWORKS = "networks"  # folder of PATE's, each taught by a shard of the records
DIGEST_BYTES = 16
MEMBERS = {"digests": np.uint8, "features": np.int8, "finite": np.bool_, "ids": np.int64}
MAX_CACHES = 16  # extractors whose features are kept
SAVE_SECONDS = 10.0  # of work that a killed process may lose
BLOCK = 512  # rows embedded between two checks of the time
BLOCK_BYTES = 1 << 25  # of their inputs
MAX_PLAIN_BYTES = 1 << 29  # of features before axes that a process keeps


def cache_name(spec: ExtractorSpec, device: str) -> str:
    """File name of an extractor's features on a type of device: another's may differ by a step."""
    return f"embeddings-{spec.sha256()}-{device}.npz"


class PlainFeatures:
    """The records' features before axes, of the last network, in memory.

    An extractor of the same network on other axes needs no pass of it: `auto` chooses axes anew
    after the first released sum.
    """

    def __init__(self) -> None:
        self._plain: ExtractorSpec | None = None
        self._rows: dict[bytes, np.ndarray] = {}

    def embed(
        self,
        embedder: Embedder,
        digests: Sequence[bytes],
        inputs: np.ndarray,
        progress: TaskProgress,
    ) -> tuple[np.ndarray, np.ndarray]:
        """``Embedder.embed`` of records' ``inputs``, which the ``digests`` name, row by row."""
        if embedder.spec.backbone in VECTORS or not digests:
            return embedder.embed(inputs, progress)
        if self._plain != embedder.spec.plain:
            self._plain, self._rows = embedder.spec.plain, {}
        missing = [row for row, digest in enumerate(digests) if digest not in self._rows]
        fresh = dict[bytes, np.ndarray]()
        if missing:
            computed = embedder.features(inputs[missing], progress)
            fresh = {digests[row]: x for row, x in zip(missing, computed, strict=True)}
            if (len(self._rows) + len(fresh)) * computed[0].nbytes <= MAX_PLAIN_BYTES:
                self._rows |= fresh
        known = self._rows | fresh if len(fresh) < len(digests) else fresh
        return quantised(embedder.spec, np.stack([known[digest] for digest in digests]))


class Embedding:
    """The features of records under an embedder's extractor, computed block by block.

    What the cache in ``directory`` or ``plain`` has is not computed again. What is computed is
    stored in the directory from time to time, so that also a killed process leaves all but its last
    SAVE_SECONDS of work.
    """

    def __init__(
        self,
        directory: Path,
        records: Records,
        embedder: Embedder,
        plain: PlainFeatures,
        progress: TaskProgress,
    ) -> None:
        self._cache = directory / cache_name(embedder.spec, embedder.device)
        self._records = records
        self._embedder, self._plain, self._progress = embedder, plain, progress
        self._digests = row_digests(records)
        _forget(directory, set(self._digests), self._cache)
        self._features: np.ndarray | None = None  # int8 [n, d], of all records
        self._finite = np.zeros(len(self._digests), dtype=bool)
        self._missing = np.arange(len(self._digests))
        self._done, self._saved_at, self._is_saved = 0, time.monotonic(), False
        cached = _load(self._cache)
        if cached is not None:
            row_of = {row.tobytes(): number for number, row in enumerate(cached["digests"])}
            stored = np.array([row_of.get(digest, -1) for digest in self._digests], dtype=np.int64)
            present, self._missing = np.flatnonzero(stored >= 0), np.flatnonzero(stored < 0)
            self._features = np.zeros((len(stored), cached["features"].shape[1]), dtype=np.int8)
            self._features[present] = cached["features"][stored[present]]
            self._finite[present] = cached["finite"][stored[present]]
            self._is_saved = not len(self._missing) and len(row_of) == len(self._digests)

    def advance(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Embed until all is done, or ``stop()`` after a block. Returns whether all is done."""
        while self._done < len(self._missing) or self._features is None:
            self._embed_block()
            if self._done < len(self._missing):
                if time.monotonic() - self._saved_at > SAVE_SECONDS:
                    self.save()
                if stop():
                    return False
        if not self._is_saved:
            self.save()
            self._is_saved = True
        return True

    def save(self) -> None:
        if self._features is None:
            return
        done = np.ones(len(self._digests), dtype=bool)
        done[self._missing[self._done :]] = False
        digests = np.frombuffer(b"".join(self._digests), np.uint8).reshape(-1, DIGEST_BYTES)
        # Ids are for the custodian, who can see whose features a cache has
        columns = digests, self._features, self._finite, self._records.ids
        _save(self._cache, dict(zip(MEMBERS, (column[done] for column in columns), strict=True)))
        _forget_oldest(self._cache)
        self._saved_at = time.monotonic()

    def result(self) -> tuple[np.ndarray, Records]:
        """(features int8 [n, d], their records) by ascending id, when all is done.

        Records whose features are not finite are dropped and never vote.
        """
        assert self._features is not None
        rows = np.argsort(self._records.ids)
        rows = rows[self._finite[rows]]
        return self._features[rows], self._records.take(rows)

    def _embed_block(self) -> None:
        block = self._missing[self._done : self._done + block_rows(self._embedder.spec)]
        before, total = self._done, len(self._missing)
        new, finite = self._plain.embed(
            self._embedder,
            [self._digests[row] for row in block],
            self._records.inputs[block],
            lambda done, _: self._progress(before + done, total),
        )
        if self._features is None:
            self._features = np.zeros((len(self._digests), new.shape[1]), dtype=np.int8)
        self._features[block], self._finite[block] = new, finite
        self._done += len(block)


def block_rows(spec: ExtractorSpec) -> int:
    """Rows of one block, of bounded memory. Public."""
    return max(1, min(BLOCK, BLOCK_BYTES // blank_inputs(spec.input_shape, 1).nbytes))


def forget(records: Records, *directories: Path) -> None:
    """Rewrite every cache in ``directories`` without the records that are not in ``records``."""
    present = set(row_digests(records)) if directories else set()
    for directory in directories:
        _forget(directory, present, None)
        for network in directory.glob(f"{NETWORKS}/*"):
            network.unlink()


def forget_shards(directory: Path, current: Path | None = None) -> None:
    """Delete the sharded copies but ``current``: nothing removes records from those not in use."""
    for copies in directory.glob("shards-*"):
        if copies != current:
            shutil.rmtree(copies)


def _forget(directory: Path, present: set[bytes], current: Path | None) -> None:
    """Rewrite every cache without the rows that are not in ``present``; delete a damaged one.

    ``current``: a cache that its extractor is about to rewrite; it stays.
    """
    for unfinished in directory.glob("embeddings-*.part"):
        unfinished.unlink()
    for cache in directory.glob("embeddings-*.npz"):
        if cache == current:
            continue
        cached = _load(cache)
        if cached is None:
            cache.unlink()
            continue
        rows = np.array([row.tobytes() in present for row in cached["digests"]], dtype=bool)
        if not rows.all():
            age = cache.stat()
            _save(cache, {name: column[rows] for name, column in cached.items()})
            os.utime(cache, ns=(age.st_atime_ns, age.st_mtime_ns))  # it was not used


def _forget_oldest(newest: Path) -> None:
    """Keep the caches that were written last: callers choose how many extractors they send."""
    caches = sorted(newest.parent.glob("embeddings-*.npz"), key=lambda path: path.stat().st_mtime)
    for cache in caches[:-MAX_CACHES]:
        if cache != newest:
            cache.unlink(missing_ok=True)


def row_digests(records: Records) -> list[bytes]:
    """A digest of (input, label, id) for each row, 16 bytes.

    Private: digests are stored in the custodian's caches and nowhere else.
    """
    heading, digests = f"{records.inputs.dtype}{records.inputs.shape[1:]}", []
    for row, label, identity in zip(
        records.inputs, records.labels.tolist(), records.ids.tolist(), strict=True
    ):
        prefix = f"{heading} {label} {identity} ".encode()
        digest = hashlib.blake2b(prefix, digest_size=DIGEST_BYTES)
        digest.update(np.ascontiguousarray(row).data)
        digests.append(digest.digest())
    return digests


def _load(cache: Path) -> dict[str, np.ndarray] | None:
    """The arrays of a cache, or None if the file is missing, damaged or of another format."""
    try:
        arrays = {name: required_member(cache, name) for name in MEMBERS}
    except (InvalidInput, MissingData):
        return None
    rows, width = len(arrays["digests"]), arrays["features"].shape[1:]
    shapes = [(rows, DIGEST_BYTES), (rows, *width), (rows,), (rows,)]
    fit = [array.shape for array in arrays.values()] == shapes and len(width) == 1
    kinds = [array.dtype for array in arrays.values()] == list(MEMBERS.values())
    return arrays if fit and kinds else None


def _save(cache: Path, arrays: dict[str, np.ndarray]) -> None:
    with whole(cache) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
