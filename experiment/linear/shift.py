"""Shares of the classes among PUBLIC rows that differ from the records': post-processing, free.

A classifier's probabilities imply shares of the classes. Clipped gradients make them others than
the records' own, so that expectation maximisation (Saerens, Latinne and Decaestecker 2002) with
the released shares goes astray. Here both are unknown: offsets of the logits under which the
classifier is right on public rows, which tell the public shares, and the records' shares. Public
rows that are weighted by the ratio of the shares stand for the records, so they must have the
gradients that the records had: the first, of sums of classes, and the mean of the later ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

PRIOR = 3.0  # precision of the logarithm of a class's public over its private share
MAX_ENTRIES = 500_000  # of the probabilities that the gradients are computed from
LIMITS = {"maxiter": 60}
ROUNDS = 2  # of the fit: how far public rows are off by chance follows from the fit before
# What offsets explain beyond chance, for each parameter: with less they are left at 0, with more
# they are taken whole. Public rows that are moved or few also seem to be shifted, by 2 to 4.
DOUBTFUL, SURE = 2.0, 4.0
# Public rows are foreign where no shares explain the gradients: what is left is more than that many
# times chance, and more than that part of what was to be explained. Digits of another scanner: 2.5
# to 3.8 and 0.42 to 0.58. Then nothing is corrected.
LEFT, PART = (1.8, 2.4), (0.25, 0.4)


@dataclass(frozen=True)
class Shares:
    """Shares of the classes, float64 [c], among the records and among PUBLIC rows.

    ``foreign``: whether no shares explain what the records' sums say of PUBLIC rows.
    """

    private: np.ndarray
    public: np.ndarray
    foreign: bool = False


@dataclass(frozen=True)
class Moment:
    """A mean gradient of the records, float64 [d + 1, c], with noise of ``deviation``.

    ``asked``: at each of its steps what the weights said of public rows, float64 [n, c], and what
    clipping would leave of the residual for each label, float64 [n, c].
    """

    gradient: np.ndarray = field(repr=False)
    deviation: float
    asked: Sequence[tuple[np.ndarray, np.ndarray]] = field(repr=False)

    def of(self, rows: slice) -> "Moment":
        """By some of the public rows."""
        asked = [(p[rows], kept[rows]) for p, kept in self.asked]
        gradient = self.gradient - self.gradient.mean(axis=1, keepdims=True)
        return Moment(gradient, self.deviation, asked)

    def residuals(self, likely: np.ndarray) -> np.ndarray:
        """Mean residuals of public rows, where ``likely`` [n, c] weighs each label."""
        total = np.zeros_like(likely)
        for p, kept in self.asked:
            part = likely * kept
            total += p * part.sum(axis=1, keepdims=True) - part
        return total / len(self.asked)

    def pull(self, slopes: np.ndarray) -> np.ndarray:
        """Slopes by the weight of each label, where ``slopes`` [n, c] are those by residuals."""
        total = np.zeros_like(slopes)
        for p, kept in self.asked:
            total += kept * ((slopes * p).sum(axis=1, keepdims=True) - slopes)
        return total / len(self.asked)


class _Fit:
    """Offsets and logarithms of private shares, float64 [2 c], that explain the moments."""

    def __init__(self, logits: np.ndarray, inputs: np.ndarray, moments: Sequence[Moment]) -> None:
        self.logits, self.inputs, self.moments = logits, inputs, moments
        self.precisions = [np.ones_like(moment.gradient) for moment in moments]

    def start(self) -> np.ndarray:
        """No shift: the records have the shares that the classifier sees among public rows."""
        shares = softmax(self.logits, axis=1).mean(axis=0)
        return np.concatenate([np.zeros(len(shares)), np.log(shares)])

    def shares(self, point: np.ndarray) -> Shares:
        offsets, logs = np.split(point, 2)
        return Shares(softmax(logs), softmax(self.logits + offsets, axis=1).mean(axis=0))

    def weigh(self, point: np.ndarray) -> None:
        """Weigh the moments' entries by their noise and by the chance of so many public rows."""
        weights = self._weights(point)[1]
        for number, moment in enumerate(self.moments):
            chance = (self.inputs**2).T @ moment.residuals(weights) ** 2 / len(self.inputs) ** 2
            self.precisions[number] = 1 / (moment.deviation**2 + chance)

    def missed(self, point: np.ndarray) -> float:
        """Squared deviations by which the moments are missed, in all."""
        return self._missed(self._weights(point)[1])[0]

    def surprise(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        """(``missed`` and what is unusual of the shares, its slopes)."""
        likely, weights = self._weights(point)
        shares, n = self.shares(point), len(likely)
        private, public = shares.private, np.maximum(shares.public, 1e-300)
        missed, slopes = self._missed(weights)
        unusual = np.log(public) - np.log(private)
        by_ratio = (slopes * likely).sum(axis=0)
        by_private = by_ratio / public - 2 * PRIOR * unusual / private
        by_public = (2 * PRIOR * unusual - by_ratio * private / public) / public
        by_likely = slopes * private / public + by_public / n
        by_offset = likely * (by_likely - (likely * by_likely).sum(axis=1, keepdims=True))
        by_log = private * (by_private - private @ by_private)
        surprise = missed + PRIOR * float(unusual @ unusual)
        return surprise, np.concatenate([by_offset.sum(axis=0), by_log])

    def _weights(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(probabilities of public rows' labels, how much each counts as a record), [n, c]."""
        likely = softmax(self.logits + np.split(point, 2)[0], axis=1)
        shares = self.shares(point)
        return likely, likely * (shares.private / np.maximum(shares.public, 1e-300))

    def _missed(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        total, slopes, n = 0.0, np.zeros_like(weights), len(weights)
        for moment, precision in zip(self.moments, self.precisions, strict=True):
            error = self.inputs.T @ moment.residuals(weights) / n - moment.gradient
            total += float((precision * error**2).sum())
            slopes += moment.pull(2 / n * self.inputs @ (precision * error))
        return total, slopes


def shifted(
    logits: np.ndarray, inputs: np.ndarray, moments: Sequence[Moment]
) -> tuple[np.ndarray, Shares]:
    """(offsets of the logits for public rows, float64 [c]; the shares that go with them).

    ``logits``: of PUBLIC ``inputs`` by a classifier, float64 [n, c] and [n, d + 1]. The offsets
    are 0 where the moments tell of no shift, or where no shift explains them; a class that is rarer
    among public rows keeps its share of the records.
    """
    rows = slice(max(1, MAX_ENTRIES // (logits.shape[1] * max(len(m.asked) for m in moments))))
    fit = _Fit(logits[rows], inputs[rows], [moment.of(rows) for moment in moments])
    start = best = fit.start()
    for _ in range(ROUNDS):
        fit.weigh(best)
        best = minimize(fit.surprise, best, jac=True, method="L-BFGS-B", options=LIMITS).x
    fit.weigh(best)
    parameters = 2 * (logits.shape[1] - 1)
    size = sum(moment.gradient.size for moment in moments) * (1 - 1 / logits.shape[1])
    left = fit.missed(best)
    chance, before = max(size - parameters, 1.0), fit.missed(start)
    usual = max(1.0, left / chance)
    unexplained = max(0.0, left - chance) / max(before - chance, 1e-9)
    foreign = np.interp(usual, LEFT, (0, 1)) * np.interp(unexplained, PART, (0, 1))
    part = (1 - foreign) * np.interp((before - left) / usual / parameters, (DOUBTFUL, SURE), (0, 1))
    offsets = part * (best - start)[: logits.shape[1]]
    offsets -= offsets.mean()
    public = softmax(logits + offsets, axis=1).mean(axis=0)
    found = fit.shares(best)
    ratio = log_softmax(np.log(found.private) - np.log(np.maximum(found.public, 1e-300)))
    private = softmax(np.log(np.maximum(public, 1e-300)) + part * ratio)
    # A class that public rows lack may be asked about later: it keeps its share of the records.
    offsets += np.maximum(0.0, np.log(private) - np.log(np.maximum(public, 1e-300))) * part
    return offsets - offsets.mean(), Shares(private, public, bool(foreign > 0.5))
