"""Train a student on released labels; interrupted, it continues from its last checkpoint to the
same weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..wall.errors import InvalidInput, shape_text
from ..wall.labels.base import LabelSpace
from ..wall.messages import ExtractorSpec
from ..wall.networks.architectures import build
from ..wall.preprocessing import unit_scale
from ..wall.progress import TaskProgress, no_progress
from . import model
from .config import StudentConfig
from .data import Pool
from .devices import require_devices
from .fit import STUDENT_MODULES, TrainedStudent, fit
from .job import Job
from .launch import train_apart
from .norms import require_shareable

SUM_TOLERANCE = 1e-3  # of a row's probabilities
MAX_FEATURES = 4000  # wider dot products would not be exact on the private side


def train(
    config: StudentConfig,
    pool: Pool,
    labels: np.ndarray,
    *,
    run_dir: Path,
    seed: int,
    test_x: np.ndarray | None = None,
    test_y: np.ndarray | None = None,
    progress: TaskProgress = no_progress,
    initial: bytes | None = None,
    soft: np.ndarray | None = None,
) -> TrainedStudent:
    """Train on ``labels`` (int64 [n], or [n, c] for attributes, -1 where none was released) and all
    rows of ``pool``.

    ``test_x``, ``test_y``: for reported metrics alone. ``initial``: weights to begin with, used
    when config.warm_start. ``progress`` hears the steps done. ``soft``: released probabilities of
    classes, float32 [n, c], rows of NaN where there are none; with config.soft they are learned in
    the place of these rows' labels.

    With several devices (config.apart) it runs in processes of its own, which get these arguments
    and nothing else; each step has the rows, distortions and losses of the one process, split
    evenly, so that weights differ by rounding alone. Writes checkpoints and TensorBoard events
    under ``run_dir``. Raises InvalidInput where this machine can not do it, or for other ``soft``.
    """
    require_devices(config)
    soft = soft if config.soft else None
    check_soft(soft, pool)
    test = (test_x, test_y) if test_x is not None and test_y is not None and len(test_x) else None
    job = Job(config, pool, labels, seed, test, initial, soft)
    return (
        TrainedStudent(*train_apart(job, run_dir, progress))
        if config.apart
        else fit(job, run_dir, progress=progress)
    )


def check_soft(soft: np.ndarray | None, pool: Pool) -> None:
    """Raises InvalidInput unless each row is NaN, or probabilities of the classes."""
    if soft is None:
        return
    if not STUDENT_MODULES[pool.labels.loss].takes_class_prior:
        raise InvalidInput("soft", "None where rows have attributes or a value", shape_text(soft))
    shape = (len(pool.inputs), pool.labels.outputs)
    if soft.dtype != np.float32 or soft.shape != shape:
        raise InvalidInput("soft", f"float32 {list(shape)}", f"{soft.dtype} {list(soft.shape)}")
    right = (soft >= 0).all(axis=1) & (np.abs(soft.sum(axis=1) - 1) < SUM_TOLERANCE)
    others = int((~right & ~np.isnan(soft).all(axis=1)).sum())
    if others:
        rule = "rows of NaN, or of probabilities that add up to 1"
        raise InvalidInput("soft", rule, f"{others} other rows")


def check(
    config: StudentConfig,
    input_shape: tuple[int, ...],
    labels: LabelSpace,
) -> None:
    """Raises InvalidInput where the configured network does not take such inputs, its features are
    too wide to search, or several processes could not train it as one would.
    """
    if config.class_prior != "none" and not STUDENT_MODULES[labels.loss].takes_class_prior:
        raise InvalidInput(
            "student.class_prior", "none where rows have attributes or a value", config.class_prior
        )
    with torch.random.fork_rng(devices=[]):
        network = build(config.backbone, input_shape=input_shape, num_classes=labels.outputs).eval()
        blank = np.zeros((1, *input_shape), dtype=np.uint8 if len(input_shape) == 3 else np.float32)
        try:
            with torch.inference_mode():
                width = network.features(unit_scale(blank)).shape[1]
        except RuntimeError as error:
            raise InvalidInput(
                "student.backbone", f"a network for inputs of shape {input_shape}", config.backbone
            ) from error
    if config.apart:
        require_shareable(network, unit_scale(blank))
    if width > MAX_FEATURES:
        raise InvalidInput(
            "student.backbone", f"a network with at most {MAX_FEATURES} penultimate features", width
        )


def predict(spec: ExtractorSpec, inputs: np.ndarray, labels: LabelSpace) -> np.ndarray:
    """What an exported student says of raw inputs (uint8 [n, h, w, c] or float32 [n, d]), in the
    form of ``labels``' truth.
    """
    return labels.predict(outputs(spec, inputs))


def outputs(spec: ExtractorSpec, inputs: np.ndarray) -> np.ndarray:
    """An exported student's outputs for raw inputs: float32 [n, c], logits or a value in -1..1."""
    return model.outputs(model.preprocessed(spec), inputs, spec.num_classes)
