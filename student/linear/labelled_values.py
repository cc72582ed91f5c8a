"""PUBLIC rows with values: the regression that they give alone, and what they add to private sums.

All of it is post-processing of released sums and of public rows.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import nnls
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict

from ...wall.label_kinds import half_ranges
from .measure import MAX_ROWS, Gradient, unit_inputs
from .tuning import FOLDS, PENALTIES, UNLIKE_VALUES

LEAST_VALUES = 20  # rows, with fewer of which a regression tells nothing


@dataclass(frozen=True)
class LabelledValues:
    """PUBLIC rows with values, in half ranges from the middle of the bounds.

    Args:
        inputs: float64 [n, d + 1], of length 1 at most.
        values: float64 [n].
        weights: of ridge regression on these rows, float64 [d + 1, 1].
        held: the value of each row by a regression on other ones, float64 [n].
    """

    inputs: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)
    held: np.ndarray = field(repr=False)

    @property
    def right(self) -> float:
        """R2 of the values by these rows alone, cross-validated."""
        return float(r2_score(self.values, self.held))

    def unlike(self, measured: Gradient, records: float) -> bool:
        """Whether the ``records`` have other moments than these rows, by more than chance.

        ``measured``: their gradient at weights of 0: the mean of input times value, negative.
        """
        each = self.inputs * self.values[:, np.newaxis]
        chance = each.var(axis=0) * (1 / len(each) + 1 / records)
        squares = (each.mean(axis=0) + measured.mean[:, 0]) ** 2
        excess = (squares / (chance + measured.deviation**2) - 1).sum()
        return bool(excess > UNLIKE_VALUES * (2 * len(squares)) ** 0.5)


def labelled_values(
    features: np.ndarray, codes: np.ndarray, length: float
) -> LabelledValues | None:
    """The ones with values, at most MAX_ROWS, of PUBLIC rows int8 [n, d], and their regression.

    ``codes``: steps of the values, int64 [n], -1 for none; ``length``: of a unit vector after
    quantisation. None of fewer than LEAST_VALUES rows.
    """
    rows = np.flatnonzero(codes >= 0)[:MAX_ROWS]
    if len(rows) < LEAST_VALUES:
        return None
    x, y = unit_inputs(features[rows], length), half_ranges(codes[rows])
    model = RidgeCV([1 / penalty for penalty in PENALTIES], fit_intercept=False).fit(x, y)
    alone = Ridge(alpha=model.alpha_, fit_intercept=False)
    held = cross_val_predict(alone, x, y, cv=KFold(FOLDS, shuffle=True, random_state=0))
    return LabelledValues(inputs=x, values=y, weights=model.coef_[:, np.newaxis], held=held)


def with_values(public: LabelledValues, weights: np.ndarray) -> tuple[np.ndarray, float]:
    """(weights float64 [d + 1, 1], R2 of the public values that they give).

    They are a sum of the released ``weights`` and of the rows' own: the parts, not below 0, that
    miss the public values least, the own ones by regressions that have not seen the row.
    """
    both = np.column_stack([public.inputs @ weights[:, 0], public.held])
    parts, _ = nnls(both, public.values)
    right = float(r2_score(public.values, both @ parts))
    return parts[0] * weights + parts[1] * public.weights, right
