"""Features of the public rows, computed once for each network of a run."""

from __future__ import annotations

import hashlib

import numpy as np

from labelwall.experiment.config.config import Config
from labelwall.teacher.features.embedder import Embedder, integers
from labelwall.wall.datasets.sources import PublicData
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.progress import Progress, TaskProgress

PROBE = 64  # public rows that test whether a network treats rows of a batch independently
Network = tuple[str, str, tuple[float, ...], tuple[float, ...]]
# Features by network that this process computed last: a run asks for those of its rehearsals again.
_RECENT: dict[tuple[Network, str], np.ndarray] = {}
MAX_RECENT = 4


def embedder_of(config: Config, spec: ExtractorSpec, public: np.ndarray) -> Embedder:
    """What computes features of PUBLIC rows, some of which are in ``public``, as configured."""
    return Embedder(
        spec,
        probe=public[:PROBE],
        batch_size=config.batch_size,
        workers=config.workers,
        device=config.device,
    )


def features_of(
    embedder: Embedder, rows: np.ndarray, progress: TaskProgress | None = None
) -> np.ndarray:
    """float [n, d] of PUBLIC rows, before they are centred; a network computes them once."""
    if not embedder.spec.weights:
        return embedder.features(rows, progress)
    key = network_of(embedder.spec), hashlib.sha256(rows.tobytes()).hexdigest()
    if key not in _RECENT:
        while len(_RECENT) >= MAX_RECENT:
            del _RECENT[next(iter(_RECENT))]
        _RECENT[key] = embedder.features(rows, progress)
    return _RECENT[key]


def network_of(spec: ExtractorSpec) -> Network:
    """What tells networks apart."""
    return spec.backbone, hashlib.sha256(spec.weights).hexdigest(), spec.mean, spec.std


class PublicFeatures:
    """Plain and quantised features of a run's public and test rows.

    Memory holds those of one network, the last one asked for.
    """

    def __init__(self, config: Config, public: PublicData, progress: Progress) -> None:
        self._config, self._progress = config, progress
        self._rows = {"public": public.inputs, "test": public.test_inputs}
        self._network: Network | None = None
        self._embedder: Embedder | None = None
        self._found: dict[str, np.ndarray] = {}

    def plain(self, spec: ExtractorSpec, rows: str = "public") -> np.ndarray:
        """float [n, d]: features before they are centred; ``rows``: public or test."""
        embedder = self._embedder_of(spec)
        if rows not in self._found:

            def progress(done: int, total: int) -> None:
                self._progress(f"features of {rows} rows", done, total)

            self._found[rows] = features_of(embedder, self._rows[rows], progress)
        return self._found[rows]

    def quantised(self, spec: ExtractorSpec, rows: str = "public") -> np.ndarray:
        """int8 [n, d]: features as the teacher has them."""
        if spec.backbone == "box":
            return self._embedder_of(spec).embed(self._rows[rows])[0]
        return integers(spec, self.plain(spec, rows))[0]

    def _embedder_of(self, spec: ExtractorSpec) -> Embedder:
        network = network_of(spec)
        if self._embedder is None or network != self._network:
            self._embedder = embedder_of(self._config, spec, self._rows["public"])
            self._network, self._found = network, {}
        return self._embedder
