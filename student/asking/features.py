"""Feature maps that rounds ask with, and features of the public rows.

Axes are a statistic of PUBLIC rows alone and a part of the extractor.
"""

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
from threadpoolctl import threadpool_limits

from ...wall.computing import Computing
from ...wall.datasets.data_config import Task
from ...wall.errors import InvalidInput
from ...wall.feature_maps import MAPS, FeatureMap
from ...wall.features.embedder import RAW_UNIT, Embedder, quantised, unit_length
from ...wall.files import digest, whole
from ...wall.matrices import MAX_ENTRY
from ...wall.messages import ExtractorSpec
from ...wall.progress import Progress, TaskProgress
from ...wall.questions import QueryForm
from ..linear.tuning import AXES_BY_ROWS, CURVED_AXES_BY_ROWS, RADIUS
from ..public_settings import IMAGENET, STAGES, TIMM, FirstFeatures
from .boosted import TREES, Boosted, lacking
from .tuning import FLAT, LEADING, MOST_WHITENED

KEPT = 8  # two kinds of rows by two networks, and the axes of both
STORED = 16  # of them in the user's cache


V = TypeVar("V")
_kept: dict[str, Any] = {}  # what takes long, by content: the last ones used


def _once(name: str, compute: Callable[[], V]) -> V:
    """The result of ``compute`` for PUBLIC rows with that digest, which stays for a run."""
    value: V = _kept.pop(name) if name in _kept else compute()
    _kept[name] = value
    for oldest in [*_kept][:-KEPT]:
        _kept.pop(oldest, None)
    return value


def plain_features(
    computing: Computing, spec: ExtractorSpec, rows: np.ndarray, progress: TaskProgress
) -> np.ndarray:
    """Features of PUBLIC rows before they are centred, float [n, d].

    A network's features of images stay in the user's cache for other runs.
    """
    name = digest(rows, spec.plain.sha256(), computing.device)

    def compute() -> np.ndarray:
        embedder = Embedder(spec, workers=computing.workers, device=computing.device)
        return embedder.features(rows, progress)

    images = spec.weights and rows.ndim == 4
    return _once(name, partial(_stored, name, compute) if images else compute)


def _stored(name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """An array in the user's cache. If it is not there it is computed, and stored if possible."""
    default = Path("~/.cache").expanduser()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or default) / "labelwall" / "features"
    path = folder / f"{name}.npy"
    with suppress(OSError, ValueError, EOFError):  # none, or not whole
        return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
    features = compute()
    with suppress(OSError):  # a full disk, or no place for it
        folder.mkdir(parents=True, exist_ok=True)
        with whole(path) as file:
            np.save(file, features)
        for oldest in sorted(folder.glob("*.npy"), key=lambda file: file.stat().st_mtime)[:-STORED]:
            oldest.unlink(missing_ok=True)
    return features


@dataclass(frozen=True, eq=False, repr=False)
class PublicFeatures:
    """Plain and quantised features of ``rows`` by name; "public" are a run's public ones, of whose
    labels ``trees`` are.
    """

    computing: Computing
    rows: Mapping[str, np.ndarray]
    progress: Progress
    trees: Boosted | None = None

    def plain(self, spec: ExtractorSpec, rows: str = "public") -> np.ndarray:
        """float [n, d]: features before they are centred. No tree has seen the public row that it
        is asked about.
        """
        if spec.backbone == TREES and rows == "public" and self.trees is not None:
            return self.trees.beside(self.rows[rows])
        progress = partial(self.progress, f"features of {rows} rows")
        return plain_features(self.computing, spec, self.rows[rows], progress)

    def quantised(self, spec: ExtractorSpec, rows: str = "public") -> np.ndarray:
        """int8 [n, d]: features as the teacher has them."""
        return quantised(spec, self.plain(spec, rows))[0]


MAX_ROWS = 10_000  # public rows that axes are computed from
MAX_AXIS = 32_767  # of int16: the largest entry of the axes
MIN_SPREAD = 1e-6  # of an axis, as a share of the first axis's: rounding is below it

# Features of PUBLIC rows, float [n, d], before they are centred.
Plain = Callable[[ExtractorSpec], np.ndarray]


def first_extractor(
    first: FirstFeatures, task: Task, rows: np.ndarray | None = None, trees: Boosted | None = None
) -> ExtractorSpec:
    """The features of the first round, before they are whitened.

    ``rows``: PUBLIC ones, float32 [n, d], for maps that follow from them; ``trees``: of the labels
    of PUBLIC rows, for features of this name. Other features need neither.
    Raises InvalidInput if they do not fit the inputs, MissingData if weights are missing.
    """
    images, name = len(task.input_shape) == 3, first.features
    if name == "auto":
        name = "hog" if images else "raw"
    if (name in (of_vectors := ("raw", "box", *MAPS, TREES))) == images:
        networks = f"efficientnet_lite2, {STAGES} or timm/NAME"
        *others, last = of_vectors
        rule = f"hog, {networks} for images, {', '.join(others)} or {last} for feature vectors"
        raise InvalidInput("features", rule, name)
    if name == "box":
        return box_extractor(first.box, task)
    if name in MAPS:
        return _mapped(MAPS[name], task, rows)
    if name == TREES:
        if trees is None:
            raise lacking()
        return _by_tensors(TREES, trees.tensors, task.input_shape[0] + trees.held.shape[1], task)
    if name in IMAGENET:
        from ...wall.networks import efficientnet_lite  # torch

        return efficientnet_lite(name, task.input_shape, task.num_classes)
    if name.startswith(TIMM):
        from ...wall.networks import timm_model  # torch

        weights = None if first.weights is None else Path(first.weights)
        return timm_model(name.removeprefix(TIMM), weights, task.input_shape, task.num_classes)
    return ExtractorSpec(name, task.input_shape, task.num_classes)


def _mapped(known: FeatureMap, task: Task, rows: np.ndarray | None) -> ExtractorSpec:
    """The network of a map, with its tensors from PUBLIC rows, float32 [n, d]."""
    (columns,) = task.input_shape
    if known.of_rows and rows is None:
        rule = f"not {known.name} where no public rows are read"
        raise InvalidInput("features", rule, known.name)
    given = np.zeros((0, columns), np.float32) if rows is None else rows
    tensors = known.tensors(columns, given[np.isfinite(given).all(axis=1)])
    return _by_tensors(known.name, tensors, known.trunk(columns)[1], task)


def _by_tensors(
    name: str, tensors: Mapping[str, np.ndarray], width: int, task: Task
) -> ExtractorSpec:
    """The network of that name and width, whose last layer is not used."""
    classes = task.num_classes
    head = {"head.weight": np.zeros((classes, width)), "head.bias": np.zeros(classes)}
    known = {f"trunk.{part}": values for part, values in tensors.items()} | head
    content = safetensors.numpy.save({k: v.astype(np.float32) for k, v in known.items()})
    scale = RAW_UNIT * math.sqrt(width)
    return ExtractorSpec(name, task.input_shape, task.num_classes, content, scale=scale)


def stepped(features: str) -> bool:
    """Whether features have steps, which another network smooths."""
    return features == TREES or (features in MAPS and MAPS[features].stepped)


def of_rows(features: str) -> bool:
    """Whether features follow from PUBLIC rows even before they are whitened."""
    return features == TREES or (features in MAPS and MAPS[features].of_rows)


def axes_a_row(features: str) -> float:
    """Axes for each public row that a linear classifier looks at, at most."""
    return CURVED_AXES_BY_ROWS if features in MAPS else AXES_BY_ROWS


def box_extractor(box: list[list[float]], task: Task) -> ExtractorSpec:
    """Feature vectors of a declared domain, each side on its own scale."""
    (dimensions,) = task.input_shape
    sides = box * dimensions if len(box) == 1 else box
    if len(sides) != dimensions:
        raise InvalidInput("box", f"one side, or {dimensions}", len(sides))
    middle = tuple((low + high) / 2 for low, high in sides)
    half = tuple((high - low) / 2 for low, high in sides)
    return ExtractorSpec("box", task.input_shape, task.num_classes, mean=middle, std=half)


def whitened(spec: ExtractorSpec, count: int, plain: Plain) -> ExtractorSpec:
    """The features on so many whitened axes of PUBLIC rows; as they are for 0.

    Raises InvalidInput for more axes than these rows spread along.
    """
    if not count:
        return spec
    center, axes = principal_axes(plain(spec)[:MAX_ROWS], count)
    if count > axes.shape[1]:
        rule = f"at most {axes.shape[1]}, the directions in which the public rows' features spread"
        raise InvalidInput("whiten", rule, count)
    return _on_axes(spec, center, axes)


def extractor_of_round(spec: ExtractorSpec, form: QueryForm, plain: Plain) -> ExtractorSpec:
    """The features that a round asks with: ``spec`` and what the ``form`` needs of public rows."""
    if (basis := form.basis) is None:
        return spec
    features = plain(spec)
    if basis.kind == "landmarks":  # some rows, at equal distances in their order
        places = np.linspace(0, len(features) - 1, min(basis.count, len(features))).astype(np.int64)
        rows, finite = quantised(spec, features[places])
        return replace(spec, landmarks=rows[finite].tobytes())
    if basis.count:
        center, axes = principal_axes(features[:MAX_ROWS], basis.count, linear_power)
        if not axes.size:
            raise InvalidInput("public rows", "at least 2, of different features", "no spread")
        spec = _on_axes(spec, center, axes)
    return replace(spec, radius=_radius(spec, features)) if basis.lengths else spec


def _radius(spec: ExtractorSpec, features: np.ndarray) -> float:
    """Up to which length PUBLIC features, float [n, d], before they are centred, keep theirs."""
    if spec.backbone == "box":  # all rows keep it
        return 0.0
    finite = features[np.isfinite(features).all(axis=1)].astype(np.float64)
    centred = finite - np.asarray(spec.center or 0.0)
    axes = spec.projection()
    rows = centred if axes is None else centred @ axes
    return RADIUS * float(np.sqrt((rows**2).sum(axis=1).mean()))


def _on_axes(spec: ExtractorSpec, center: np.ndarray, axes: np.ndarray) -> ExtractorSpec:
    kept = axes.shape[1]
    length = max(MAX_ENTRY, RAW_UNIT * math.sqrt(kept))
    scale = length * spec.scale / unit_length(spec, kept)
    return replace(
        spec, center=tuple(center.tolist()), scale=scale, axes=axes.astype("<i2").tobytes()
    )


def linear_power(spreads: np.ndarray) -> float:
    """The power for ``principal_axes`` with which noise on a linear classifier's sums costs least.

    It is between plain and half-whitened features. ``spreads``: float64 [kept], positive, falling.
    """
    leading = np.log(spreads[:LEADING])
    if len(leading) < 2:
        return MOST_WHITENED
    slope = -2 * np.polyfit(np.log(np.arange(1, len(leading) + 1)), leading, 1)[0]  # of variances
    return float(min(max(0.0, 1 - FLAT / max(slope, FLAT)), MOST_WHITENED))


def principal_axes(
    features: np.ndarray, kept: int, power: float | Callable[[np.ndarray], float] = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """(mean float64 [d], axes int16 [d, kept]) of float [n, d], each axis over its deviation.

    The axes are the directions of the largest variance, divided by their standard deviations to the
    ``power``: a number, or a function of these deviations. One factor scales them so that the
    largest entry is MAX_AXIS. They are fewer than ``kept`` if the rows spread in fewer
    directions. Rows that are not finite are left out.
    """
    mean, spreads, directions = _once(digest(features, "spread"), partial(_spread, features))
    kept = min(kept, int((spreads > MIN_SPREAD * max(spreads[0], 1e-300)).sum()))
    if not kept:
        return mean, np.zeros((features.shape[1], 0), dtype=np.int16)
    spreads, axes = spreads[:kept], directions[:, :kept]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(kept)])
    axes = axes * signs / spreads ** (power(spreads) if callable(power) else power)
    return mean, np.rint(axes / np.abs(axes).max() * MAX_AXIS).astype(np.int16)


def _spread(features: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(mean [d], deviations [d], falling, along directions [d, d]) of the finite rows: float64."""
    x = features[np.isfinite(features).all(axis=1)].astype(np.float64)
    mean = x.mean(axis=0) if len(x) else np.zeros(features.shape[1])
    with threadpool_limits(1):  # two wait for one another many times as long on a busy machine
        variances, directions = np.linalg.eigh((x - mean).T @ (x - mean) / max(1, len(x)))
    return mean, np.sqrt(np.maximum(variances[::-1], 0.0)), directions[:, ::-1]
