"""Train a student on released labels; interrupted, it continues from its last checkpoint to the
same weights.
"""

import hashlib
import io
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import safetensors.torch
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import Callback, LambdaCallback, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger, Logger, MLFlowLogger, WandbLogger
from torch.multiprocessing.spawn import ProcessException

from ..wall.errors import InvalidInput, LabelwallError, MissingData
from ..wall.files import write_file
from ..wall.labels import LabelSpace
from ..wall.matrices import MAX_DIMENSIONS
from ..wall.messages import ExtractorSpec, blank_inputs
from ..wall.networks import Backbone, build, one_thread, to_safetensors
from ..wall.preprocessing import Preprocessing, unit_scale
from ..wall.progress import TaskProgress, no_progress
from .batches import STEPS_A_CHAPTER, Lesson, Pool, StudentData
from .events import numbers, write_events
from .module import STUDENT_MODULES
from .round_files import EVENTS
from .several_devices import SpawnedDevices, hide_remarks, no_secrets, require_devices
from .student_config import StudentConfig
from .tuning import SMALL

CLIPPED = 1e-4  # share of public feature entries that may reach the clipping bound
# The linear student: one layer on feature vectors, or on a network's features of images, which are
# computed once. Training standardises them, and the layer takes that in afterwards.
LINEAR = "linear"
WEIGHT, BIAS = "head.weight", "head.bias"


def train(
    config: StudentConfig,
    lesson: Lesson,
    *,
    run_dir: Path,
    seed: int,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    progress: TaskProgress = no_progress,
    loggers: Sequence[Logger] = (),
    say: Callable[[str], None] = print,
    begin: tuple[Backbone, Mapping[str, int]] | None = None,
) -> bytes:
    """Train on a lesson: the averaged weights after the last step, as safetensors.

    With config.soft released probabilities are learned in the place of these rows' labels.
    ``test``: rows and their labels, for reported metrics alone. ``progress`` hears the steps done;
    of several devices, the first and the last. ``loggers``: hear the metrics, beside the one of
    ``config``. ``say``: hears of a checkpoint that does not load, without which the training starts
    again. ``begin``: a pretrained network in the place of a fresh one, and the depths of its
    layers.

    Several devices have a process each, which Lightning starts anew with these arguments and
    nothing of this process's memory. Writes checkpoints and TensorBoard's events under ``run_dir``.
    Raises InvalidInput where this machine can not do it, LabelwallError where a device's process
    ends.
    """
    require_devices(config)
    lesson, pool = lesson if config.soft else replace(lesson, chances=None), lesson.pool
    network, depths = begin or (_fresh(config, pool, seed), None)
    student = STUDENT_MODULES[pool.labels.kind](config, network, pool, seed, depths)
    last = run_dir / "checkpoints" / f"{_checkpoint(lesson.chances)}.ckpt"
    _forget_damaged(last, say)
    data = StudentData(lesson, config, seed, test if test and len(test[0]) else None)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as meeting:
        hide_remarks()
        heard = [*loggers, *loggers_of(config.logger, run_dir)]
        trainer = _trainer(config, last, progress, Path(meeting), heard)
        progress(0, config.steps)
        try:
            alone = no_secrets() if config.devices > 1 else nullcontext()
            with _interruptible(), alone, one_thread() if pool.inputs.ndim == 2 else nullcontext():
                trainer.fit(student, data, ckpt_path=str(last) if last.exists() else None)
        except ProcessException as error:
            raise LabelwallError(
                f"process {error.error_index} of the student's training ended. "
                "The same command continues from the last checkpoint."
            ) from error
    progress(config.steps, config.steps)
    return to_safetensors(student.average.cpu())


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, as elsewhere: Lightning exits, and ignores a second one."""
    heard = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ended:
        if not isinstance(ended.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, heard)
        raise KeyboardInterrupt from None


def _forget_damaged(checkpoint: Path, say: Callable[[str], None]) -> None:
    """Delete a checkpoint that does not load, as a disk that was full leaves it."""
    try:
        torch.load(checkpoint, map_location="cpu")
    except FileNotFoundError:
        return
    except Exception:  # zipfile, pickle and torch raise many types
        say(f"{checkpoint} is damaged, and deleted: the student's training starts again")
        checkpoint.unlink()


class WholeCheckpoints(TorchCheckpointIO):
    """Lightning's checkpoints, which are on the disk whole or not at all."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        content = io.BytesIO()
        torch.save(checkpoint, content)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_file(Path(path), content.getvalue())


def _trainer(
    config: StudentConfig, last: Path, progress: TaskProgress, meeting: Path, loggers: list[Logger]
) -> pl.Trainer:
    """A trainer whose checkpoint is ``last``; ``meeting``: as for ``SpawnedDevices``."""
    checkpoints = ModelCheckpoint(
        last.parent,
        filename=last.stem,
        every_n_epochs=1,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    callbacks: list[Callback] = [History(last.parent.with_name(EVENTS)), checkpoints]
    if config.devices == 1:

        def report(trainer: pl.Trainer, *_: object) -> None:
            progress(trainer.global_step, config.steps)

        callbacks.append(LambdaCallback(on_train_batch_end=report))
    return pl.Trainer(
        accelerator=config.accelerator,
        devices=config.devices,
        precision=config.precision,
        max_steps=config.steps,
        # Steps alone end it: a resumed training ends its first chapter twice, which counts as
        # an epoch
        max_epochs=-1,
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        logger=loggers,
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        strategy=SpawnedDevices(meeting) if config.devices > 1 else "auto",
        plugins=[WholeCheckpoints()],
        use_distributed_sampler=False,  # a step's rows are divided by ``Steps``
    )


def loggers_of(name: str, run_dir: Path) -> list[Logger]:
    """Lightning's logger of that name for a training in ``run_dir``; none for ``History``'s own."""
    if name == "csv":
        return [CSVLogger(run_dir, "csv", "")]
    if name == "mlflow":
        return [MLFlowLogger("labelwall", str(run_dir), save_dir=str(run_dir / "mlruns"))]
    if name == "wandb":  # the metrics alone: no console, whose lines name places, and no machine
        silent = {"console": "off", "disable_git": True, "disable_code": True}
        silent |= dict.fromkeys(("x_disable_meta", "x_disable_stats"), True)
        return [WandbLogger(str(run_dir), run_dir, project="labelwall", settings=silent)]
    return []


class History(Callback):
    """Keeps each chapter's logged metrics in the checkpoint, and writes them to ``path`` as
    TensorBoard's events.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        step = trainer.global_step
        if (self.rows and self.rows[-1]["step"] >= step) or (
            step % STEPS_A_CHAPTER and step < trainer.max_steps
        ):
            return  # a resumed training ends its first chapter again, at once or after a step
        row = {name: round(float(value), 6) for name, value in trainer.callback_metrics.items()}
        self.rows.append({"step": float(step), **row})
        if trainer.is_global_zero:
            write_events(self.path, ((row["step"], numbers(row)) for row in self.rows))

    def state_dict(self) -> dict[str, object]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = list(state_dict["rows"])


def _fresh(config: StudentConfig, pool: Pool, seed: int) -> Backbone:
    """The configured network with weights by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(
            config.backbone, input_shape=pool.inputs.shape[1:], num_classes=pool.labels.outputs
        )


def _checkpoint(soft: np.ndarray | None) -> str:
    """Name of a training's checkpoint: none continues one that learned other probabilities."""
    if soft is None:
        return "last"
    return f"last-{hashlib.sha256(np.ascontiguousarray(soft).tobytes()).hexdigest()[:16]}"


def check(config: StudentConfig, input_shape: tuple[int, ...], labels: LabelSpace) -> None:
    """Raises InvalidInput where the configured network does not take such inputs, or its features
    are too wide to search; MissingData without the logger's package.
    """
    if config.logger in ("mlflow", "wandb") and find_spec(config.logger) is None:
        text = f"`student.logger` needs another package: pip install {config.logger}."
        raise MissingData(text)
    if config.class_prior != "none" and labels.kind != "class":
        rule = "none where rows have attributes or a value"
        raise InvalidInput("student.class_prior", rule, config.class_prior)
    with torch.random.fork_rng(devices=[]):
        network = build(config.backbone, input_shape=input_shape, num_classes=labels.outputs).eval()
        try:
            with torch.inference_mode():
                width = network.features(unit_scale(blank_inputs(input_shape, 1))).shape[1]
        except RuntimeError as error:
            rule = f"a network for inputs of shape {input_shape}"
            raise InvalidInput("student.backbone", rule, config.backbone) from error
    if width > MAX_DIMENSIONS:  # products of wider ones would not be exact on the private side
        rule = f"a network with at most {MAX_DIMENSIONS} penultimate features"
        raise InvalidInput("student.backbone", rule, width)


def export(spec: ExtractorSpec, features: np.ndarray) -> ExtractorSpec:
    """A trained student's penultimate features as the extractor that goes back across the wall.

    They are centred by the mean of ``features``, those of PUBLIC rows, float32 [n, d], and
    L2-normalised; the scale puts all but CLIPPED of the public entries inside -63..63.
    """
    center = features.mean(axis=0, dtype=np.float64)
    centred = features - center
    normed = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    scale = 63.0 / max(float(np.quantile(np.abs(normed), 1 - CLIPPED)), 1e-6)
    return replace(spec, center=tuple(center.tolist()), scale=scale)


def standardising(backbone: str, inputs: np.ndarray, scaled: bool) -> Preprocessing:
    """What standardises rows like PUBLIC ones for a student: images, columns in units of their own,
    and all features of a linear one. Vectors of small numbers stay, as networks make them.

    ``scaled``: whether columns are already, as a table's. Very wide vectors stay, too: their means
    would not cross the wall.
    """
    stay = scaled or (inputs.ndim == 2 and inputs.shape[1] > MAX_DIMENSIONS)
    small = inputs.ndim == 2 and np.abs(inputs).max(initial=0) <= SMALL
    if (stay or small) and backbone != LINEAR:
        return Preprocessing()
    return Preprocessing.of_public(inputs)


def on_plain(weights: bytes, pool: Pool) -> bytes:
    """A layer's ``weights`` (safetensors), trained on the ``pool``, as those of the same layer on
    plain features.

    w (x - m) / s + b = (w / s) x + b - (w / s) m.
    """
    layer = {name: t.double() for name, t in safetensors.torch.load(weights).items()}
    scaled = layer[WEIGHT] / torch.tensor(pool.std, dtype=torch.float64)
    bias = layer[BIAS] - scaled @ torch.tensor(pool.mean, dtype=torch.float64)
    return safetensors.torch.save({WEIGHT: scaled.float().contiguous(), BIAS: bias.float()})


def with_head(network: ExtractorSpec, layer: bytes) -> ExtractorSpec:
    """The fixed network's spec with a trained last layer: the student of images."""
    tensors = safetensors.torch.load(network.weights) | safetensors.torch.load(layer)
    return replace(network, weights=safetensors.torch.save(tensors), axes=b"")
