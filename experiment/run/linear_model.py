"""Classifiers from noisy sums of gradients: post-processing, free.

A sum moves the weights against its direction, as far as its noise allows (``descent.py``). The
weights that come out are too long, so that their probabilities are too sure. Logits are multiplied
by the factor under which PUBLIC rows, whose labels the probabilities would give, have the gradients
that the records had in the later half of the steps.

Where noise hides the classes from these gradients, PUBLIC rows tell more of them: the classifier is
moved half the way to one of Gaussian classes, while that explains the gradients about as well. A
single step is a sum of each class: its classifier is of Gaussian classes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax

from ...wall.messages import ABSTAINED, Outcome
from .descent import DescentModel
from .gaussian_classes import gaussian_classes, of_sums
from .quality import Estimate, by_probabilities

FACTORS = 0.0, 3.0  # of logits
# Tried on images and texts, 4,000 records, epsilon 0.02 to 0.3 (docs/decisions.md).
REFINEMENTS = 2  # at most; later ones drift from the classes to the rows' clusters
TOLERANCE = 0.1  # of the noise: by how much a refined classifier may miss the gradients more


@dataclass
class LinearModel(DescentModel):
    """Softmax regression."""

    space = "class"
    has_probabilities = True

    def _moved(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        residuals_add_up_to_0 = gradient - gradient.mean(axis=1, keepdims=True)
        return super()._moved(weights, residuals_add_up_to_0, deviation)

    def _fitted(self) -> np.ndarray:
        asked = [
            (p, _kept((p * p).sum(axis=1, keepdims=True) + 1 - 2 * p, clip))
            for p, clip in self._asked(_softmax)
        ]

        def missed(weights: np.ndarray) -> float:
            likely = _softmax(self._asked_of @ weights)
            residuals = np.zeros_like(likely)
            for p, kept in asked:  # kept: of the residual p - label, by label
                found = likely * kept
                residuals += p * found.sum(axis=1, keepdims=True) - found
            return float((self._missed(residuals / len(asked)) ** 2).sum())

        def scaled(weights: np.ndarray) -> tuple[np.ndarray, float]:
            factor = _best(lambda factor: missed(factor * weights))
            return factor * weights, missed(factor * weights)

        if self.steps == 1:
            return scaled(of_sums(self._inputs, self._gradient, self._deviation))[0]
        best, least = scaled(self.average)
        for _ in range(REFINEMENTS):
            classes, _ = scaled(gaussian_classes(self._inputs, _softmax(self._inputs @ best)))
            refined, found = scaled((best + classes) / 2)
            if found > least + TOLERANCE * self._noise:
                break
            best = refined
        return best

    def says(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = _softmax(self.logits(features)).astype(np.float32)
        return found

    def labels(self, said: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """The most probable class, int64 [n], where it leads the next by more than ``margin``."""
        ordered = np.sort(said, axis=1)
        clear = ordered[:, -1] - ordered[:, -2] > margin
        labels = np.where(clear, said.argmax(axis=1), ABSTAINED).astype(np.int64)
        return labels, np.where(clear, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)

    def estimate(self, said: np.ndarray) -> Estimate:
        return by_probabilities(said.max(axis=1))


@dataclass
class AttributeModel(DescentModel):
    """One logistic regression an attribute.

    Residuals of a record's attributes are clipped together. Of the other attributes an expected
    length is taken: first one factor for all is found, then, with what it says of lengths, one for
    each attribute.
    """

    space = "attributes"

    def _fitted(self) -> np.ndarray:
        asked = [(p, clip * np.sqrt(self.outputs)) for p, clip in self._asked(expit)]
        logits = self._asked_of @ self.average

        def missed(factor: float, lengths: float) -> np.ndarray:
            """If logits times ``factor`` are true, and times ``lengths`` tell others' lengths."""
            likely, usual = expit(factor * logits), expit(lengths * logits)
            found = np.zeros_like(likely)
            for p, clip in asked:
                squares = p * p * (1 - usual) + (1 - p) ** 2 * usual
                others = squares.sum(axis=1, keepdims=True) - squares
                absent, present = _kept(others + p * p, clip), _kept(others + (1 - p) ** 2, clip)
                found += absent * p * (1 - likely) - present * (1 - p) * likely
            return self._missed(found / len(asked)) ** 2

        def best(lengths: float, outputs: slice) -> float:
            return _best(lambda factor: float(missed(factor, lengths)[:, outputs].sum()))

        common = _best(lambda factor: float(missed(factor, factor).sum()))
        factors = [best(common, slice(own, own + 1)) for own in range(self.outputs)]
        found: np.ndarray = self.average * factors
        return found

    def says(self, features: np.ndarray) -> np.ndarray:
        found: np.ndarray = expit(self.logits(features)).astype(np.float32)
        return found

    def labels(self, said: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """Presence, int64 [n, c], where one answer leads the other by more than ``margin``."""
        labels = np.where(np.abs(2 * said - 1) > margin, said > 0.5, ABSTAINED).astype(np.int64)
        some = (labels != ABSTAINED).any(axis=1)
        return labels, np.where(some, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)

    def estimate(self, said: np.ndarray) -> Estimate:
        return by_probabilities(np.maximum(said, 1 - said).mean(axis=1))


def _softmax(logits: np.ndarray) -> np.ndarray:
    found: np.ndarray = softmax(logits, axis=1)
    return found


def _kept(squares: np.ndarray, clip: float) -> np.ndarray:
    """What clipping leaves of residuals of these squared lengths: a factor, at most 1."""
    found: np.ndarray = np.minimum(1.0, clip / np.sqrt(np.maximum(squares, 1e-12)))
    return found


def _best(missed: Callable[[float], float]) -> float:
    """The factor that misses the measured gradients least."""
    return float(minimize_scalar(missed, bounds=FACTORS, method="bounded").x)
