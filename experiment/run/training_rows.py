"""What a student is trained on, its outputs and its export: a network on the rows, or one layer on
their features.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...student.config import StudentConfig
from ...student.data import Pool
from ...student.linear import LINEAR, LinearRows, with_head
from ...student.train import check, export, outputs
from ...teacher.features.embedder import Embedder, integers
from ...wall.datasets.sources import PublicData, Task
from ...wall.errors import InvalidInput
from ...wall.messages import ExtractorSpec
from ...wall.preprocessing import Preprocessing
from ..config.groups import FirstFeatures
from .extractors import first_extractor
from .public_features import PublicFeatures


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """``pool``, ``test_inputs``: what the student sees of public and test rows."""

    pool: Pool
    test_inputs: np.ndarray = field(repr=False)
    backbone: str

    def embed(self, extractor: ExtractorSpec, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``Embedder.embed`` of rows like the pool's, which are vectors."""
        return Embedder(extractor, probe=rows[:1]).embed(rows)

    def outputs(self, student: ExtractorSpec) -> np.ndarray:
        """An exported student's outputs for the test rows: float32 [n, c]."""
        return outputs(student, self.test_inputs)

    def export(self, weights: bytes) -> ExtractorSpec:
        """The trained student as it goes back to the teacher."""
        return export(self.pool, self.backbone, weights)


@dataclass(frozen=True, eq=False)
class LinearTrainingRows(TrainingRows):
    """``rows``: the features; ``network``: what makes them of images, None for vectors."""

    rows: LinearRows
    vectors: Pool
    network: ExtractorSpec | None

    def embed(self, extractor: ExtractorSpec, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of standardised features."""
        plain = self.rows.unscaled(rows)
        return (
            super().embed(extractor, plain) if self.network is None else integers(extractor, plain)
        )

    def outputs(self, student: ExtractorSpec) -> np.ndarray:
        """By its last layer, from stored features."""
        return self.rows.outputs(student.weights)

    def export(self, weights: bytes) -> ExtractorSpec:
        """On plain rows."""
        layer = self.rows.plain(weights)
        if self.network is not None:
            return with_head(self.network, layer)
        return export(self.vectors, self.backbone, layer)


def training_rows_of(
    backbone: str, first: FirstFeatures, task: Task, public: PublicData, features: PublicFeatures
) -> TrainingRows:
    """What trains the student's ``backbone``."""
    labels, inputs = task.labels, public.inputs
    statistics = Preprocessing.of_public(inputs)
    pool = Pool(inputs, labels, statistics.mean, statistics.std)
    if backbone != LINEAR:
        return TrainingRows(pool, public.test_inputs, backbone)
    network = first_extractor(first, task) if inputs.ndim == 4 else None
    plain, test = inputs, public.test_inputs
    if network is not None:
        plain, test = features.plain(network), features.plain(network, "test")
    rows = LinearRows.of(plain, test, labels)
    return LinearTrainingRows(rows.pool, rows.test, backbone, rows, pool, network)


def check_student(student: StudentConfig, features: ExtractorSpec, task: Task) -> None:
    """Raises InvalidInput where the student can not be trained on such inputs.

    ``features``: of the first round.
    """
    shape = task.input_shape
    if student.backbone == LINEAR and len(shape) == 3:
        if not features.weights:
            rule = "another one, or features: efficientnet_lite0_stages or timm/NAME, for images"
            raise InvalidInput("student.backbone", rule, LINEAR)
        shape = (1,)
    check(student, shape, task.labels)
