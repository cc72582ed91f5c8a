"""A student's penultimate features as the extractor that goes back across the wall."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..wall.messages import ExtractorSpec
from ..wall.networks.architectures import load
from ..wall.preprocessing import Preprocessing
from .data import Pool

BATCH = 500
CLIPPED = 1e-4  # share of public feature entries that may reach the clipping bound


def export(pool: Pool, backbone: str, weights: bytes) -> ExtractorSpec:
    """The extractor of a trained student.

    Its centre and scale are statistics of ``pool``, PUBLIC rows.

    Features are centred by the public mean feature and L2-normalised; the scale puts all but
    CLIPPED of the public entries inside -63..63.
    """
    spec, rows = pool.spec(backbone, weights), pool.inputs
    network, preprocess = load(spec), Preprocessing(pool.mean, pool.std)
    with torch.inference_mode():
        parts = [
            network.features(preprocess(rows[i : i + BATCH])) for i in range(0, len(rows), BATCH)
        ]
    features = torch.cat(parts).double().numpy()
    center = features.mean(axis=0)
    centred = features - center
    normed = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    scale = 63.0 / max(float(np.quantile(np.abs(normed), 1 - CLIPPED)), 1e-6)
    return replace(spec, center=tuple(center.tolist()), scale=scale)
