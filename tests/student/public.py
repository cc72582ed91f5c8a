"""Public rows of classes, without a run."""

import numpy as np
import safetensors.numpy

from labelwall.student.asking.features import PublicFeatures
from labelwall.student.asking.public_rows import PublicRows
from labelwall.student.public_settings import PublicSide
from labelwall.wall.datasets.data_config import DataConfig, PublicData, Task
from labelwall.wall.label_kinds import ClassLabels
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.progress import no_progress

NAMES = ("cat", "dog", "owl")


def public_rows(
    inputs: np.ndarray, labels: np.ndarray | None, data: DataConfig | None = None
) -> PublicRows:
    """Rows float32 [n, d] with true labels, without a test split."""
    settings = PublicSide(data=data or DataConfig(source="arrays", path="none.npz"))
    space = ClassLabels(NAMES)
    return PublicRows(
        settings=settings,
        task=Task(space, inputs.shape[1:]),
        data=PublicData.untested(space, inputs, labels),
        first=ExtractorSpec("raw", inputs.shape[1:], len(NAMES)),
        features=PublicFeatures(settings, {"public": inputs, "test": inputs[:0]}, no_progress),
    )


def linear_model(weights: np.ndarray) -> ExtractorSpec:
    """Logits (inputs) weights^T of weights [c, d]."""
    head = {"head.weight": weights.astype(np.float32), "head.bias": np.zeros(len(weights), "f4")}
    return ExtractorSpec("linear", weights.shape[1:], len(weights), safetensors.numpy.save(head))
