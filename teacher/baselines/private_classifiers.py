"""Logistic regression, naive Bayes and random trees through diffprivlib: competitors of DMKD17's Figure 15.

Baselines for comparisons: their epsilon is diffprivlib's claim for ideal noise in place of its floating point numbers, and their
models are not for release. What the claim covers, by our reading of diffprivlib 0.6.6, is in docs/privacy.md ("Baselines").
Bounds and classes are public: rows are quantised features in -1..1 and labels 0..c-1. Noise is the operating system's.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from labelwall.teacher.baselines.config import (
    DpForest,
    DpLogisticRegression,
    DpNaiveBayes,
    PrivateClassification,
)
from labelwall.wall.errors import LabelwallError, MissingData

BOUNDS: tuple[float, float] | None = (-1.0, 1.0)  # of every feature, by quantisation
CLAIMS = {
    "dp_logistic_regression": "diffprivlib's, for one record replaced",
    "dp_naive_bayes": "diffprivlib's, for one record replaced; 5/3 of it by our reading where that changes its class",
    "dp_forest": "diffprivlib's, for one record added or removed",
}


@dataclass(frozen=True)
class PrivateClassifier:
    """``models``: fitted, they vote. ``epsilon``: pure, by diffprivlib's accountant; ``claim``: what it is said to bound."""

    models: tuple[Any, ...] = field(repr=False)
    prepare: Callable[[np.ndarray], np.ndarray] = field(repr=False)
    num_classes: int
    epsilon: float
    claim: str

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        """Classes of float64 [n, d] inputs in -1..1: int64 [n], ties to the lowest."""
        rows = self.prepare(inputs)
        voted = np.stack([model.predict(rows) for model in self.models])  # [models, n]
        votes = np.stack(
            [(voted == label).sum(axis=0) for label in range(self.num_classes)], axis=1
        )  # [n, classes]
        return votes.argmax(axis=1)


def fit_privately(
    config: PrivateClassification,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    num_classes: int,
    epsilon: float,
) -> PrivateClassifier:
    """Fit on PRIVATE ``inputs`` (float64 [n, d] in -1..1) and ``labels`` (int64 [n]). There is no seed: every fit draws afresh.

    Raises MissingData without diffprivlib, LabelwallError where it would read a bound from the records.
    """
    library = require_diffprivlib()
    prepare = _unit_rows if isinstance(config, DpLogisticRegression) else _as_they_are
    made, settings = _estimator(config, library, num_classes)
    models = []
    with _strict(library), _fresh_numpy_state():
        for rows, of in _parts(
            config.trees if isinstance(config, DpForest) else 1, prepare(inputs), labels
        ):
            model = made(
                epsilon=epsilon, accountant=library.BudgetAccountant(epsilon, 0), **settings
            )
            models.append(model.fit(*with_every_class(rows, of, num_classes)))
    spent = max(
        float(model.accountant.total()[0]) for model in models
    )  # disjoint records: the trees' do not add up
    return PrivateClassifier(tuple(models), prepare, num_classes, spent, CLAIMS[config.kind])


def _estimator(
    config: PrivateClassification, library: ModuleType, num_classes: int
) -> tuple[Any, dict[str, Any]]:
    """(diffprivlib's class, its settings but the budget). No random_state: the noise is then the operating system's."""
    if isinstance(config, DpNaiveBayes):
        return library.models.GaussianNB, {"bounds": BOUNDS}
    if isinstance(config, DpForest):
        settings = {
            "max_depth": config.depth,
            "bounds": BOUNDS,
            "classes": list(range(num_classes)),
        }
        return library.models.DecisionTreeClassifier, settings
    # The intercept is a column of the rows: diffprivlib's own is not penalised, which the proof needs. At norm 1 the curvature
    # that it reckons with is the proof's; at other norms it is not.
    exact = {"tol": 1e-10, "max_iter": 10_000}  # the proof is about the minimiser
    return library.models.LogisticRegression, {
        "data_norm": 1.0,
        "C": 1 / config.penalty,
        "fit_intercept": False,
        **exact,
    }


def _parts(
    count: int, inputs: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Disjoint records for ``count`` trees; each record goes to one of them by itself.

    diffprivlib's own forest cuts the records by position, so that one more moves many, and seeds each tree's noise with 31 bits.
    """
    draw = secrets.SystemRandom()
    part = np.array([draw.randrange(count) for _ in labels], dtype=np.int64)
    for number in range(count):
        yield inputs[part == number], labels[part == number]


def require_diffprivlib() -> ModuleType:
    """diffprivlib, or MissingData: it is an extra, and knows scikit-learn up to 1.7."""
    try:
        import diffprivlib.models
    except ImportError as error:
        raise MissingData(
            "the baselines dp_logistic_regression, dp_naive_bayes and dp_forest need diffprivlib and scikit-learn below 1.8: "
            "pip install 'labelwall[compare]'."
        ) from error
    return diffprivlib  # type: ignore[no-any-return]


def with_every_class(
    rows: np.ndarray, labels: np.ndarray, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """The records and one public row of zeros for each class, so that the classes a model knows are not the records'.

    A row of zeros adds a constant to the logistic loss, and one for each class does not change which class leads in a leaf.
    """
    return np.vstack([rows, np.zeros((num_classes, rows.shape[1]))]), np.append(
        labels, np.arange(num_classes)
    )


def _unit_rows(inputs: np.ndarray) -> np.ndarray:
    """float64 [n, d + 1]: with a column of ones, scaled so that no row is longer than 1."""
    return np.column_stack([inputs, np.ones(len(inputs))]) / np.sqrt(inputs.shape[1] + 1)


def _as_they_are(inputs: np.ndarray) -> np.ndarray:
    return inputs


@contextmanager
def _strict(library: ModuleType) -> Iterator[None]:
    """diffprivlib's warning that it reads bounds or classes from the records, as an error."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # scikit-learn's and scipy's deprecations; convergence, which is the noise's business
        warnings.simplefilter("error", library.utils.PrivacyLeakWarning)
        try:
            yield
        except library.utils.PrivacyLeakWarning:
            raise LabelwallError(
                "diffprivlib would have read bounds or classes from the records; nothing was kept."
            ) from None


@contextmanager
def _fresh_numpy_state() -> Iterator[None]:
    """Random splits come from numpy's global generator, which a student's training may have seeded with a public number."""
    state = np.random.get_state()
    np.random.seed()
    try:
        yield
    finally:
        np.random.set_state(state)
