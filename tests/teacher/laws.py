"""Laws of noisy releases by enumeration: independent of the product's curves and samplers."""

from collections.abc import Sequence

import numpy as np


def gaussian(sigma: float, reach: int) -> np.ndarray:
    """N_Z(0, sigma^2) on -reach..reach."""
    mass = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2.0 * sigma**2))
    return mass / mass.sum()


def laplace(scale: float, reach: int) -> np.ndarray:
    """Discrete Laplace noise on -reach..reach."""
    mass = np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    return mass / mass.sum()


def choice(losses: Sequence[int] | np.ndarray, rate: float) -> np.ndarray:
    """The exponential mechanism: probability proportional to exp(-rate loss)."""
    mass = np.exp(-rate * (np.asarray(losses) - np.min(losses)))
    return mass / mass.sum()


def winner(votes: Sequence[int], noise: np.ndarray) -> np.ndarray:
    """P(class j wins), float64 [classes], by votes plus independent noise on -reach..reach.

    Its noisy count exceeds those of lower classes and is not below those of higher ones.
    """
    reach, most = len(noise) // 2, max(votes)
    points = np.zeros((len(votes), 2 * reach + 1 + most))
    for law, count in zip(points, votes, strict=True):
        law[count : count + len(noise)] = noise
    at_most = np.cumsum(points, axis=1)
    below = at_most - points
    wins = []
    for j, law in enumerate(points):
        others = [below[i] if i < j else at_most[i] for i in range(len(votes)) if i != j]
        wins.append(float((law * np.prod(others, axis=0)).sum()))
    return np.array(wins)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The delta of two laws at ``epsilon``, the larger of both directions."""
    return max(float(np.maximum(a - np.exp(epsilon) * b, 0).sum()) for a, b in ((p, q), (q, p)))


def divergence(orders: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The larger of D_alpha(p || q) and D_alpha(q || p), float64 [n_orders], in logarithms."""
    sides = []
    for a, b in ((p, q), (q, p)):
        terms = np.outer(orders, np.log(a)) + np.outer(1 - orders, np.log(b))
        sides.append(np.logaddexp.reduce(terms, axis=1) / (orders - 1))
    return np.maximum(*sides)
