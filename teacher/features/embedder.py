"""Raw inputs -> integers in -63..63, one record at a time in effect: what a row becomes depends on nothing but the row."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from labelwall.teacher.features.hog import hog_features, hog_scale
from labelwall.teacher.search.int8_matmul import LARGEST, MAX_DIMENSIONS
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec

Progress = Callable[[int, int], None]
RAW_UNIT = 16.0  # raw vectors: root mean square 16 after quantisation, so that entries clip at about four times that
FINE = 2.0**20  # a unit vector's entries become integers of 20 bits before they meet the axes
MOST_TURNED = (
    1 << 17
)  # dimensions before the axes: 2^17 products of 20 and 15 bits add up to less than 2^53
ROWS_AT_ONCE = 4096  # rows quantised together: bounds memory, changes no number
_VECTORS = ("raw", "box")


class Embedder:
    """Features of an extractor, quantised: round(scale * x / |x|) clipped to -63..63; x are the centred features, along
    ``spec.axes`` where there are any.

    ``spec``: "hog" (scikit-image), "raw" (float32 vectors as they are), "box" (float32 vectors, not normalised: each side of the
    declared domain becomes -63..63, what lies outside is moved to its edge) or a network of wall.backbones. ``spec.scale``
    multiplies the fixed scale of teacher.hog for "hog" and max(63, 16 sqrt(d)) for "raw"; for a network it is the whole factor.
    ``probe``: PUBLIC inputs on which a network is tested for slot independence when it is loaded; where a bit of a row's
    output depends on its company, or nothing is given to test with, the network runs one row at a time. ``batch_size``:
    rows of the one padded shape a network sees. ``workers``: processes for HOG. ``device``: type of the one that computes
    networks, and on which they are tested; all else is computed by the processor.

    Raises InvalidInput for inputs or a spec of another shape, and for a device that is not there.
    """

    def __init__(
        self,
        spec: ExtractorSpec,
        *,
        probe: np.ndarray | None,
        batch_size: int = 256,
        workers: int = 1,
        device: str = "cpu",
    ) -> None:
        self.spec, self.probe, self.batch_size, self._workers = spec, probe, batch_size, workers
        self._network, self.device = None, "cpu"  # that computes this extractor
        if spec.backbone == "box" and not len(spec.mean) == len(spec.std) == spec.input_shape[-1]:
            raise InvalidInput(
                "extractor.mean, std",
                f"{spec.input_shape[-1]} numbers, one a dimension",
                len(spec.mean),
            )
        if spec.backbone == "box" and spec.axes:
            raise InvalidInput(
                "extractor.axes", "none for a box, whose sides have their own scale", "some"
            )
        if spec.backbone in (*_VECTORS, "hog"):
            return
        from labelwall.teacher.features.network import FixedShapeNetwork  # torch

        self._network, self.device = FixedShapeNetwork(spec, batch_size, device), device
        if (
            probe is None
            or len(probe) == 0
            or not self._network.slot_independent(self._checked(probe))
        ):
            self.batch_size, self._network = 1, self._network.one_at_a_time()

    def embed(
        self, inputs: np.ndarray, progress: Progress | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(int8 [n, d], bool [n]): features, and whether they are finite. Rows that are not, are zeros; drop them.

        ``inputs``: uint8 [n, height, width, channels] or float32 [n, dimensions], as the spec says.
        ``progress(done, total)`` is called as rows are finished.
        """
        if self.spec.backbone == "box":
            return quantise_box(self._checked(inputs), self.spec.mean, self.spec.std)
        features, axes = self.features(inputs, progress), self.spec.projection()
        length = self.length(features.shape[1] if axes is None else axes.shape[1])
        return quantise(features, self.spec.center, length, axes)

    def features(self, inputs: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """float [n, d]: what is centred, turned and rounded by ``embed``. Not for "box"."""
        self._checked(inputs)
        if self._network is not None:
            return self._network.features(inputs, progress)
        return (
            inputs if self.spec.backbone == "raw" else hog_features(inputs, self._workers, progress)
        )

    def length(self, dimensions: int) -> float:
        """Of a unit vector after quantisation, were no entry clipped: the factor that features are multiplied by. Public."""
        if self.spec.backbone == "box":
            return float(LARGEST)
        if self.spec.backbone == "raw":
            return (
                max(LARGEST, RAW_UNIT * math.sqrt(dimensions)) * self.spec.scale
            )  # no entry of a unit vector clips below 63
        return (
            self.spec.scale
            if self._network is not None
            else hog_scale(dimensions) * self.spec.scale
        )

    def _checked(self, inputs: np.ndarray) -> np.ndarray:
        image = len(self.spec.input_shape) == 3
        dtype = np.uint8 if image else np.float32
        if (self.spec.backbone == "hog" and not image) or (
            self.spec.backbone in _VECTORS and len(self.spec.input_shape) != 1
        ):
            raise InvalidInput(
                "extractor.input_shape",
                "three sizes for hog, one for raw and box",
                self.spec.input_shape,
            )
        if inputs.dtype != dtype or inputs.shape[1:] != self.spec.input_shape:
            rule = f"{np.dtype(dtype)} rows of shape {list(self.spec.input_shape)}"
            raise InvalidInput("inputs", rule, f"{inputs.dtype} {list(inputs.shape[1:])}")
        return inputs


def quantise(
    features: np.ndarray, center: tuple[float, ...], scale: float, axes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], bool [n]) of float [n, d]: round(scale (x - center) / |x - center|), clipped; a zero vector stays zero.

    ``axes``: float64 [d, k], whole numbers of at most 15 bits: round(FINE (x - center) / |x - center|) @ axes takes the place of
    x - center, and the integers are [n, k].

    Only elementwise float64 operations, each of which IEEE 754 fixes, and a product of integers whose every partial sum is below
    2^53, hence exact in any order: no row's integers depend on another row, on the layout or on threads.
    """
    dimensions, most = features.shape[1], MAX_DIMENSIONS if axes is None else MOST_TURNED
    if not 0 < dimensions <= most:
        raise InvalidInput("features", f"of 1..{most} dimensions", dimensions)
    if axes is not None and not (len(axes) == dimensions and 0 < axes.shape[1] <= MAX_DIMENSIONS):
        raise InvalidInput(
            "extractor.axes", f"[{dimensions}, k] with k of 1..{MAX_DIMENSIONS}", list(axes.shape)
        )
    if center and len(center) != dimensions:
        raise InvalidInput("extractor.center", f"{dimensions} numbers", len(center))
    middle = np.asarray(center or 0.0, dtype=np.float64)
    columns = dimensions if axes is None else axes.shape[1]
    quantised, finite = (
        np.zeros((len(features), columns), dtype=np.int8),
        np.isfinite(features).all(axis=1),
    )
    for start in range(0, len(features), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        x = (
            np.where(finite[part, None], features[part], 0.0).astype(np.float64)
            - middle * finite[part, None]
        )
        unit = _unit(x) if axes is None else _unit(np.rint(_unit(x) * FINE) @ axes)
        quantised[part] = np.clip(np.rint(unit * scale), -LARGEST, LARGEST)
    return quantised, finite


def _unit(x: np.ndarray) -> np.ndarray:
    """Rows of length 1; a zero row stays zero."""
    length = np.sqrt(folded_sum(x * x))
    length[length == 0] = 1.0
    unit: np.ndarray = x / length
    return unit


def quantise_box(
    rows: np.ndarray, middle: tuple[float, ...], half: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
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
