"""Released labels joined to public inputs.

A batch is a function of (seed, step), so a resumed training sees the same batches.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from ..wall.labels import LabelSpace, has_label
from ..wall.messages import ExtractorSpec
from ..wall.preprocessing import unit_scale
from .objectives import OBJECTIVES
from .student_config import StudentConfig

# Labelled inputs; their labels int64 [b], [b, c] for attributes, or class probabilities float32
# [b, c]; public inputs.
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
# Steps of a Lightning epoch. A checkpoint and a reading of the metrics follow each.
STEPS_A_CHAPTER = 100


@dataclass(frozen=True)
class Pool:
    """The rows that a student is trained on, labelled or not, and what is known of them.

    ``inputs``: uint8 [n, h, w, c] or float32 [n, d]; ``mean``, ``std``: what standardises them, by
    channel of images on the 0..1 scale, by entry of vectors, which stay as they are where it is
    empty. ``labels``: what a row's label can be.
    """

    inputs: np.ndarray = field(repr=False)
    labels: LabelSpace
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def spec(self, backbone: str, weights: bytes) -> ExtractorSpec:
        """A trained network for such rows, as it crosses the wall."""
        return ExtractorSpec(
            backbone, self.inputs.shape[1:], self.labels.outputs, weights, self.mean, self.std
        )


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a student is trained on.

    ``labels``: of the pool's rows, int64 [n], or [n, c] for attributes, -1 where none was released;
    ``chances``: released probabilities of classes, float32 [n, c], rows of NaN where there are
    none.
    """

    pool: Pool
    labels: np.ndarray
    chances: np.ndarray | None = None

    def with_rows(
        self, inputs: np.ndarray, labels: np.ndarray, chances: np.ndarray | None = None
    ) -> "Lesson":
        soft = self.chances
        if soft is not None:
            none = np.full((len(inputs), soft.shape[1]), np.nan, dtype=np.float32)
            soft = np.concatenate([soft, none if chances is None else chances])
        pool = replace(self.pool, inputs=np.concatenate([self.pool.inputs, inputs]))
        return Lesson(pool=pool, labels=np.concatenate([self.labels, labels]), chances=soft)


def has_soft(soft: np.ndarray | None, rows: int) -> np.ndarray:
    """Which rows have probabilities: bool [rows] of float32 [rows, c], NaN where there are none."""
    return np.zeros(rows, dtype=bool) if soft is None else ~np.isnan(soft).any(axis=1)


def targets(labels: np.ndarray, soft: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """(labels int64 [n], what a network is to say of each row).

    The latter are the labels themselves, or with ``soft`` probabilities float32 [n, c]. A row's
    probabilities say more than its label and replace it; a label alone has probability 1.
    """
    if soft is None:
        return labels, labels
    there = has_soft(soft, len(labels))
    one_hot = np.eye(soft.shape[1], dtype=np.float32)[labels]  # never drawn where there is no label
    most_probable = np.where(there, soft.argmax(axis=1), labels)
    return most_probable, np.where(there[:, np.newaxis], soft, one_hot)


class Steps(Dataset[Batch]):
    """Batches of the ``steps`` of a training, inputs on the 0..1 scale.

    The label space's strata have equal shares of a batch, because screening passes some classes far
    less often than others. All rows serve as unlabelled data; for fixmatch, which refines labels,
    those without one. ``share``: of each batch, the rows of one of several devices.
    """

    def __init__(
        self,
        lesson: Lesson,
        config: StudentConfig,
        seed: int,
        steps: range,
        share: slice = slice(None),
    ) -> None:
        labels, self._targets = targets(lesson.labels, lesson.chances)
        self._x, self._config = lesson.pool.inputs, config
        self._seed, self._steps, self._share = seed, steps, share
        self._labelled = np.flatnonzero(has_label(labels))
        strata = lesson.pool.labels.strata(labels)[self._labelled]
        alone = OBJECTIVES[config.objective].unsaid_alone
        self._unlabelled = np.flatnonzero(~has_label(labels)) if alone else np.arange(len(labels))
        self._below = np.cumsum(1 / np.bincount(strata)[strata])

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, position: int) -> Batch:
        rng = np.random.default_rng([self._seed, self._steps[position]])
        drawn = self._below[-1] * rng.random(self._config.batch_labelled)
        labelled = self._labelled[np.searchsorted(self._below, drawn, side="right")]
        others, unlabelled = len(self._unlabelled), self._config.batch_unlabelled
        if not OBJECTIVES[self._config.objective].unlabelled or not others:
            unlabelled = 0
        everyone = self._unlabelled[rng.choice(others, unlabelled, replace=others < unlabelled)]
        labelled, everyone = labelled[self._share], everyone[self._share]
        return (
            unit_scale(self._x[labelled]),
            torch.from_numpy(self._targets[labelled]),
            unit_scale(self._x[everyone]),
        )


class StudentData(pl.LightningDataModule):
    """Training batches from the public pool, and the public test split for reported metrics."""

    def __init__(
        self,
        lesson: Lesson,
        config: StudentConfig,
        seed: int,
        test: tuple[np.ndarray, np.ndarray] | None,
    ) -> None:
        super().__init__()
        self._lesson, self._config, self._seed, self._test = lesson, config, seed, test

    def train_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        first = self.trainer.global_step
        chapter = range(first, min(first + STEPS_A_CHAPTER, self._config.steps))
        share = slice(self.trainer.global_rank, None, self.trainer.world_size)
        steps = Steps(self._lesson, self._config, self._seed, chapter, share)
        return DataLoader(steps, batch_size=None, shuffle=False)

    def val_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]] | list[object]:
        if self._test is None:
            return []
        x, y = self._test
        return DataLoader(TensorDataset(unit_scale(x), torch.from_numpy(y)), batch_size=500)
