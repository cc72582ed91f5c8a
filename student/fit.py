"""A training in this process, which may be one of several.

An interrupted training continues from its checkpoint to the same weights.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy

from ..wall.networks.architectures import Backbone, build, load, to_safetensors
from ..wall.progress import TaskProgress, no_progress
from .config import StudentConfig
from .data import STEPS_A_CHAPTER, Pool, StudentData
from .job import Job
from .module import AttributeStudent, Student, StudentModule
from .ranks import ALONE, Ranks
from .regression import Regressor

STUDENT_MODULES: dict[str, type[StudentModule]] = {  # by a label space's loss
    "cross_entropy": Student,
    "binary_cross_entropy": AttributeStudent,
    "squared_error": Regressor,
}


@dataclass(frozen=True)
class TrainedStudent:
    """``weights``: the averaged weights after the last step, safetensors.

    ``history``: one dict of metrics a chapter.
    """

    weights: bytes = field(repr=False)
    history: list[dict[str, float]]


def fit(
    job: Job, run_dir: Path, *, progress: TaskProgress = no_progress, ranks: Ranks = ALONE
) -> TrainedStudent:
    """Train as the job says.

    Writes checkpoints and TensorBoard events under ``run_dir``, by the first of the ``ranks``
    alone. ``progress`` hears the steps done.

    All ranks draw the same batches and distortions, take their rows of them, and end with the same
    weights.
    """
    config, history, name = job.config, History(), _checkpoint(job)
    checkpoints = ModelCheckpoint(
        run_dir / "checkpoints",
        filename=name,
        every_n_epochs=1,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    callbacks: list[Callback] = [history, checkpoints, Steps(progress)]
    student = student_module(job, ranks)
    if config.compile:
        student.network.compile()
    data = StudentData(config, job.pool, job.labels, job.test, job.seed, ranks, job.soft)
    with _quiet():
        trainer = pl.Trainer(
            accelerator=config.accelerator,
            devices=config.devices,
            precision=config.precision,
            max_steps=config.steps,
            # Steps alone end it: a resumed training ends its first chapter twice, which counts as
            # an epoch
            max_epochs=-1,
            reload_dataloaders_every_n_epochs=1,
            num_sanity_val_steps=0,
            logger=TensorBoardLogger(run_dir, name="", version=""),
            callbacks=callbacks,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=STEPS_A_CHAPTER,
            **(_together() if config.apart else {}),
        )
        last = run_dir / "checkpoints" / f"{name}.ckpt"
        trainer.fit(student, data, ckpt_path=str(last) if last.exists() else None)
    return TrainedStudent(to_safetensors(student.average.cpu()), history.rows)


def _checkpoint(job: Job) -> str:
    """Name of the job's checkpoint.

    Probabilities are part of it: a training never continues one that learned others.
    """
    if job.soft is None:
        return "last"
    return f"last-{hashlib.sha256(np.ascontiguousarray(job.soft).tobytes()).hexdigest()[:16]}"


def _together() -> dict[str, Any]:
    """The trainer's arguments as one of several processes that are already running.

    A network may have parameters that an objective does not reach. Buffers are alike without being
    sent: statistics are shared. The data is cut by ourselves, so that a step's batches add up to
    the one of a single process.
    """
    strategy = DDPStrategy(
        cluster_environment=LightningEnvironment(),
        find_unused_parameters=True,
        broadcast_buffers=False,
    )
    return {"strategy": strategy, "use_distributed_sampler": False}


def student_module(job: Job, ranks: Ranks) -> StudentModule:
    """The module that the job trains, with its first weights."""
    config, pool = job.config, job.pool
    network = _network(config, pool, job.seed, job.initial if config.warm_start else None)
    kind = STUDENT_MODULES[pool.labels.loss]
    return kind(config, network, pool.labels, pool.mean, pool.std, job.seed, ranks)


class History(Callback):
    """Keeps each chapter's logged metrics.

    They are part of the checkpoint, so a resumed training has the complete curve.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        step = trainer.global_step
        if (self.rows and self.rows[-1]["step"] >= step) or (
            step % STEPS_A_CHAPTER and step < trainer.max_steps
        ):
            return  # a resumed training ends its first chapter again, at once or after a step
        row = {name: round(float(value), 6) for name, value in trainer.callback_metrics.items()}
        self.rows.append({"step": float(step), **row})

    def state_dict(self) -> dict[str, object]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self.rows = list(state_dict["rows"])  # type: ignore[call-overload]


class Steps(Callback):
    """Reports each optimiser step."""

    def __init__(self, progress: TaskProgress) -> None:
        self._progress = progress

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._progress(trainer.global_step, trainer.max_steps)


def _network(config: StudentConfig, pool: Pool, seed: int, initial: bytes | None) -> Backbone:
    if initial is not None:
        return load(pool.spec(config.backbone, initial)).requires_grad_(True).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(
            config.backbone, input_shape=pool.inputs.shape[1:], num_classes=pool.labels.outputs
        )


class _quiet(warnings.catch_warnings):
    """Hides Lightning's remarks, such as on loaders without workers, while a training runs."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        for name in (
            "pytorch_lightning",
            "lightning.pytorch",
            "pytorch_lightning.utilities.rank_zero",
        ):
            logging.getLogger(name).setLevel(logging.ERROR)
