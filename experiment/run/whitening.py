"""PCA whitening: the first round's features on the public rows' principal axes, each of spread 1.

Where a few directions hold most of the spread, distances mean little, and UAI23's threshold (one
radius for all queries) means less. The axes are a statistic of PUBLIC rows alone and a part of the
extractor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...teacher.features.embedder import RAW_UNIT, Embedder, unit_length
from ...teacher.mechanisms.base import QueryForm
from ...teacher.search.int8_matmul import LARGEST
from ...wall.datasets.sources import Task
from ...wall.errors import InvalidInput
from ...wall.messages import ExtractorSpec
from ..config.config import Config
from ..config.first_features import first_extractor
from .public_features import quantised

MAX_ROWS = 10_000  # public rows that axes are computed from
MAX_ENTRY = 32_767  # of int16: the largest entry of the axes
# For a linear classifier an axis is divided by its deviation to a power, at most MOST_WHITENED; not
# at all where the variances of the first LEADING axes fall no faster than rank to the power -FLAT.
# Chosen on CIFAR-10's features, texts, HOG of two sets of images and a network's features of one.
MOST_WHITENED, LEADING, FLAT = 0.5, 64, 0.45
MIN_SPREAD = 1e-6  # of an axis, as a share of the first axis's: rounding is below it


def starting_extractor(
    config: Config,
    task: Task,
    inputs: np.ndarray,
    plain: Callable[[ExtractorSpec], np.ndarray] | None = None,
) -> ExtractorSpec:
    """The features of the first round. ``inputs``: PUBLIC rows, which `whiten` learns from.

    ``plain``: gives the features of these rows before they are centred, if they are known.
    Raises InvalidInput where features or axes do not fit the inputs, MissingData without weights.
    """
    spec = first_extractor(config, task)
    if not config.whiten:
        return spec
    if plain is None:
        embedder = Embedder(
            spec, probe=inputs[:1], batch_size=config.batch_size, workers=config.workers
        )
        features = embedder.features(inputs[:MAX_ROWS])
    else:
        features = plain(spec)[:MAX_ROWS]
    center, axes = principal_axes(features, config.whiten)
    if config.whiten > axes.shape[1]:
        rule = f"at most {axes.shape[1]}, the directions in which the public rows' features spread"
        raise InvalidInput("whiten", rule, config.whiten)
    return _on_axes(spec, center, axes)


def extractor_of_round(
    spec: ExtractorSpec, asks: QueryForm, plain: Callable[[ExtractorSpec], np.ndarray]
) -> ExtractorSpec:
    """The features that a round asks with: ``spec``, on as many axes as its mechanism asks for,
    and with the features of public rows that it asks for.

    ``plain``: see ``starting_extractor``.
    """
    if asks.landmarks:
        rows, finite = quantised(spec, spread_out(plain(spec), asks.landmarks))
        return replace(spec, landmarks=rows[finite].tobytes())
    if asks.axes is None:
        return spec
    center, axes = principal_axes(plain(spec)[:MAX_ROWS], asks.axes, linear_power)
    if not axes.size:
        raise InvalidInput("public rows", "at least 2, of different features", "no spread")
    return _on_axes(spec, center, axes)


def spread_out(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the rows, at equal distances in their order."""
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(np.int64)]


def _on_axes(spec: ExtractorSpec, center: np.ndarray, axes: np.ndarray) -> ExtractorSpec:
    kept = axes.shape[1]
    length = max(LARGEST, RAW_UNIT * math.sqrt(kept))
    scale = length * spec.scale / unit_length(spec, kept)
    return replace(
        spec, center=tuple(center.tolist()), scale=scale, axes=axes.astype("<i2").tobytes()
    )


def linear_power(spreads: np.ndarray) -> float:
    """Between plain and half-whitened features, where the noise on a linear classifier's sums costs
    least: the power for ``principal_axes``. ``spreads``: float64 [kept], positive, falling.
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
    ``power`` (a number, or what gives it for these deviations), all scaled by one factor so that
    the largest entry is MAX_ENTRY. They are fewer than ``kept`` where the rows spread in fewer
    directions. Rows that are not finite are left out.
    """
    x = features[np.isfinite(features).all(axis=1)].astype(np.float64)
    mean = x.mean(axis=0) if len(x) else np.zeros(features.shape[1])
    variances, directions = np.linalg.eigh((x - mean).T @ (x - mean) / max(1, len(x)))  # ascending
    spreads = np.sqrt(np.maximum(variances[::-1], 0.0))
    kept = min(kept, int((spreads > MIN_SPREAD * max(spreads[0], 1e-300)).sum()))
    if not kept:
        return mean, np.zeros((features.shape[1], 0), dtype=np.int16)
    spreads, axes = spreads[:kept], directions[:, ::-1][:, :kept]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(kept)])
    axes = axes * signs / spreads ** (power(spreads) if callable(power) else power)
    return mean, np.rint(axes / np.abs(axes).max() * MAX_ENTRY).astype(np.int16)
