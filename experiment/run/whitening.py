"""The first round's features on the principal axes of the public rows, each axis of spread 1 (PCA whitening).

Neighbours by distance mean little where a few directions hold most of the spread; UAI23's threshold, one radius for all
queries, means less. The axes are a statistic of PUBLIC rows alone and part of the extractor.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from labelwall.experiment.config.config import Config, first_extractor
from labelwall.teacher.features.embedder import RAW_UNIT, Embedder
from labelwall.teacher.search.int8_matmul import LARGEST
from labelwall.wall.datasets.sources import Task
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec

MOST_ROWS = 10_000  # public rows that axes are computed from
STEPS = 32_767  # of int16: the largest entry of the axes
LEAST_SPREAD = 1e-6  # of an axis, as a share of the first one's: below it is rounding


def starting_extractor(config: Config, task: Task, inputs: np.ndarray) -> ExtractorSpec:
    """The features of the first round. ``inputs``: PUBLIC rows, which `whiten` learns from.

    Raises InvalidInput where features or axes do not fit the inputs, MissingData without weights.
    """
    spec = first_extractor(config, task)
    if not config.whiten:
        return spec
    embedder = Embedder(
        spec, probe=inputs[:1], batch_size=config.batch_size, workers=config.workers
    )
    center, axes = principal_axes(embedder.features(inputs[:MOST_ROWS]), config.whiten)
    length = max(LARGEST, RAW_UNIT * math.sqrt(config.whiten))
    scale = length * spec.scale / embedder.length(config.whiten)
    return replace(
        spec, center=tuple(center.tolist()), scale=scale, axes=axes.astype("<i2").tobytes()
    )


def principal_axes(features: np.ndarray, kept: int) -> tuple[np.ndarray, np.ndarray]:
    """(mean float64 [d], int16 [d, kept]): the widest directions of float [n, d], each divided by its standard deviation.

    All columns are scaled by one factor, so that the largest entry is STEPS. Rows that are not finite are left out.
    Raises InvalidInput where the rows do not spread in so many directions.
    """
    x = features[np.isfinite(features).all(axis=1)].astype(np.float64)
    mean = x.mean(axis=0) if len(x) else np.zeros(features.shape[1])
    variances, directions = np.linalg.eigh((x - mean).T @ (x - mean) / max(1, len(x)))  # ascending
    spreads = np.sqrt(np.maximum(variances[::-1], 0.0))
    most = int((spreads > LEAST_SPREAD * max(spreads[0], 1e-300)).sum())
    if kept > most:
        raise InvalidInput(
            "whiten",
            f"at most {most}, the directions in which the public rows' features spread",
            kept,
        )
    axes = directions[:, ::-1][:, :kept]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(kept)]) / spreads[:kept]
    return mean, np.rint(axes / np.abs(axes).max() * STEPS).astype(np.int16)
