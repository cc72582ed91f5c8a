"""Train a student on released labels; interrupted, it continues from its last checkpoint to the same weights."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback, ModelCheckpoint, RichProgressBar
from pytorch_lightning.loggers import TensorBoardLogger

from student.config import StudentConfig
from student.data import STEPS_A_CHAPTER, Pool, StudentData, unit_scale
from student.module import Student, Trainee
from student.regression import Regressor
from wall.backbones import Backbone, build, load, preprocess, to_safetensors
from wall.errors import InvalidInput
from wall.messages import ExtractorSpec
from wall.values import STEPS, Scale

LABEL_BATCH = 500
MAX_FEATURES = 4000  # wider dot products would not be exact on the private side


@dataclass(frozen=True)
class TrainedStudent:
    """``weights``: the averaged weights after the last step, safetensors. ``history``: one dict of metrics a chapter."""

    weights: bytes = field(repr=False)
    history: list[dict[str, float]]


def train(
    config: StudentConfig,
    pool: Pool,
    labels: np.ndarray,
    *,
    run_dir: Path,
    seed: int,
    test_x: np.ndarray | None = None,
    test_y: np.ndarray | None = None,
    progress: bool = False,
    initial: bytes | None = None,
) -> TrainedStudent:
    """Train on ``labels`` (int64 [n] or, of attributes, [n, c], -1 where none was released) and all rows of ``pool``.

    Values are labels in steps (wall/values.py). ``test_x``, ``test_y``: for reported metrics alone. ``initial``: weights to begin
    with, used when config.warm_start.
    Writes checkpoints and TensorBoard events under ``run_dir``.
    """
    network = _network(config, pool, seed, initial if config.warm_start else None)
    student: Trainee
    if pool.scale is not None:
        student = Regressor(config, network, pool.scale, pool.mean, pool.std, seed)
        labels = labels[:, np.newaxis]  # a column: there are no classes that take turns
    else:
        student = Student(config, network, pool.num_classes, pool.mean, pool.std, seed, pool.attributes)
    test = (test_x, test_y) if test_x is not None and test_y is not None and len(test_x) else None
    data = StudentData(config, pool.inputs, labels, test, seed)
    history = History()
    checkpoints = ModelCheckpoint(
        run_dir / "checkpoints", filename="last", every_n_epochs=1, save_on_train_epoch_end=True, enable_version_counter=False
    )
    callbacks: list[Callback] = [history, checkpoints]
    with _quiet():
        trainer = pl.Trainer(
            accelerator=config.accelerator,
            devices=config.devices,
            precision=config.precision,  # type: ignore[arg-type]
            max_steps=config.steps,
            max_epochs=-1,  # steps alone end it: a resumed training ends its first chapter twice, which counts as an epoch
            reload_dataloaders_every_n_epochs=1,
            num_sanity_val_steps=0,
            logger=TensorBoardLogger(run_dir, name="", version=""),
            callbacks=[*callbacks, RichProgressBar()] if progress else callbacks,
            enable_progress_bar=progress,
            enable_model_summary=False,
            log_every_n_steps=STEPS_A_CHAPTER,
        )
        last = run_dir / "checkpoints" / "last.ckpt"
        trainer.fit(student, data, ckpt_path=str(last) if last.exists() else None)
    return TrainedStudent(to_safetensors(student.average.cpu()), history.rows)


def check(
    config: StudentConfig, input_shape: tuple[int, ...], num_classes: int, attributes: bool = False, values: bool = False
) -> None:
    """Raises InvalidInput where the configured network does not take such inputs, or its features are too wide to search.

    ``attributes``, ``values``: rows have those instead of a class.
    """
    if (attributes or values) and config.class_prior != "none":
        raise InvalidInput("student.class_prior", "none where rows have attributes or a value", config.class_prior)
    with torch.random.fork_rng(devices=[]):
        network = build(config.backbone, input_shape=input_shape, num_classes=num_classes).eval()
        blank = np.zeros((1, *input_shape), dtype=np.uint8 if len(input_shape) == 3 else np.float32)
        try:
            with torch.inference_mode():
                width = network.features(unit_scale(blank)).shape[1]
        except RuntimeError as error:
            raise InvalidInput("student.backbone", f"a network for inputs of shape {input_shape}", config.backbone) from error
    if width > MAX_FEATURES:
        raise InvalidInput("student.backbone", f"a network with at most {MAX_FEATURES} penultimate features", width)


def predict(spec: ExtractorSpec, inputs: np.ndarray, attributes: bool = False) -> np.ndarray:
    """Classes that an exported student gives to raw inputs (uint8 [n, h, w, c] or float32 [n, d]): int64 [n].

    Where it was trained on ``attributes``, which of them are present: int64 [n, c] of 0 and 1.
    """
    logits = outputs(spec, inputs)
    return (logits > 0).astype(np.int64) if attributes else logits.argmax(axis=1)


def predict_values(spec: ExtractorSpec, inputs: np.ndarray, scale: Scale) -> np.ndarray:
    """Values that an exported student of such gives to raw inputs, within the bounds: float64 [n]."""
    return scale.values((np.clip(outputs(spec, inputs)[:, 0].astype(np.float64), -1, 1) + 1) / 2 * STEPS)


def outputs(spec: ExtractorSpec, inputs: np.ndarray) -> np.ndarray:
    """An exported student's outputs for raw inputs, logits or a value from -1 to 1: float32 [n, c]."""
    network = load(spec)
    with torch.inference_mode():
        starts = range(0, len(inputs), LABEL_BATCH)
        parts = [network(preprocess(inputs[start : start + LABEL_BATCH], spec.mean, spec.std)) for start in starts]
    return torch.cat(parts).numpy() if parts else np.zeros((0, spec.num_classes), dtype=np.float32)


class History(Callback):
    """Keeps each chapter's logged metrics; part of the checkpoint, so a resumed training has the whole curve."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        step = trainer.global_step
        if (self.rows and self.rows[-1]["step"] >= step) or (step % STEPS_A_CHAPTER and step < trainer.max_steps):
            return  # a resumed training ends its first chapter again, at once or after a step
        row = {name: round(float(value), 6) for name, value in trainer.callback_metrics.items()}
        self.rows.append({"step": float(step), **row})

    def state_dict(self) -> dict[str, object]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self.rows = list(state_dict["rows"])  # type: ignore[call-overload]


def _network(config: StudentConfig, pool: Pool, seed: int, initial: bytes | None) -> Backbone:
    if initial is not None:
        return load(pool.spec(config.backbone, initial)).requires_grad_(True).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config.backbone, input_shape=pool.inputs.shape[1:], num_classes=pool.num_classes)


class _quiet(warnings.catch_warnings):
    """Lightning's remarks on loaders without workers and the like are not the user's business while a training runs."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.simplefilter("ignore")
        for name in ("pytorch_lightning", "lightning.pytorch", "pytorch_lightning.utilities.rank_zero"):
            logging.getLogger(name).setLevel(logging.ERROR)
