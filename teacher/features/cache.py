"""Private embeddings under an extractor, kept in the custodian's directory so that a restart does not compute them again.

A row of the cache belongs to one record, by the digest of what it was made from. A record that is gone, is gone from every
cache: the file that held it is written anew without it, or deleted.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.records.sources import Records
from labelwall.wall.messages import ExtractorSpec

DIGEST_BYTES = 16


@dataclass(frozen=True)
class Embedded:
    """``features``: int8 [n, d]; ``labels``, ``ids``: int64 [n]. Rows without finite features are gone: they vote for nobody."""

    features: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    ids: np.ndarray = field(repr=False)


def cache_name(spec: ExtractorSpec, device: str) -> str:
    """Of the file with one extractor's embeddings as one type of device computes them: another's may differ by a step."""
    return f"embeddings-{spec.sha256()[:16]}-{device}.npz"


def embed_records(
    directory: Path,
    records: Records,
    spec: ExtractorSpec,
    embedder: Embedder,
    progress: Callable[[int, int], None],
) -> Embedded:
    """The records' embeddings; what the cache in ``directory`` was made for, record by record, is not computed again."""
    cache, digests = directory / cache_name(spec, embedder.device), row_digests(records)
    _forget(directory, set(digests), cache)
    known = _load(cache)
    place = {digest: i for i, digest in enumerate(known.digests)} if known else {}
    found = np.array([place.get(digest, -1) for digest in digests], dtype=np.int64)
    missing = np.flatnonzero(found < 0)
    if known and not len(missing) and len(known.digests) == len(digests):
        features, finite = known.features[found], known.finite[found]
    else:
        new, new_finite = embedder.embed(records.inputs[missing], progress)
        features, finite = (
            np.empty((len(found), new.shape[1]), dtype=np.int8),
            np.empty(len(found), dtype=bool),
        )
        if known:
            features[found >= 0], finite[found >= 0] = (
                known.features[found[found >= 0]],
                known.finite[found[found >= 0]],
            )
        features[missing], finite[missing] = new, new_finite
        _save(cache, _Cached(digests, features, finite), records.ids)
    return Embedded(features[finite], records.labels[finite], records.ids[finite])


def forget(records: Records, *directories: Path) -> None:
    """Delete every cache that holds a row of a record that is not among these."""
    present = set(row_digests(records)) if directories else set()
    for directory in directories:
        _forget(directory, present, None)


def forget_shards(directory: Path, kept: Path | None = None) -> None:
    """Delete copies of the private rows in shards, which nobody would clean: all but those in the folder ``kept``."""
    for copies in directory.glob("shards-*"):
        if copies != kept:
            shutil.rmtree(copies)


def _forget(directory: Path, present: set[bytes], kept: Path | None) -> None:
    """``kept``: the cache that its own extractor is about to write anew."""
    for part in directory.glob("embeddings-*.part"):
        part.unlink()
    for cache in directory.glob("embeddings-*.npz"):
        known = _load(cache) if cache != kept else None
        if cache != kept and (known is None or not present.issuperset(known.digests)):
            cache.unlink()


def row_digests(records: Records) -> list[bytes]:
    """16 bytes of (input, label, id) for each row. Private: they stand in the custodian's caches and nowhere else."""
    heading, digests = f"{records.inputs.dtype}{records.inputs.shape[1:]}", []
    for row, label, identity in zip(
        records.inputs, records.labels.tolist(), records.ids.tolist(), strict=True
    ):
        digest = hashlib.blake2b(
            f"{heading} {label} {identity} ".encode(), digest_size=DIGEST_BYTES
        )
        digest.update(np.ascontiguousarray(row).data)
        digests.append(digest.digest())
    return digests


@dataclass(frozen=True)
class _Cached:
    digests: list[bytes]
    features: np.ndarray
    finite: np.ndarray


def _load(cache: Path) -> _Cached | None:
    """A cache, None where there is none of this form."""
    if not cache.exists():
        return None
    with np.load(cache, allow_pickle=False) as stored:
        if set(stored.files) != {"digests", "features", "finite", "ids"}:
            return None
        return _Cached(
            [row.tobytes() for row in stored["digests"]], stored["features"], stored["finite"]
        )


def _save(cache: Path, made: _Cached, ids: np.ndarray) -> None:
    digests = np.frombuffer(b"".join(made.digests), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
    scratch = cache.with_suffix(".part")
    with scratch.open("wb") as file:
        np.savez(file, digests=digests, features=made.features, finite=made.finite, ids=ids)
    scratch.replace(cache)
