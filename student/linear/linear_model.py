"""A linear model from noisy sums: its fit, and what it says of rows. All is post-processing."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import expit

from ...wall.label_kinds import steps_of
from ...wall.matrices import nearest_cells
from ...wall.messages import ABSTAINED, Outcome
from .fit_classes import attribute_weights, class_weights
from .fit_values import value_weights
from .fitted import CERTAIN, Doubt, Fitted
from .labelled import Labelled, LabelledValues, PublicLabels, better, with_values
from .measure import MAX_ROWS, MIN_RECORDS, Ask, FitSettings, Measurements, unit_inputs, with_bias
from .moments import class_probabilities
from .shares import Shares, favour_alike
from .stored import StoredFit, to_bytes
from .tuning import KEPT_PRECISION, NEIGHBOURS, NEIGHBOURS_SHARE, SURE_COUNT

Says = Callable[[np.ndarray], np.ndarray]  # predictions float32 [n, c] of rows int8 [n, d]


@dataclass(frozen=True)
class LinearModel:
    """Result of a fit.

    Args:
        labels: the label space's kind.
        length: of a unit vector after quantisation.
        weights: of integer inputs, float64 [d + 1, c].
        shares: for classes, the records' and the public rows', which the weights are for.
        doubt: how sure the probabilities should be; None if noise hides it.
        records: the noisy number of the records, and its deviation.
        explained: for values, their variance among public rows and its deviation.
        labels_given: share of the public labels that it gives, or R2 of public values,
            cross-validated; 0 without any.
        precision: of the weights, in squares of records: their noise's variance is inverse to it.
        offsets: of the logits of classes, float64 [c], under which each counts alike; 0: none.
    """

    labels: str
    length: float
    weights: np.ndarray = field(repr=False)
    shares: Shares | None = field(default=None, repr=False)
    doubt: Doubt | None = CERTAIN
    records: tuple[float, float] = (math.inf, 0.0)
    explained: tuple[float, float] | None = None
    labels_given: float = 0.0
    precision: float = 1.0
    offsets: np.ndarray | float = 0.0

    def says(self, features: np.ndarray) -> np.ndarray:
        """Probabilities, or values from -1 to 1, of rows int8 [n, d]: float32 [n, c]."""
        logits = with_bias(features, self.length) @ self.weights + self.offsets
        if self.labels == "value":
            return np.clip(logits, -1, 1).astype(np.float32)
        likely = class_probabilities(logits) if self.labels == "class" else expit(logits)
        return np.asarray(likely.astype(np.float32))

    def to_labels(self, predicted: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """(labels, outcomes uint8 [n]) of what the model ``says``.

        Of classes the most probable one, int64 [n], if it leads the next by more than ``margin``,
        or by more than on half of the rows on which it leads; of each attribute its presence, int64
        [n, c], if one answer leads the other by more; of values the steps above their lower bound,
        int64 [n].
        """
        if self.labels == "value":
            labels = steps_of(predicted[:, 0].astype(np.float64))
            return labels, np.full(len(predicted), Outcome.ANSWERED, dtype=np.uint8)
        if self.labels == "class":
            ordered, best = np.sort(predicted, axis=1), predicted.argmax(axis=1)
            lead = ordered[:, -1] - ordered[:, -2]
            least = np.full(predicted.shape[1], margin)
            for label in np.unique(best):  # a class whose leads are all small keeps some labels
                least[label] = min(margin, np.median(lead[best == label]))
            clear = lead > least[best]
            labels = np.where(clear, best, ABSTAINED).astype(np.int64)
        else:
            clear = np.abs(2 * predicted - 1) > margin
            labels = np.where(clear, predicted > 0.5, ABSTAINED).astype(np.int64)
            clear = clear.any(axis=1)
        return labels, np.where(clear, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)

    @property
    def some_records(self) -> bool:
        """Whether the released counts are above their noise."""
        count, deviation = self.records
        return count > SURE_COUNT * deviation

    def certainty(self, predicted: np.ndarray, factor: float = 1.0) -> np.ndarray:
        """Probability of each row's labels, float [n], of what the model ``says``.

        Logits of classes, without offsets, are multiplied by the ``factor``.
        """
        if self.labels == "class":
            logits = np.log(np.maximum(predicted.astype(np.float64), 1e-30)) - self.offsets
            likely = class_probabilities(factor * logits)
            return likely[np.arange(len(likely)), predicted.argmax(axis=1)]
        return np.asarray(np.maximum(predicted, 1 - predicted).mean(axis=1))

    def to_bytes(self, extractor: str) -> bytes:
        """The model's file, for features of the ``extractor`` with that hash."""
        fit = StoredFit(self.weights, self.precision, self.offsets)
        return to_bytes(fit, extractor, self.length, self.labels)


def fit(
    ask: Ask,
    public: np.ndarray,
    how: FitSettings,
    labelled: PublicLabels | None = None,
    earlier: StoredFit | None = None,
    again: bool = False,
) -> LinearModel | None:
    """A linear model by the noisy sums that ``ask`` gives, and PUBLIC rows int8 [n, d].

    ``labelled``: PUBLIC rows with labels; ``earlier``: a fit to records of an earlier period or
    round, with which this one is averaged. ``again``: the sums are of the same features as the
    earlier ones. Then steps begin at its weights, since the same sums would only be read again. If
    a cap ends the steps early, the fit takes the sums that were answered; None if none was.
    """
    measure, inputs = Measurements(ask, how), unit_inputs(public[:MAX_ROWS], how.length)
    if how.labels == "value":
        fitted = value_weights(measure, inputs, how)
    elif how.labels == "class":
        start = (
            labelled.weights if isinstance(labelled, Labelled) and not labelled.complete else None
        )
        if again and earlier is not None:
            start = earlier.weights * how.unit
        fitted = class_weights(measure, inputs, how, start)
    else:
        fitted = attribute_weights(measure, inputs, how)
    if fitted is None:
        return None
    records, right = (float(np.mean(measure.counts)), measure.count_noise), 0.0
    if labelled is not None:
        known = max(records[0], MIN_RECORDS)
        foreign = fitted.shares is not None and fitted.shares.foreign
        if isinstance(labelled, LabelledValues) and fitted.moments is not None:
            foreign = labelled.unlike(fitted.moments, known)
        # Labels of rows unlike the records would mislead
        if not (foreign and records[0] > SURE_COUNT * records[1]):
            fitted, right = _with_labels(fitted, labelled, inputs)
    current = StoredFit(
        weights=fitted.weights / how.unit, precision=max(records[0], MIN_RECORDS) ** 2
    )
    averaged = current if earlier is None else _average(current, earlier)
    offsets: np.ndarray | float = 0.0
    if how.balanced:
        least = records[1] / max(records[0], MIN_RECORDS)  # as many records as the count is off
        offsets = favour_alike(inputs @ averaged.weights * how.unit, least)
        right = 0.0  # it was cross-validated without offsets
    return LinearModel(
        labels=how.labels,
        length=how.length,
        weights=averaged.weights,
        shares=fitted.shares,
        doubt=fitted.doubt,
        records=records,
        explained=fitted.explained,
        labels_given=right,
        precision=averaged.precision,
        offsets=offsets,
    )


def _with_labels(
    fitted: Fitted, labelled: PublicLabels, inputs: np.ndarray
) -> tuple[Fitted, float]:
    """(the fit, combined with public labels; the share or R2 of these that it gives, 0 if unknown).

    ``inputs``: of PUBLIC rows. If all classes have labels, these tell how sure the fit should be.
    """
    if isinstance(labelled, LabelledValues):
        weights, right = with_values(labelled, fitted.weights)
        noise = fitted.explained[1] if fitted.explained else 0.0
        known = float((inputs @ weights).var()), noise  # labels of public rows add hardly any
        return replace(fitted, weights=weights, explained=known), right
    lost = 0.0
    if not (labelled.complete or fitted.doubt is None or fitted.doubt[1] <= 0):
        likely = class_probabilities(inputs @ fitted.weights).mean(axis=0)
        lost = 1 - float(likely[labelled.classes].sum())
    weights, right = better(labelled, fitted.weights, lost)
    if labelled.complete:
        return replace(fitted, weights=weights, doubt=CERTAIN), right
    return replace(fitted, weights=weights), 0.0


def _average(fit: StoredFit, earlier: StoredFit) -> StoredFit:
    """Mean of both by precision, of which the earlier fit keeps a part."""
    kept = KEPT_PRECISION * earlier.precision
    total = fit.precision + kept
    weights = (fit.precision * fit.weights + kept * earlier.weights) / total
    return StoredFit(weights=weights, precision=total)


def with_neighbours(says: Says, public: np.ndarray) -> Says:
    """Predictions by ``says``, mixed with their mean over the nearest public rows of each row.

    A linear model errs alone if classes have curved borders or the noise has bent its own. The rows
    nearby mostly have the same label, and their errors differ.

    ``public``: int8 [m, d], m >= 1, of which the first MAX_ROWS count. A public row is its own
    nearest one. Rows do not depend on one another, so that a resumed run gives the same.
    """
    public = public[:MAX_ROWS]
    predicted, count = says(public), min(NEIGHBOURS, len(public))

    def mixed(features: np.ndarray) -> np.ndarray:
        around = predicted[nearest_cells(features, public, count)].mean(axis=1)
        mean = (1 - NEIGHBOURS_SHARE) * says(features) + NEIGHBOURS_SHARE * around
        return np.asarray(mean.astype(np.float32))

    return mixed
