"""A linear classifier of Gaussian classes that have the same covariance."""

import numpy as np

from .tuning import MIN_WITHIN

MIN_SHARE = 1e-6  # of a class
RIDGE = 1e-9  # added to the covariance, so that it has an inverse


def gaussian_classes(inputs: np.ndarray, likely: np.ndarray) -> np.ndarray:
    """Weights float64 [d + 1, c] whose logits are those of Gaussian classes.

    A step of expectation maximisation: means and shares are those of ``likely``, probabilities
    float64 [n, c]; the covariance within classes is the rows' covariance less that of the means.
    ``inputs``: float64 [n, d + 1], the last one constant.
    """
    rows, constant = inputs[:, :-1], inputs[0, -1]
    center = rows.mean(axis=0)
    shares = np.maximum(likely.mean(axis=0), MIN_SHARE)
    means = (rows.T @ likely) / (len(rows) * shares)  # [d, c]
    covariance = np.cov(rows.T, bias=True).reshape(len(center), -1) + RIDGE * np.eye(len(center))
    away = means - center[:, np.newaxis]
    variances, axes = np.linalg.eigh(covariance - (away * shares) @ away.T)
    least = MIN_WITHIN * np.einsum("ij,ik,kj->j", axes, covariance, axes)
    weights = (axes / np.maximum(variances, least)) @ axes.T @ means
    offsets = np.log(shares) - 0.5 * (means * weights).sum(axis=0)
    both = np.vstack([weights, offsets / constant])
    return np.asarray(both - both.mean(axis=1, keepdims=True))  # probabilities are the same
