"""Gaussian classes with one covariance, of PUBLIC rows that have probabilities for labels."""

from __future__ import annotations

import numpy as np

MIN_WITHIN = 0.3  # least share of an axis' variance that is within classes
MIN_SHARE = 1e-6  # of a class


def gaussian_classes(inputs: np.ndarray, likely: np.ndarray) -> np.ndarray:
    """Weights float64 [d + 1, c] whose logits are those of Gaussian classes.

    Means and shares are those of ``likely``, probabilities float64 [n, c]; the covariance within
    classes is what their means leave of the rows'. ``inputs``: float64 [n, d + 1], the last one
    constant. A step of expectation maximisation.
    """
    rows, constant = inputs[:, :-1], inputs[0, -1]
    center = rows.mean(axis=0)
    shares = np.maximum(likely.mean(axis=0), MIN_SHARE)
    means = (rows.T @ likely) / (len(rows) * shares)  # [d, c]
    covariance = np.cov(rows.T, bias=True).reshape(len(center), -1) + 1e-9 * np.eye(len(center))
    weights = _within_precision(covariance, means - center[:, np.newaxis], shares) @ means
    offsets = np.log(shares) - 0.5 * (means * weights).sum(axis=0)
    found: np.ndarray = np.vstack([weights, offsets / constant])
    return found - found.mean(axis=1, keepdims=True)


def _within_precision(covariance: np.ndarray, means: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Inverse of the covariance within classes, [d, d]; ``means``: from the centre, [d, c]."""
    variances, axes = np.linalg.eigh(covariance - (means * shares) @ means.T)
    least = MIN_WITHIN * np.einsum("ij,ik,kj->j", axes, covariance, axes)
    found: np.ndarray = (axes / np.maximum(variances, least)) @ axes.T
    return found
