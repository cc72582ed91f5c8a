"""Raw inputs -> integers in -63..63, one record at a time in effect: what a row becomes depends on nothing but the row."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from teacher.gemm import LARGEST, MAX_DIMENSIONS
from teacher.hog import hog_features, hog_scale
from wall.errors import InvalidInput
from wall.messages import ExtractorSpec

Progress = Callable[[int, int], None]
RAW_UNIT = 16.0  # raw vectors: root mean square 16 after quantisation, so that entries clip at about four times that
ROWS_AT_ONCE = 4096  # rows quantised together: bounds memory, changes no number
_VECTORS = ("raw", "box")


class Embedder:
    """Features of an extractor, quantised: round(scale * x / |x|) clipped to -63..63.

    ``spec``: "hog" (scikit-image), "raw" (float32 vectors as they are), "box" (float32 vectors, not normalised: each side of the
    declared domain becomes -63..63, what lies outside is moved to its edge) or a network of wall.backbones. ``spec.scale``
    multiplies the fixed scale of teacher.hog for "hog" and max(63, 16 sqrt(d)) for "raw"; for a network it is the whole factor.
    ``probe``: PUBLIC inputs on which a network is tested for slot independence when it is loaded; where a bit of a row's
    output depends on its company, or nothing is given to test with, the network runs one row at a time. ``batch_size``:
    rows of the one padded shape a network sees. ``workers``: processes for HOG.

    Raises InvalidInput for inputs or a spec of another shape.
    """

    def __init__(self, spec: ExtractorSpec, *, probe: np.ndarray | None, batch_size: int = 256, workers: int = 1) -> None:
        self.spec, self.batch_size, self._workers = spec, batch_size, workers
        self._network = None
        if spec.backbone == "box" and not len(spec.mean) == len(spec.std) == spec.input_shape[-1]:
            raise InvalidInput("extractor.mean, std", f"{spec.input_shape[-1]} numbers, one a dimension", len(spec.mean))
        if spec.backbone in (*_VECTORS, "hog"):
            return
        from teacher.network import FixedShapeNetwork  # torch

        self._network = FixedShapeNetwork(spec, batch_size)
        if probe is None or len(probe) == 0 or not self._network.slot_independent(self._checked(probe)):
            self.batch_size, self._network = 1, self._network.one_at_a_time()

    def embed(self, inputs: np.ndarray, progress: Progress | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(int8 [n, d], bool [n]): features, and whether they are finite. Rows that are not, are zeros; drop them.

        ``inputs``: uint8 [n, height, width, channels] or float32 [n, dimensions], as the spec says.
        ``progress(done, total)`` is called as rows are finished.
        """
        self._checked(inputs)
        if self.spec.backbone == "box":
            return quantise_box(inputs, self.spec.mean, self.spec.std)
        if self.spec.backbone == "raw":
            features: np.ndarray = inputs
        elif self._network is not None:
            features = self._network.features(inputs, progress)
        else:
            features = hog_features(inputs, self._workers, progress)
        return quantise(features, self.spec.center, self.length(features.shape[1]))

    def length(self, dimensions: int) -> float:
        """Of a unit vector after quantisation, were no entry clipped: the factor that features are multiplied by. Public."""
        if self.spec.backbone == "box":
            return float(LARGEST)
        if self.spec.backbone == "raw":
            return max(LARGEST, RAW_UNIT * math.sqrt(dimensions)) * self.spec.scale  # no entry of a unit vector clips below 63
        return self.spec.scale if self._network is not None else hog_scale(dimensions) * self.spec.scale

    def _checked(self, inputs: np.ndarray) -> np.ndarray:
        image = len(self.spec.input_shape) == 3
        dtype = np.uint8 if image else np.float32
        if (self.spec.backbone == "hog" and not image) or (self.spec.backbone in _VECTORS and len(self.spec.input_shape) != 1):
            raise InvalidInput("extractor.input_shape", "three sizes for hog, one for raw and box", self.spec.input_shape)
        if inputs.dtype != dtype or inputs.shape[1:] != self.spec.input_shape:
            rule = f"{np.dtype(dtype)} rows of shape {list(self.spec.input_shape)}"
            raise InvalidInput("inputs", rule, f"{inputs.dtype} {list(inputs.shape[1:])}")
        return inputs


def quantise(features: np.ndarray, center: tuple[float, ...], scale: float) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], bool [n]) of float [n, d]: round(scale (x - center) / |x - center|), clipped; a zero vector stays zero.

    Only elementwise float64 operations: IEEE 754 fixes each of them, so no row's integers depend on another row, on the
    layout or on threads.
    """
    dimensions = features.shape[1]
    if not 0 < dimensions <= MAX_DIMENSIONS:
        raise InvalidInput("features", f"of 1..{MAX_DIMENSIONS} dimensions", dimensions)
    if center and len(center) != dimensions:
        raise InvalidInput("extractor.center", f"{dimensions} numbers", len(center))
    middle = np.asarray(center or 0.0, dtype=np.float64)
    quantised, finite = np.zeros(features.shape, dtype=np.int8), np.isfinite(features).all(axis=1)
    for start in range(0, len(features), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        x = np.where(finite[part, None], features[part], 0.0).astype(np.float64) - middle * finite[part, None]
        length = np.sqrt(folded_sum(x * x))
        length[length == 0] = 1.0
        quantised[part] = np.clip(np.rint(x / length * scale), -LARGEST, LARGEST)
    return quantised, finite


def quantise_box(rows: np.ndarray, middle: tuple[float, ...], half: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], bool [n]) of float32 [n, d]: round(63 (x - middle) / half), clipped, entry by entry; as ``quantise``."""
    finite = np.isfinite(rows).all(axis=1)
    x = np.where(finite[:, None], rows, 0.0).astype(np.float64)
    scaled = np.rint((x - np.asarray(middle)) / np.asarray(half) * LARGEST)
    return np.where(finite[:, None], np.clip(scaled, -LARGEST, LARGEST), 0).astype(np.int8), finite


def folded_sum(x: np.ndarray) -> np.ndarray:
    """Sums of rows, float64 [n, 1], by adding the second half to the first until one column is left."""
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        folded = x[:, :half].copy()
        folded[:, : x.shape[1] - half] += x[:, half:]
        x = folded
    return x
