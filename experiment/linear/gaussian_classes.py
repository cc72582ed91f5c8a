"""Gaussian classes with one covariance: of PUBLIC rows with probabilities for labels, and of noisy
sums of classes with PUBLIC rows."""

import numpy as np
from scipy.linalg import solve
from scipy.special import softmax

# Iterations of expectation maximisation; later ones drift from the classes to the rows' clusters.
ITERATIONS = 6
PUBLIC_SHARE = 0.2  # what a public row counts beside a record in expectation maximisation
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
    return _centred(weights, offsets / constant)


def of_sums(x: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
    """Weights float64 [d + 1, c] of Gaussian classes with one covariance.

    ``x``: PUBLIC inputs float64 [n, d + 1], the last one constant; ``gradient``: float64 [d + 1, c]
    mean of (1/c - label) x over the records, with noise of ``deviation`` on every entry.
    """
    rows, constant, c = x[:, :-1], x[0, -1], gradient.shape[1]
    center = rows.mean(axis=0)[:, np.newaxis]  # [d, 1]
    covariance = np.cov(rows.T).reshape(len(center), -1) + 1e-9 * np.eye(len(center))
    shares = _shares(gradient[-1] / constant, deviation / constant)
    noisy = center - (gradient[:-1] + (shares - 1 / c) * center) / shares
    spread = deviation / shares  # of the noise on a class's mean
    means = center + _shrunk(noisy - center, covariance, spread)
    for left in reversed(range(ITERATIONS)):
        precision = _within_precision(covariance, means - center, shares)
        weights = precision @ means
        offsets = -0.5 * (means * weights).sum(axis=0)
        if not left:
            break
        p = softmax(rows @ weights + offsets, axis=1)
        shares = p.mean(axis=0)
        for k in range(c):
            seen = PUBLIC_SHARE * precision
            known = seen * p[:, k].sum() + np.eye(len(center)) / spread[k] ** 2
            evidence = seen @ (rows.T @ p[:, k]) + noisy[:, k] / spread[k] ** 2
            means[:, k] = solve(known, evidence, assume_a="pos")
    return _centred(weights, offsets / constant)


def _centred(weights: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Weights [d + 1, c] that add up to 0 over the classes, which leaves probabilities alone."""
    both = np.vstack([weights, offsets])
    return np.asarray(both - both.mean(axis=1, keepdims=True))


def _shares(gradient: np.ndarray, deviation: float) -> np.ndarray:
    """Shares of the classes, float64 [c], shrunk to equal ones as far as noise explains them."""
    away = -gradient
    kept = max(0.0, 1 - len(away) * deviation**2 / max((away * away).sum(), 1e-300))
    shares = np.maximum(1 / len(away) + kept * away, 0.1 / len(away))
    return np.asarray(shares / shares.sum())


def _shrunk(means: np.ndarray, covariance: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Noisy class means [d, c], shrunk along each principal axis as far as noise explains them."""
    _, axes = np.linalg.eigh(covariance)
    along = axes.T @ means
    squares = np.maximum((along * along).sum(axis=1), 1e-300)
    kept = np.maximum(0.0, 1 - (spread * spread).sum() / squares)
    return np.asarray(axes @ (along * kept[:, np.newaxis]))


def _within_precision(covariance: np.ndarray, means: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Inverse of the covariance within classes, [d, d]; ``means``: from the centre, [d, c]."""
    variances, axes = np.linalg.eigh(covariance - (means * shares) @ means.T)
    least = MIN_WITHIN * np.einsum("ij,ik,kj->j", axes, covariance, axes)
    return np.asarray((axes / np.maximum(variances, least)) @ axes.T)
