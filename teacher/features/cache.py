"""A cache of private features in the custodian's directory, so that a restart reuses them.

Each row belongs to one record, by the digest of what it was computed from. A removed record is
removed from every cache: the file that contains it is rewritten without it, or deleted.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.records.sources import Records
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.progress import TaskProgress

DIGEST_BYTES = 16


@dataclass(frozen=True)
class Embedded:
    """Records with finite features. The others are dropped and never vote.

    ``features``: int8 [n, d]; ``labels``, ``ids``: int64 [n].
    """

    features: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    ids: np.ndarray = field(repr=False)


def cache_name(spec: ExtractorSpec, device: str) -> str:
    """File name of one extractor's features as one type of device computes them.

    Another device's features may differ by a step.
    """
    return f"embeddings-{spec.sha256()[:16]}-{device}.npz"


def embed_records(
    directory: Path,
    records: Records,
    spec: ExtractorSpec,
    embedder: Embedder,
    progress: TaskProgress,
) -> Embedded:
    """The records' features. Those that the cache in ``directory`` has are not computed again."""
    cache, digests = directory / cache_name(spec, embedder.device), row_digests(records)
    _forget(directory, set(digests), cache)
    cached = _load(cache)
    place = {digest: i for i, digest in enumerate(cached.digests)} if cached else {}
    found = np.array([place.get(digest, -1) for digest in digests], dtype=np.int64)
    known, missing = np.flatnonzero(found >= 0), np.flatnonzero(found < 0)
    if cached and not len(missing) and len(cached.digests) == len(digests):
        features, finite = cached.features[found], cached.finite[found]
    else:
        new, new_finite = embedder.embed(records.inputs[missing], progress)
        features = np.empty((len(found), new.shape[1]), dtype=np.int8)
        finite = np.empty(len(found), dtype=bool)
        features[missing], finite[missing] = new, new_finite
        if cached:
            features[known] = cached.features[found[known]]
            finite[known] = cached.finite[found[known]]
        _save(cache, _Cached(digests, features, finite), records.ids)
    return Embedded(features[finite], records.labels[finite], records.ids[finite])


def forget(records: Records, *directories: Path) -> None:
    """Delete every cache in ``directories`` with a row of a record that is not in ``records``."""
    present = set(row_digests(records)) if directories else set()
    for directory in directories:
        _forget(directory, present, None)


def forget_shards(directory: Path, kept: Path | None = None) -> None:
    """Delete all sharded copies of the private rows but the folder ``kept``.

    Nothing removes records from copies that are not in use.
    """
    for copies in directory.glob("shards-*"):
        if copies != kept:
            shutil.rmtree(copies)


def _forget(directory: Path, present: set[bytes], kept: Path | None) -> None:
    """Delete every cache with a row that is not in ``present``.

    ``kept``: a cache that its extractor is about to rewrite; it stays.
    """
    for part in directory.glob("embeddings-*.part"):
        part.unlink()
    for cache in directory.glob("embeddings-*.npz"):
        if cache == kept:
            continue
        cached = _load(cache)
        if cached is None or not present.issuperset(cached.digests):
            cache.unlink()


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


@dataclass(frozen=True)
class _Cached:
    digests: list[bytes]
    features: np.ndarray
    finite: np.ndarray


def _load(cache: Path) -> _Cached | None:
    """The cache in a file, or None if the file is missing or has another format."""
    if not cache.exists():
        return None
    with np.load(cache, allow_pickle=False) as stored:
        if set(stored.files) != {"digests", "features", "finite", "ids"}:
            return None
        digests = [row.tobytes() for row in stored["digests"]]
        return _Cached(digests, stored["features"], stored["finite"])


def _save(cache: Path, content: _Cached, ids: np.ndarray) -> None:
    digests = np.frombuffer(b"".join(content.digests), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    scratch = cache.with_suffix(".part")
    with scratch.open("wb") as file:
        np.savez(file, digests=digests, features=content.features, finite=content.finite, ids=ids)
    scratch.replace(cache)
