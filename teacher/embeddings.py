"""Private embeddings under an extractor, kept in the custodian's directory so that a restart does not compute them again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from teacher.features import Embedder
from teacher.records import Records
from wall.messages import ExtractorSpec


@dataclass(frozen=True)
class Embedded:
    """``features``: int8 [n, d]; ``labels``, ``ids``: int64 [n]. Rows without finite features are gone: they vote for nobody."""

    features: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    ids: np.ndarray = field(repr=False)


def embed_records(
    directory: Path, records: Records, spec: ExtractorSpec, embedder: Embedder, progress: Callable[[int, int], None]
) -> Embedded:
    """The records' embeddings, from the cache in ``directory`` when it was made from the same rows and extractor."""
    cache, digest = directory / f"embeddings-{spec.sha256()[:16]}.npz", _digest(records)
    if cache.exists():
        with np.load(cache, allow_pickle=False) as stored:
            if str(stored["digest"]) == digest:
                return Embedded(stored["features"], stored["labels"], stored["ids"])
    features, finite = embedder.embed(records.inputs, progress)
    embedded = Embedded(features[finite], records.labels[finite], records.ids[finite])
    scratch = cache.with_suffix(".part")
    with scratch.open("wb") as file:
        np.savez(file, digest=digest, features=embedded.features, labels=embedded.labels, ids=embedded.ids)
    scratch.replace(cache)
    return embedded


def _digest(records: Records) -> str:
    """SHA-256 (hex) of the rows. Private: it is written into the custodian's cache file and nowhere else."""
    digest = hashlib.sha256()
    for array in (records.inputs, records.labels, records.ids):
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
