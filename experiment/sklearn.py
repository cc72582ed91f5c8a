"""scikit-learn's interface to ``fit``: one release by a call, of the rows that y does not mark."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

from ..wall.errors import InvalidInput
from .api import fit
from .data import Data
from .frames import cell_text, is_frame

PUBLIC = "-1"  # the mark of a public row, as a text
PIPELINE = "sklearn.pipeline"
MAY_CLONE = ("sklearn.base", PIPELINE)  # for others, or once: each other module of it clones to fit


class NotAllowed(InvalidInput, ValueError):
    """InvalidInput, as scikit-learn's callers expect it."""


@contextmanager
def _as_value_errors() -> Iterator[None]:
    try:
        yield
    except InvalidInput as error:
        same = NotAllowed.__new__(NotAllowed, *error.args)
        vars(same).update(vars(error))
        raise same from None


class LabelwallClassifier(ClassifierMixin, BaseEstimator):
    """``lw.fit`` as a classifier: private rows and public ones in one X, told apart by y.

    ``y == -1`` (a number or a text) marks the public rows, as in scikit-learn's semi-supervised
    learning. All others are private: a missing label (None, NaN, "") publishes no row, which is
    dropped. X: an array of numbers [n, d], images uint8, or a data frame.

    A call is one release, charged to ``custody``: the same rows resume it at no charge, others are
    refused there. So what fits clones on parts of the rows (cross-validation, a grid search,
    calibration, ensembles) is refused; settings are chosen on public rows, free, by ``lw.plan``.
    A step before it in a Pipeline is refused if it is fitted: a scaler of all rows is a function of
    private ones that no budget pays for. Fit none outside a Pipeline either, where nobody sees it.

    Args:
        epsilon: as of ``lw.fit``, as are ``delta`` and ``expected_records``.
        classes: the public list of the labels, in order; required, since what occurs is private.
        custody: the custodian's directory, PRIVATE.
        run_dir: folder for the results; CUSTODY.run when None.
        settings: settings by name, such as {"student": {"steps": 900}}.

    ``model_``: the Model, with ``epsilon_`` and ``report_``.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        classes: Sequence[Any] | None = None,
        custody: str | Path | None = None,
        *,
        run_dir: str | Path | None = None,
        delta: float | None = None,
        expected_records: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon, self.classes, self.custody, self.run_dir = epsilon, classes, custody, run_dir
        self.delta, self.expected_records, self.settings = delta, expected_records, settings

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the public rows by what the private ones say. Raises as ``lw.fit``."""
        with _as_value_errors():
            _require_unfitted_steps()
            _require_rows(X)
            if y is None or len(y) != len(X):
                raise InvalidInput.missing("y", "it has a label, or -1, for each row")
            if self.classes is None or PUBLIC in (names := list(map(cell_text, self.classes))):
                rule = "the public list of the labels, without -1, which marks public rows"
                raise InvalidInput("classes", rule, self.classes)
            validate_data(self, X, skip_check_array=True)  # the names and the number of columns
            labels = [cell_text(cell) for cell in (y.tolist() if hasattr(y, "tolist") else y)]
            public = np.array([label == PUBLIC for label in labels])
            private = [label for label in labels if label != PUBLIC]
            if not public.any():
                rule = "-1 in at least one row, which is then public"
                cure = "Public rows need neither labels nor protection."
                raise InvalidInput("y", rule, None, cure)
            self.model_ = fit(
                Data((_part(X, ~public), private), _part(X, public), classes=names),
                self.epsilon,
                run_dir=self.run_dir or f"{self.custody}.run",
                custody=self.custody,
                delta=self.delta,
                expected_records=self.expected_records,
                quiet=True,
                **(self.settings or {}),
            )
        self.classes_ = np.asarray(self.classes)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable of ``classes_`` of each row [n]."""
        places = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[places])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities float64 [n, c] of ``classes_``. Costs no privacy."""
        check_is_fitted(self, "model_")
        with _as_value_errors():
            _require_rows(X)
            validate_data(self, X, reset=False, skip_check_array=True)
            return self.model_.predict_proba(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # its noise has no seed
        return tags

    def __sklearn_clone__(self) -> Self:
        module = next((name for name, _ in _callers() if name not in MAY_CLONE), "")
        if module.startswith("sklearn.") and not module.startswith("sklearn.utils"):
            rule = "fitted once, on all rows: each fold of cross-validation would be a release"
            cure = "lw.plan(lw.Data(...)) rehearses methods on labelled public rows, free."
            raise NotAllowed("estimator", rule, f"a clone, made by {module}", cure)
        clone: Self = super().__sklearn_clone__()
        return clone


def _callers() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(the module, the local names) of each function that called this file's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if (name := frame.f_globals.get("__name__", "")) != __name__:
            yield name, frame.f_locals


def _require_unfitted_steps() -> None:
    """Raises InvalidInput where a Pipeline calls whose earlier steps learn from all rows."""
    pipelines = [
        known["self"] for name, known in _callers() if name == PIPELINE and "self" in known
    ]
    for steps in (getattr(caller, "steps", ())[:-1] for caller in pipelines):
        for step, made in steps:
            if made not in (None, "passthrough") and get_tags(made).requires_fit:
                rule = "without fitted steps before it: no budget pays for what they learn of rows"
                cure = "Steps that learn nothing may stand there, such as Normalizer."
                raise InvalidInput("pipeline", rule, step, cure)


def _require_rows(rows: Any) -> None:
    """Raises InvalidInput but for a data frame and a dense array of rows."""
    if is_frame(rows) or hasattr(rows, "iloc"):
        return
    if hasattr(rows, "tocsr") or not hasattr(rows, "dtype"):  # a list's would follow from its rows
        rule = "an array of numbers, or a data frame; sparse input is not supported"
        raise InvalidInput("X", rule, type(rows).__name__)
    if rows.ndim < 2:
        cure = "Reshape your data, by X.reshape(-1, 1) or X.reshape(1, -1)."
        raise InvalidInput("X", "an array of rows [n, d]", f"{rows.ndim} dimensions", cure)


def _part(rows: Any, chosen: np.ndarray) -> Any:
    """Rows by a mask: bool [n]."""
    if hasattr(rows, "iloc"):
        return rows.iloc[chosen]
    if hasattr(rows, "with_format"):  # of `datasets`
        return rows.select(np.flatnonzero(chosen))
    if is_frame(rows):  # of polars
        return rows.filter(chosen)
    return rows[chosen]
