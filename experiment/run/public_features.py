"""Features of the public rows, computed once for each network of a run."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np

from ...teacher.features.embedder import Embedder, integers, quantise_box
from ...wall.datasets.sources import PublicData
from ...wall.messages import ExtractorSpec
from ...wall.progress import Progress, TaskProgress
from ..config.groups import Computing

PROBE = 64  # public rows that test whether a network treats rows of a batch independently
Network = tuple[str, str, tuple[float, ...], tuple[float, ...]]
# Rows' features by network and by the rows' bytes: a run asks for those of its rehearsals again.
_KNOWN: dict[Network, dict[bytes, np.ndarray]] = {}
MAX_NETWORKS, MAX_ROWS = 2, 5_000  # that are kept: the last ones, of each the first


def embedder_of(computing: Computing, spec: ExtractorSpec, public: np.ndarray) -> Embedder:
    """What computes features of PUBLIC rows, some of which are in ``public``."""
    return Embedder(
        spec,
        probe=public[:PROBE],
        batch_size=computing.batch_size,
        workers=computing.workers,
        device=computing.device,
    )


def features_of(
    embedder: Embedder, rows: np.ndarray, progress: TaskProgress | None = None
) -> np.ndarray:
    """float [n, d] of PUBLIC rows, before they are centred; a network computes a row once."""
    if not (embedder.spec.weights and len(rows)):
        return embedder.features(rows, progress)
    known = _KNOWN.setdefault(network_of(embedder.spec), {})
    while len(_KNOWN) > MAX_NETWORKS:
        del _KNOWN[next(iter(_KNOWN))]
    keys = [hashlib.sha256(row.tobytes()).digest() for row in rows]
    new = [number for number, key in enumerate(keys) if key not in known]
    features = dict(known)
    if new:
        computed = embedder.features(rows[new], progress)
        features |= zip((keys[number] for number in new), computed, strict=True)
        kept = new[: max(0, MAX_ROWS - len(known))]
        known |= {keys[number]: features[keys[number]].copy() for number in kept}
    return np.stack([features[key] for key in keys])


def quantised(spec: ExtractorSpec, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], bool [n]) of ``features_of`` PUBLIC rows, or of a box's rows: ``embed``'s."""
    box = spec.backbone == "box"
    return quantise_box(rows, spec.mean, spec.std) if box else integers(spec, rows)


def network_of(spec: ExtractorSpec) -> Network:
    """What tells networks apart."""
    return spec.backbone, hashlib.sha256(spec.weights).hexdigest(), spec.mean, spec.std


class PublicFeatures:
    """Plain and quantised features of a run's public and test rows.

    Memory holds those of one network, the last one asked for.
    """

    def __init__(self, computing: Computing, public: PublicData, progress: Progress) -> None:
        self._computing, self._progress = computing, progress
        self._rows = {"public": public.inputs, "test": public.test_inputs}
        self._network: Network | None = None
        self._features: dict[str, np.ndarray] = {}

    def plain(self, spec: ExtractorSpec, rows: str = "public") -> np.ndarray:
        """float [n, d]: features before they are centred; ``rows``: public or test."""
        if (network := network_of(spec)) != self._network:
            self._network, self._features = network, {}
            self._embedder = embedder_of(self._computing, spec, self._rows["public"])
        if rows not in self._features:
            progress = partial(self._progress, f"features of {rows} rows")
            self._features[rows] = features_of(self._embedder, self._rows[rows], progress)
        return self._features[rows]

    def quantised(self, spec: ExtractorSpec, rows: str = "public") -> np.ndarray:
        """int8 [n, d]: features as the teacher has them."""
        return quantised(spec, self.plain(spec, rows))[0]
