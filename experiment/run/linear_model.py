"""Classifiers from noisy sums of gradients: post-processing, free.

A sum moves the weights against its direction, as far as its noise allows (``descent.py``). The
weights that come out are too long, so that their probabilities are too sure. Logits are multiplied
by the factor under which PUBLIC rows, whose labels the probabilities would give, have the gradients
that the records had in the later half of the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax

from labelwall.experiment.run.descent import DescentModel
from labelwall.experiment.run.judge import Estimate, by_probabilities
from labelwall.wall.messages import ABSTAINED, Outcome

FACTORS = 0.0, 3.0  # of logits


@dataclass
class LinearModel(DescentModel):
    """Softmax regression."""

    space = "class"
    has_probabilities = True

    def _moved(self, weights: np.ndarray, gradient: np.ndarray, deviation: float) -> np.ndarray:
        residuals_add_up_to_0 = gradient - gradient.mean(axis=1, keepdims=True)
        return super()._moved(weights, residuals_add_up_to_0, deviation)

    def _factors(self) -> np.ndarray:
        asked = [
            (p, _kept((p * p).sum(axis=1, keepdims=True) + 1 - 2 * p, clip))
            for p, clip in self._asked(_softmax)
        ]
        logits = self._inputs @ self.average

        def missed(factor: float) -> float:
            likely = _softmax(factor * logits)
            residuals = np.zeros_like(likely)
            for p, kept in asked:  # kept: of the residual p - label, by label
                found = likely * kept
                residuals += p * found.sum(axis=1, keepdims=True) - found
            return float((self._missed(residuals / len(asked)) ** 2).sum())

        return np.full(self.outputs, _best(missed))

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

    def _factors(self) -> np.ndarray:
        asked = [(p, clip * np.sqrt(self.outputs)) for p, clip in self._asked(expit)]
        logits = self._inputs @ self.average

        def residuals(factor: float, lengths: float) -> np.ndarray:
            """Mean residuals if the logits times ``factor`` are true, clipped by ``lengths``."""
            likely, usual = expit(factor * logits), expit(lengths * logits)
            found = np.zeros_like(likely)
            for p, clip in asked:
                squares = p * p * (1 - usual) + (1 - p) ** 2 * usual
                others = squares.sum(axis=1, keepdims=True) - squares
                absent, present = _kept(others + p * p, clip), _kept(others + (1 - p) ** 2, clip)
                found += absent * p * (1 - likely) - present * (1 - p) * likely
            return self._missed(found / len(asked)) ** 2

        common = _best(lambda factor: float(residuals(factor, factor).sum()))
        return np.array(
            [
                _best(lambda factor, own=own: float(residuals(factor, common)[:, own].sum()))
                for own in range(self.outputs)
            ]
        )

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
