"""Probabilities of classes, and what clipping leaves of the residuals: prediction minus truth."""

import numpy as np
from scipy.special import softmax


def class_probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax of each row."""
    return np.asarray(softmax(logits, axis=1))


def clipping_factor(squares: np.ndarray, clip: float) -> np.ndarray:
    """Factor, at most 1, by which clipping multiplies residuals of these squared lengths."""
    return np.asarray(np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 1e-12))))


def class_clipping(p: np.ndarray, clip: float) -> np.ndarray:
    """``clipping_factor`` of the residual for each label, if classes are ``p`` likely: [n, c]."""
    return clipping_factor((p * p).sum(axis=1, keepdims=True) + 1 - 2 * p, clip)
