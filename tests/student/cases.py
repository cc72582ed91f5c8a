"""Rows of each kind of label, on which students train in a moment."""

from __future__ import annotations

import numpy as np

from labelwall.student.data import Pool
from labelwall.wall.labels.attributes import AttributeLabels
from labelwall.wall.labels.classes import ClassLabels
from labelwall.wall.labels.values import ValueLabels

CLASSES = 3
SCALE = ValueLabels(-6.0, 6.0)
RNG = np.random.default_rng(0)
TRUTH = RNG.integers(0, CLASSES, 120)
VECTORS = (RNG.normal(size=(120, 8)) + 2 * np.eye(CLASSES, 8)[TRUTH]).astype(np.float32)
LABELS = np.where(np.arange(120) < 60, TRUTH, -1)
BITS = RNG.integers(-1, 2, (120, 4))
VALUES = SCALE.steps(VECTORS[:, 0].astype(np.float64))
POOLS = {
    "classes": (Pool(VECTORS, ClassLabels.of(CLASSES)), LABELS),
    "attributes": (Pool(VECTORS, AttributeLabels.of(4)), BITS),
    "values": (Pool(VECTORS, SCALE), VALUES),
}
