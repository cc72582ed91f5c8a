"""What noisy counts of a private score tell: post-processing of released numbers.

Counts by bin are float64 [bins, 2], from the lowest score to the highest: records without a class
or attribute, and records with it. All counts have independent noise of one standard deviation.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from .summary import AtThreshold, ByThreshold, Noisy

DOUBT = 0.1  # standard error of a share above which it says nothing


def noisy_shares(
    right: np.ndarray, wrong: np.ndarray, noise: float, summed: Sequence[int] | np.ndarray = (1, 1)
) -> tuple[np.ndarray, np.ndarray]:
    """(share of right records, its standard error) from noisy counts of the same shape.

    ``noise``: the standard deviation of a count; ``summed``: of how many counts ``right`` is the
    sum, and ``wrong``. Where the records do not show above it, the error is infinite.
    """
    records = np.asarray(right + wrong, dtype=np.float64)
    some = records > 2 * noise * np.sqrt(summed[0] + summed[1])
    share = np.clip(np.divide(right, records, where=some, out=np.zeros_like(records)), 0.0, 1.0)
    # of (1 - share) right - share wrong
    spread = noise * np.sqrt(summed[0] * (1 - share) ** 2 + summed[1] * share**2)
    error = np.divide(spread, records, where=some, out=np.full_like(records, np.inf))
    return share, error


def noisy_auroc(counts: np.ndarray, noise: float) -> tuple[float, float, float]:
    """(AUROC by bins, its standard error, half the share of pairs in one bin) from counts by bin.

    A pair is a record without and one with; ties count half. The error is that of the delta method:
    by a count of those with, of P, the AUROC moves by (share of the others that are below it, less
    the AUROC) / P. At noisy counts these slopes are a little too large in the mean. The error is
    infinite where the records do not show above the noise.
    """
    without, given = counts.T
    all_without, all_given = without.sum(), given.sum()
    if min(all_without, all_given) <= 2 * noise * math.sqrt(len(counts)):
        return 0.5, math.inf, 0.5
    below = (without.cumsum() - without / 2) / all_without
    above = (all_given - given.cumsum() + given / 2) / all_given
    auroc = given @ below / all_given
    slopes = (below - auroc) / all_given, (above - auroc) / all_without
    ties = max(0.0, given @ without) / (2 * all_given * all_without)
    return float(np.clip(auroc, 0, 1)), noise * float(np.linalg.norm(slopes)), float(ties)


def decisions(counts: np.ndarray, edges: np.ndarray, *, classes: bool) -> np.ndarray:
    """Records that the threshold 0 decides rightly, then those decided wrongly: [2, outputs].

    ``counts``: float64 [scores, bins, 2]; ``edges``: thresholds of the scores; ``classes``: whether
    the outputs are two classes, which have one score, or attributes.
    """
    sides = (_sides(own, _middle(at)) for own, at in zip(counts, edges, strict=True))
    found = np.array([[[low[0], high[1]], [high[0], low[1]]] for low, high in sides])
    return found[0] if classes else found.sum(axis=2).T


def by_threshold(counts: np.ndarray, edges: np.ndarray, noise: float) -> ByThreshold:
    """The measures of one score. ``counts``: by bin; ``edges``: thresholds, logits that go up."""
    auroc, error, ties = noisy_auroc(counts, noise)
    tables = list[AtThreshold]()
    for at, edge in enumerate(edges):
        low, high = _sides(counts, at)
        below, above = at + 1, len(edges) - at
        table = AtThreshold(
            threshold=float(f"{expit(float(edge)):.4g}"),
            sensitivity=known(*noisy_shares(high[1], low[1], noise, (above, below))),
            specificity=known(*noisy_shares(low[0], high[0], noise, (below, above))),
        )
        tables.append(table)
    found, left = tables[_middle(edges)].sensitivity, tables[_middle(edges)].specificity
    balanced = None
    if found and left:
        balanced = known((found[0] + left[0]) / 2, math.hypot(found[1], left[1]) / 2)
    return ByThreshold(
        auroc=(round(auroc, 4), round(error, 4), round(ties, 4)) if error <= DOUBT else None,
        balanced_accuracy=balanced,
        tables=tuple(tables),
    )


def known(share: float | np.ndarray, error: float | np.ndarray) -> Noisy | None:
    """Both, to four places; None where the noise hides the share."""
    return (round(float(share), 4), round(float(error), 4)) if error <= DOUBT else None


def _sides(counts: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
    """Records that are not above threshold number ``at``, and those that are."""
    return counts[: at + 1].sum(axis=0), counts[at + 1 :].sum(axis=0)


def _middle(edges: np.ndarray) -> int:
    """The number of the threshold 0, a probability of one half."""
    return int(np.searchsorted(edges, 0.0))
