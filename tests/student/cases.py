"""Rows of each kind of label, on which students train in a moment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwall.student.batches import STEPS_A_CHAPTER, Lesson, Pool
from labelwall.student.student_config import StudentConfig
from labelwall.student.student_model import outputs
from labelwall.student.train import train
from labelwall.wall.label_kinds import AttributeLabels, ClassLabels, ValueLabels
from labelwall.wall.labels import LabelSpace

CLASSES, ATTRIBUTES, PUBLIC, TEST = 3, 4, 240, 200
SCALE = ValueLabels(-50.0, 150.0)
CONFIG = StudentConfig(
    backbone="mlp", steps=STEPS_A_CHAPTER * 2 + 30, batch_labelled=16, batch_unlabelled=24
)
RNG = np.random.default_rng(0)
TRUTH = RNG.integers(0, CLASSES, 120)
VECTORS = (RNG.normal(size=(120, 8)) + 2 * np.eye(CLASSES, 8)[TRUTH]).astype(np.float32)
LABELS = np.where(np.arange(120) < 60, TRUTH, -1)


@dataclass(frozen=True)
class TrainedStudent:
    """What a training leaves: ``weights``, and the metrics of each chapter in its checkpoint."""

    weights: bytes
    history: list[dict[str, float]]


def trained(*arguments: Any, run_dir: Path, **more: Any) -> TrainedStudent:
    weights = train(*arguments, run_dir=run_dir, **more)
    last = max((run_dir / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    callbacks = torch.load(last, weights_only=True)["callbacks"]
    return TrainedStudent(weights, callbacks["History"]["rows"])


@dataclass(frozen=True)
class Task:
    """Public rows with their released ``labels`` and true ones, and test rows."""

    pool: Pool
    labels: np.ndarray
    truth: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    @property
    def lesson(self) -> Lesson:
        return Lesson(pool=self.pool, labels=self.labels)

    def train(
        self, run_dir: Path, config: StudentConfig = CONFIG, seed: int = 4, **changed: object
    ) -> TrainedStudent:
        """``changed``: arguments of ``train``."""
        given = {"lesson": self.lesson, "test": (self.test_x, self.test_y)}
        return trained(config, run_dir=run_dir, seed=seed, **(given | changed))

    def predicted(self, trained: TrainedStudent) -> np.ndarray:
        spec = self.pool.spec("mlp", trained.weights)
        return self.pool.labels.predict(outputs(spec, self.test_x))


def classes(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, n)
    return (rng.normal(size=(n, 8)) + 2.5 * np.eye(CLASSES, 8)[y]).astype(np.float32), y


def attributes(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors in which each attribute shifts a coordinate of its own."""
    rng = np.random.default_rng(seed)
    bits = (rng.random((n, ATTRIBUTES)) < [0.5, 0.3, 0.7, 0.2]).astype(np.int64)
    x = rng.normal(size=(n, 6)) * 0.4
    x[:, :ATTRIBUTES] += 2 * bits - 1
    return x.astype(np.float32), bits


def values(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors, and a bent function of two of their entries."""
    x = np.random.default_rng(seed).normal(size=(n, 5)).astype(np.float32)
    return x, 40.0 + 30.0 * np.tanh(x[:, 0].astype(np.float64)) + 15.0 * x[:, 1]


def _task(kind: str) -> Task:
    rows = {"classes": classes, "attributes": attributes, "values": values}[kind]
    (x, truth), tests = rows(0, PUBLIC), rows(1, TEST)
    number, rng = np.arange(PUBLIC), np.random.default_rng(2)
    space: LabelSpace
    if kind == "classes":
        space, labels = ClassLabels.of(CLASSES), np.where(number < 60, truth, -1)
    elif kind == "attributes":
        released = (number[:, None] < 80) & (rng.random((PUBLIC, ATTRIBUTES)) < 0.8)
        space, labels = AttributeLabels.of(ATTRIBUTES), np.where(released, truth, -1)
    else:
        noisy = SCALE.steps(truth + rng.normal(size=PUBLIC) * 8)
        space, labels = SCALE, np.where(number < 120, noisy, -1)
    return Task(Pool(x, space), labels, truth, *tests)


TASKS = {kind: _task(kind) for kind in ("classes", "attributes", "values")}
