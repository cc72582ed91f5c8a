"""Public rows for tests of the planners, and a configuration over them; the private rows exist in
the tests alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from labelwall.experiment.plan.candidates import PLANNERS
from labelwall.experiment.plan.goal import Goal, Optimum, PublicRows
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.progress import no_progress

CLASSES, DIMENSIONS, PRIVATE, PUBLIC, TEST = 3, 8, 1500, 400, 400
EMBEDDER = Embedder(ExtractorSpec("raw", (DIMENSIONS,), CLASSES), probe=None)


def vectors(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping classes of vectors: float32 [n, 8], int64 [n]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    return (rng.normal(size=(n, DIMENSIONS)) + 1.6 * np.eye(CLASSES, DIMENSIONS)[labels]).astype(
        np.float32
    ), labels


def embedded(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    inputs, labels = vectors(seed, n)
    return EMBEDDER.embed(inputs)[0], labels


def write(folder: Path, settings: str) -> Path:
    """A configuration of two rounds over an npz file that does not even hold the private rows."""
    (public_x, _), (test_x, test_y) = vectors(2, PUBLIC), vectors(3, TEST)
    np.savez(folder / "data.npz", public_x=public_x, test_x=test_x, test_y=test_y)
    data = f"data: {{source: arrays, path: {folder}/data.npz}}"
    path = folder / "config.yaml"
    path.write_text(f"{data}\n{settings}\nrounds: [{{queries: 9}}, {{queries: 9}}]\n")
    return path


def planned(mechanism: Mechanism, goal: Goal, public: PublicRows) -> Optimum[Any]:
    """By the planner of its kind."""
    planner = PLANNERS[mechanism.kind]
    assert planner is not None
    return planner(mechanism, goal, public, no_progress)


class Quiet:
    """A console that shows nothing."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Nothing."""
