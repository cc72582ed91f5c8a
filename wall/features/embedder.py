"""Raw inputs to integer features in -63..63. A row's features depend on that row alone."""

import math
from collections.abc import Callable

import numpy as np

from ..errors import InvalidInput, shape_text
from ..hog import HOG_UNIT, hog_features
from ..matrices import MAX_DIMENSIONS, MAX_ENTRY
from ..messages import ExtractorSpec, blank_inputs
from ..progress import TaskProgress, no_progress

# Root mean square of quantised raw vectors: entries clip at about four times that.
RAW_UNIT = 16.0
FINE = 2.0**20  # a unit vector's entries become integers of 20 bits before the projection
# Dimensions before the projection: 2^17 products of 20 and 15 bits add up to less than 2^53.
MAX_PROJECTED = 1 << 17
QUANTISED_ROWS = 4096  # rows quantised together: bounds memory, changes no number
CHUNK = 64  # rows that a thread computes between two reports
VECTORS = ("raw", "box")


class Embedder:
    """An extractor's quantised features: round(scale * x / |x|), clipped to -63..63.

    x are the centred features, projected on ``spec.axes`` if there are any: histograms of oriented
    gradients ("hog"), float32 vectors as they are ("raw"), or what a network of wall.networks
    computes. A "box" is not normalised: each side of the declared domain becomes -63..63, and
    points outside move to its edge. ``spec.scale`` multiplies ``unit_length``'s fixed factor.

    ``workers``: threads. ``device``: type of the device that computes networks.

    Raises InvalidInput for inputs or a spec of another shape, and for an absent device.
    """

    def __init__(self, spec: ExtractorSpec, *, workers: int = 1, device: str = "cpu") -> None:
        self.spec, self._workers = spec, workers
        self.device = "cpu"  # the one that computes this extractor
        self._compute: Callable[[np.ndarray], np.ndarray] = hog_features
        self._threads = lambda: True  # asked when rows are computed
        if spec.backbone == "box":
            if not len(spec.mean) == len(spec.std) == spec.input_shape[-1]:
                rule = f"{spec.input_shape[-1]} numbers, one a dimension"
                raise InvalidInput("extractor.mean, std", rule, len(spec.mean))
            if spec.axes:
                rule = "none for a box, whose sides have their own scale"
                raise InvalidInput("extractor.axes", rule, "some")
        if spec.backbone in (*VECTORS, "hog"):
            return
        from .network import network_of  # torch

        network = network_of(spec.plain, device)
        self._compute, self.device = network, device
        self._threads = lambda: network.threads

    def embed(
        self, inputs: np.ndarray, progress: TaskProgress = no_progress
    ) -> tuple[np.ndarray, np.ndarray]:
        """(int8 [n, d], bool [n]): features, and whether they are finite.

        Rows that are not finite become zeros; drop them. ``inputs``: uint8 [n, height, width,
        channels] or float32 [n, dimensions], as the spec says. ``progress(done, total)`` is called
        as rows are finished.
        """
        return quantised(self.spec, self.features(inputs, progress))

    def features(self, inputs: np.ndarray, progress: TaskProgress = no_progress) -> np.ndarray:
        """float [n, d]: the features that ``embed`` centres, projects and rounds; a box's rows."""
        if self.spec.backbone in VECTORS:
            return self._checked(inputs)
        from joblib import Parallel, delayed

        total, parts = len(self._checked(inputs)), list[np.ndarray]()
        tasks = [delayed(self._compute)(inputs[i : i + CHUNK]) for i in range(0, total or 1, CHUNK)]
        jobs = self._workers if len(tasks) > 1 and self._threads() else 1
        for part in Parallel(n_jobs=jobs, prefer="threads", return_as="generator")(tasks):
            parts.append(part)
            progress(min(len(parts) * CHUNK, total), total)
        return np.concatenate(parts)

    def _checked(self, inputs: np.ndarray) -> np.ndarray:
        shape, backbone = self.spec.input_shape, self.spec.backbone
        sizes = 3 if backbone == "hog" else 1 if backbone in VECTORS else len(shape)
        if len(shape) != sizes:
            rule = "three sizes for hog, one for raw and box"
            raise InvalidInput("extractor.input_shape", rule, shape)
        expected, found = map(shape_text, (blank_inputs(shape, 0), inputs))
        if found != expected:
            raise InvalidInput("inputs", expected, found)
        return inputs


def unit_length(spec: ExtractorSpec, dimensions: int) -> float:
    """Length of a unit vector after quantisation without clipping: the features' factor. Public."""
    if spec.backbone == "box":
        return float(MAX_ENTRY)
    if spec.backbone == "raw":
        # At least 63: up to 63 no entry of a unit vector clips.
        return max(MAX_ENTRY, RAW_UNIT * math.sqrt(dimensions)) * spec.scale
    return (HOG_UNIT * math.sqrt(dimensions) if spec.backbone == "hog" else 1.0) * spec.scale


def quantised(spec: ExtractorSpec, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What ``Embedder.embed`` makes of ``Embedder.features``."""
    if spec.backbone == "box":
        return quantise_box(features, spec.mean, spec.std)
    axes = spec.projection()
    length = unit_length(spec, features.shape[1] if axes is None else axes.shape[1])
    return quantise(features, spec.center, length, axes, spec.radius)


def quantise(
    features: np.ndarray,
    center: tuple[float, ...],
    scale: float,
    axes: np.ndarray | None = None,
    radius: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], bool [n]) of float [n, d]: round(scale (x - center) / |x - center|), clipped.

    A zero vector stays zero. The second array says which rows are finite; the others become zeros.

    ``axes``: float64 [d, k], whole numbers of at most 15 bits. With axes, round(FINE (x - center) /
    |x - center|) @ axes takes the place of x - center, and the integers are [n, k]. With a
    ``radius``, this product keeps the length of x - center. What is shorter than the radius is
    divided by that instead of its length.

    All operations are elementwise in float64, each of which IEEE 754 fixes, or a product of
    integers whose every partial sum is below 2^53, hence exact in any order. So no row's integers
    depend on another row, on the layout or on threads.
    """
    dimensions, limit = features.shape[1], MAX_DIMENSIONS if axes is None else MAX_PROJECTED
    if not 0 < dimensions <= limit:
        raise InvalidInput("features", f"of 1..{limit} dimensions", dimensions)
    if axes is not None and not (len(axes) == dimensions and 0 < axes.shape[1] <= MAX_DIMENSIONS):
        rule = f"[{dimensions}, k] with k of 1..{MAX_DIMENSIONS}"
        raise InvalidInput("extractor.axes", rule, list(axes.shape))
    if center and len(center) != dimensions:
        raise InvalidInput("extractor.center", f"{dimensions} numbers", len(center))
    middle = np.asarray(center or 0.0, dtype=np.float64)
    columns = dimensions if axes is None else axes.shape[1]
    quantised = np.zeros((len(features), columns), dtype=np.int8)
    finite = np.isfinite(features).all(axis=1)
    for start in range(0, len(features), QUANTISED_ROWS):
        part = slice(start, start + QUANTISED_ROWS)
        kept = finite[part, None]
        x = np.where(kept, features[part], 0.0).astype(np.float64) - middle * kept
        if axes is None:
            unit = _unit(x, radius)
        else:
            on_axes = np.rint(_unit(x) * FINE) @ axes
            unit = _unit(on_axes * _length(x) / FINE if radius else on_axes, radius)
        quantised[part] = np.clip(np.rint(unit * scale), -MAX_ENTRY, MAX_ENTRY)
    return quantised, finite


def _length(x: np.ndarray) -> np.ndarray:
    return np.sqrt(folded_sum(x * x))


def _unit(x: np.ndarray, least: float = 0.0) -> np.ndarray:
    """Rows divided by their length, or by ``least`` if that is more."""
    length = np.maximum(_length(x), least)
    length[length == 0] = 1.0
    return x / length


def quantise_box(
    rows: np.ndarray, middle: tuple[float, ...], half: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """(int8 [n, d], bool [n]) of float32 [n, d]: round(63 (x - middle) / half), clipped.

    Entry by entry. Rows that are not finite are treated as in ``quantise``.
    """
    if not 0 < rows.shape[1] <= MAX_DIMENSIONS:
        raise InvalidInput("features", f"of 1..{MAX_DIMENSIONS} dimensions", rows.shape[1])
    finite = np.isfinite(rows).all(axis=1)
    x = np.where(finite[:, None], rows, 0.0).astype(np.float64)
    scaled = np.rint((x - np.asarray(middle)) / np.asarray(half) * MAX_ENTRY)
    clipped = np.where(finite[:, None], np.clip(scaled, -MAX_ENTRY, MAX_ENTRY), 0)
    return clipped.astype(np.int8), finite


def folded_sum(x: np.ndarray) -> np.ndarray:
    """Sums of rows, float64 [n, 1]: columns' halves are added until one column is left."""
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        folded = x[:, :half].copy()
        folded[:, : x.shape[1] - half] += x[:, half:]
        x = folded
    return x
