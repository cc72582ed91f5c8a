"""Train a student on released labels; interrupted, it continues from its last checkpoint to the
same weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from labelwall.student import model
from labelwall.student.config import StudentConfig
from labelwall.student.data import Pool, unit_scale
from labelwall.student.devices import require_devices
from labelwall.student.fit import TRAINEES, TrainedStudent, fit
from labelwall.student.job import Job
from labelwall.student.launch import train_apart
from labelwall.student.norms import require_shareable
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.base import LabelSpace
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks.architectures import build
from labelwall.wall.progress import TaskProgress, unheard

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
    progress: TaskProgress = unheard,
    initial: bytes | None = None,
) -> TrainedStudent:
    """Train on ``labels`` (int64 [n], or [n, c] for attributes, -1 where none was released) and all
    rows of ``pool``.

    ``test_x``, ``test_y``: for reported metrics alone. ``initial``: weights to begin with, used
    when config.warm_start. ``progress`` hears the steps done. With several devices (config.apart)
    it runs in processes of its own, which get these arguments and nothing else; each step has the
    rows, distortions and losses of the one process, split evenly, so that weights differ by
    rounding alone. Writes checkpoints and TensorBoard events under ``run_dir``. Raises
    InvalidInput where this machine can not do it.
    """
    require_devices(config)
    test = (test_x, test_y) if test_x is not None and test_y is not None and len(test_x) else None
    job = Job(config, pool, labels, seed, test, initial)
    return (
        TrainedStudent(*train_apart(job, run_dir, progress))
        if config.apart
        else fit(job, run_dir, progress=progress)
    )


def check(
    config: StudentConfig,
    input_shape: tuple[int, ...],
    labels: LabelSpace,
) -> None:
    """Raises InvalidInput where the configured network does not take such inputs, its features are
    too wide to search, or several processes could not train it as one would.
    """
    if config.class_prior != "none" and not TRAINEES[labels.loss].takes_class_prior:
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
