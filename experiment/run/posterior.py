"""What noisy counts say of the true ones, by the noise's known law: post-processing, free."""

from __future__ import annotations

import numpy as np

REACH = 12.0  # deviations of the noise: the range of counts whose prior is fitted
FAR = 8.0  # deviations above which a noisy count is taken as it is
STEP = 0.25  # deviations between values of the prior
ITERATIONS = 200


def expected_counts(counts: np.ndarray, noise: float) -> np.ndarray:
    """Posterior means of counts that are at least 0: float64 like ``counts``.

    ``counts``: noisy, int64 [m, c]; ``noise``: its deviation, Gaussian. The prior is the law of the
    true counts under which all noisy ones are most probable (Kiefer and Wolfowitz 1956, by
    expectation maximisation over a grid): most counts of a cell are near 0, and a noisy one that
    noise explains becomes as small as those.
    """
    found = np.maximum(counts, 0).astype(np.float64)
    near = counts <= FAR * noise
    seen = counts[near] / noise
    grid = np.arange(0.0, REACH, STEP)
    # up to a factor a row
    likely = np.exp(
        -0.5 * (seen[:, np.newaxis] - grid) ** 2 + 0.5 * np.minimum(seen, 0)[:, None] ** 2
    )
    prior = np.full(len(grid), 1 / len(grid))
    for _ in range(ITERATIONS if len(seen) else 0):
        prior = prior * (likely / (likely @ prior)[:, np.newaxis]).mean(axis=0)
    weights = likely * prior
    found[near] = noise * (weights @ grid) / weights.sum(axis=1)
    return found


def class_shares(expected: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Class probabilities of rows: the shares of what is expected in their cells.

    ``expected``: float64 [m, c]; ``cells``: int64 [n, reach]. Float32 [n, c]; equal ones where
    nothing is expected.
    """
    votes = expected[cells].sum(axis=1) + 1e-9
    found: np.ndarray = (votes / votes.sum(axis=1, keepdims=True)).astype(np.float32)
    return found
