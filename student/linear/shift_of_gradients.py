"""Shares of the classes among records and PUBLIC rows, by released gradients: free post-processing.

A classifier's probabilities imply shares of the classes. Clipped gradients change these, so that
expectation maximisation (Saerens, Latinne and Decaestecker 2002) with the released shares goes
astray. Here two things are unknown: the offsets of the logits under which the classifier is right
on public rows, which give the public shares, and the records' shares. Public rows that are weighted
by the ratio of the shares stand for the records. So they must have the gradients that the records
had: the first, of sums of classes, and the mean of the later ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.special import log_softmax, softmax

from .moments import Moment, minimised
from .shares import TINY, Misfit, Shares, log
from .tuning import (
    FITS_OF_SHARES,
    FOREIGN_DEVIATIONS,
    FOREIGN_OF_SHIFT,
    FOREIGN_OF_SIGNAL,
    PRIOR_BY_GRADIENTS,
    TOTALS_OF_SHIFT,
)


def shifted(logits: np.ndarray, moments: Sequence[Moment]) -> tuple[np.ndarray, Shares]:
    """(offsets of the logits for public rows, float64 [c]; the shares that go with them).

    ``logits``: of the moments' PUBLIC rows by a classifier, float64 [n, c]. The offsets are 0 if
    the moments tell no more of a shift than of other offsets, or if no shift explains them. A class
    that is rarer among public rows keeps its share of the records, since it may be asked about
    later.
    """
    classes, rows = logits.shape[1], min(moment.most for moment in moments)
    first = [moment.first(rows) for moment in moments]
    shift = _Shift(logits=torch.tensor(logits[:rows]), moments=first)
    unshifted = np.stack([np.zeros(classes), np.log(softmax(logits[:rows], axis=1).mean(axis=0))])
    best, precisions = shift.fitted(unshifted)
    misfit = misfit_of_gradients(shift, unshifted, best, precisions)
    length = signal(shift.moments, precisions) - misfit.chance
    unexplained = is_foreign(misfit, length)
    foreign = unexplained and stands_out(shift.of_any_slope(misfit, best, precisions), length)
    told = not unexplained and shift.seen_in_totals(unshifted)
    if not told or not replace(misfit, unshifted=shift.alike(precisions)).tells_of_a_shift:
        public = softmax(logits, axis=1).mean(axis=0)
        private = softmax(log(public))
        return np.zeros(classes), Shares(private=private, public=public, foreign=foreign)
    offsets = best[0] - best[0].mean()
    public = softmax(logits + offsets, axis=1).mean(axis=0)
    _, of_records, of_rows = (each.numpy() for each in shift.shares(torch.tensor(best)))
    ratio = log_softmax(np.log(of_records) - np.log(of_rows))
    private = softmax(log(public) + ratio)
    offsets = offsets + np.maximum(0.0, np.log(private) - log(public))
    return offsets - offsets.mean(), Shares(private=private, public=public)


@dataclass(frozen=True)
class _Shift:
    """Gradients of public rows as a function of a point: (offsets, logarithms of private shares).

    A point is float64 [2, c]. ``logits``: of the public rows, float64 [n, c].
    """

    logits: torch.Tensor
    moments: Sequence[Moment]

    def shares(self, point: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Probabilities of the public rows' labels [n, c], private and public shares [c]."""
        likely = torch.softmax(self.logits + point[0], dim=1)
        return likely, torch.softmax(point[1], dim=0), likely.mean(dim=0).clamp(min=TINY)

    def as_records(self, point: torch.Tensor) -> torch.Tensor:
        """Weight of each label of each row in the place of a record, [n, c]."""
        likely, private, public = self.shares(point)
        return likely * private / public

    def precisions(self, point: np.ndarray) -> list[torch.Tensor]:
        """Precision of each entry of each moment, if the point is right."""
        return [moment.precision(self.as_records(torch.tensor(point))) for moment in self.moments]

    def misfit(self, point: torch.Tensor, precisions: Sequence[torch.Tensor]) -> torch.Tensor:
        """Squared distance of the weighted rows' gradients from the records', in variances."""
        pairs, weights = zip(self.moments, precisions, strict=True), self.as_records(point)
        return torch.stack([moment.missed(weights, precision) for moment, precision in pairs]).sum()

    def alike(self, precisions: Sequence[torch.Tensor]) -> float:
        """The least misfit with equal shares on both sides, whatever the offsets.

        The offsets of a linear model that is not quite right, or whose descent was short, are off
        although nothing is shifted.
        """

        def misfit(offsets: torch.Tensor) -> torch.Tensor:
            public = torch.softmax(self.logits + offsets, dim=1).mean(dim=0).clamp(min=TINY)
            return self.misfit(torch.stack([offsets, public.log()]), precisions)

        best = minimised(misfit, np.zeros(self.logits.shape[1]))
        return float(misfit(torch.tensor(best)))

    def seen_in_totals(self, unshifted: np.ndarray) -> bool:
        """Whether the residuals' sums over all rows, the last row of each gradient, differ.

        A linear model that is not quite right misses single entries, and a shift of the shares
        may explain those by chance. But its probabilities add up to the records' shares on rows
        that are alike.
        """
        precisions = self.precisions(unshifted)
        for precision in precisions:
            precision[:-1] = 0.0
        parameters = 2 * (unshifted.shape[1] - 1)
        missed = float(self.misfit(torch.tensor(unshifted), precisions))
        return missed / parameters > TOTALS_OF_SHIFT

    def surprise(self, point: torch.Tensor, precisions: Sequence[torch.Tensor]) -> torch.Tensor:
        """The misfit, and how improbable the shares are before gradients are seen."""
        _, private, public = self.shares(point)
        away = ((public.log() - private.log()) ** 2).sum()
        return self.misfit(point, precisions) + PRIOR_BY_GRADIENTS * away

    def fitted(self, start: np.ndarray) -> tuple[np.ndarray, list[torch.Tensor]]:
        """The most probable point near ``start``, and precisions that follow from it."""
        best, precisions = start, self.precisions(start)
        for _ in range(FITS_OF_SHARES):
            best = minimised(partial(self.surprise, precisions=precisions), best)
            precisions = self.precisions(best)
        return best, precisions

    def of_any_slope(
        self, misfit: Misfit, best: np.ndarray, precisions: Sequence[torch.Tensor]
    ) -> Misfit:
        """What is left of the ``misfit`` if the logits may have another common factor as well.

        The classifier's own was fitted without offsets and shares. If labels are hardly
        predictable, nearly all residuals are clipped, and it is far from the one that suits these.
        """

        def sloped(point: torch.Tensor) -> "_Shift":
            return replace(self, logits=self.logits * point[2, 0].exp())

        def surprise(point: torch.Tensor) -> torch.Tensor:
            return sloped(point).surprise(point[:2], precisions)

        start = np.vstack([best, np.zeros(best.shape[1])])
        point = torch.tensor(minimised(surprise, start))
        return replace(misfit, left=float(sloped(point).misfit(point[:2], precisions)))


def misfit_of_gradients(
    shift: _Shift, unshifted: np.ndarray, best: np.ndarray, precisions: Sequence[torch.Tensor]
) -> Misfit:
    """Misfits at both points. A gradient's entries of a row add up to 0."""
    classes = unshifted.shape[1]
    parameters = 2 * (classes - 1)
    entries = sum(moment.gradient.numel() for moment in shift.moments) * (1 - 1 / classes)
    before, left = (float(shift.misfit(torch.tensor(p), precisions)) for p in (unshifted, best))
    chance = max(entries - parameters, 1.0)
    return Misfit(unshifted=before, left=left, chance=chance, parameters=parameters)


def signal(moments: Sequence[Moment], precisions: Sequence[torch.Tensor]) -> float:
    """Squared length of the records' gradients, in variances."""
    pairs = zip(moments, precisions, strict=True)
    return sum(float((precision * moment.gradient**2).sum()) for moment, precision in pairs)


def stands_out(misfit: Misfit, signal: float) -> bool:
    """Whether the residual is 4.5 deviations above chance, and 33% of the ``signal`` beside it."""
    above_chance = misfit.residual > FOREIGN_DEVIATIONS * math.sqrt(2 * misfit.chance)
    return above_chance and misfit.residual > FOREIGN_OF_SIGNAL * signal


def is_foreign(misfit: Misfit, signal: float) -> bool:
    """Whether the residual stands out, and is 72% of what a shift of the shares had to explain.

    Public rows are of another source than the records if it also does by logits of any slope.
    """
    return stands_out(misfit, signal) and misfit.residual > FOREIGN_OF_SHIFT * misfit.to_explain
