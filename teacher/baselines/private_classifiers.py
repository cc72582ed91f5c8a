"""Logistic regression, naive Bayes and random trees from diffprivlib, as in DMKD17's Figure 15.

Baselines for comparisons: their epsilon is diffprivlib's claim for ideal noise in place of its
floating point numbers, and their models are not for release. docs/methods.md ("Baselines") states
what the claim covers, by our reading of diffprivlib 0.6.6. Bounds and classes are public: rows are
quantised features in -1..1 and labels 0..c-1. Noise is the operating system's.

*Logistic regression* is objective perturbation (Chaudhuri, Monteleoni, Sarwate 2011, Theorem 9).
The proof needs a penalty on every weight, which diffprivlib's intercept lacks, and diffprivlib
takes the loss' curvature for rows of norm R as R/4 where it is R^2/4. Both agree with the proof at
R = 1 without an intercept, so rows are (x, 1) / sqrt(d + 1), the constant a column. The number of
rows cancels from the objective, an added record moves the gradient half as far as a replaced one,
and the Jacobian once instead of twice. The proof is about the exact minimiser; L-BFGS stops at a
gradient of 1e-10 a row, at its own tolerance or after 10,000 steps.

*Gaussian naive Bayes* spends a third each on class counts, sums and sums of squares. Its noisy
counts are made to add up to the number of rows. A record that changes its class moves two counts by
1, two sums by at most 1 (their noise is for 2), and two sums of squares.

*Trees*: splits are random, a leaf's class is by permute-and-flip. The class of an empty leaf comes
from numpy's generator, which is not cryptographic: whoever rebuilds its state from the published
thresholds sees which leaves are empty. diffprivlib's own RandomForestClassifier cuts the records by
position, so one more moves others to another tree, and seeds each tree with 31 bits from which both
the published thresholds and the noise come, so trying them all removes the noise. Here the forest
is diffprivlib's single trees on disjoint records, each of which goes to a tree by itself.

*Noise* is in floating point: sums of four uniforms' logarithms against reconstruction (Holohan and
Braghin 2021), a geometric law by inversion of 53 bits, Python's gamma and normal numbers.
"""

import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...wall.errors import LabelwallError, extra
from .baseline_settings import DpForest, DpLogisticRegression, DpNaiveBayes, PrivateClassification

BOUNDS: tuple[float, float] | None = (-1.0, 1.0)  # of every feature, by quantisation
CLAIMS = {
    "dp_logistic_regression": "diffprivlib's, for one record replaced",
    "dp_naive_bayes": "diffprivlib's, for one record replaced; 5/3 of it by our reading where that "
    "changes its class",
    "dp_forest": "diffprivlib's, for one record added or removed",
}


@dataclass(frozen=True)
class PrivateClassifier:
    """Fitted ``models``, which vote; ``epsilon``: pure, by diffprivlib; ``claim``: for whom."""

    models: tuple[Any, ...] = field(repr=False)
    prepare: Callable[[np.ndarray], np.ndarray] = field(repr=False)
    epsilon: float
    claim: str

    def probabilities(self, inputs: ArrayLike) -> np.ndarray:
        """Probabilities of the classes of [n, d] inputs in -1..1, float64 [n, classes]; trees have
        shares of their votes.
        """
        rows = self.prepare(np.asarray(inputs, dtype=np.float64))
        said: np.ndarray = sum(model.predict_proba(rows) for model in self.models)
        return said / len(self.models)

    def predict(self, inputs: ArrayLike) -> np.ndarray:
        """Classes of the inputs: int64 [n], ties to the lowest."""
        return self.probabilities(inputs).argmax(axis=1)


def fit_privately(
    config: PrivateClassification,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    num_classes: int,
    epsilon: float,
) -> PrivateClassifier:
    """Fit on PRIVATE ``inputs`` (float64 [n, d] in -1..1) and ``labels`` (int64 [n]).

    There is no seed: every fit draws fresh noise. Raises MissingData without diffprivlib, and
    LabelwallError where it would read a bound from the records.
    """
    library = require_diffprivlib()
    estimator, settings, prepare, count = _recipe(config, library.models, num_classes)
    models = []
    with _strict(library), _fresh_numpy_state():
        for rows, row_labels in _parts(count, prepare(inputs), labels):
            accountant = library.BudgetAccountant(epsilon, 0)
            model = estimator(epsilon=epsilon, accountant=accountant, **settings)
            models.append(model.fit(*with_every_class(rows, row_labels, num_classes)))
    # The trees have disjoint records, so their epsilons do not add up.
    spent = max(float(model.accountant.total()[0]) for model in models)
    return PrivateClassifier(
        models=tuple(models),
        prepare=prepare,
        epsilon=spent,
        claim=CLAIMS[config.kind],
    )


def _recipe(
    config: PrivateClassification, models: ModuleType, num_classes: int
) -> tuple[Any, dict[str, Any], Callable[[np.ndarray], np.ndarray], int]:
    """(diffprivlib's class, its settings, what prepares rows, number of models).

    Without random_state its noise is the system's.
    """
    match config:
        case DpNaiveBayes():
            return models.GaussianNB, {"bounds": BOUNDS}, np.asarray, 1
        case DpForest():
            classes = list(range(num_classes))
            tree = {"max_depth": config.depth, "bounds": BOUNDS, "classes": classes}
            return models.DecisionTreeClassifier, tree, np.asarray, config.trees
        case DpLogisticRegression():
            linear = {"data_norm": 1.0, "C": 1 / config.penalty, "fit_intercept": False}
            exact = linear | {"tol": 1e-10, "max_iter": 10_000}
            return models.LogisticRegression, exact, _unit_rows, 1


def _parts(
    count: int, inputs: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Disjoint records for ``count`` trees. Each record's tree is drawn independently."""
    system = secrets.SystemRandom()
    tree = np.array([system.randrange(count) for _ in labels], dtype=np.int64)
    for number in range(count):
        yield inputs[tree == number], labels[tree == number]


def require_diffprivlib() -> ModuleType:
    """Import diffprivlib, an extra that supports scikit-learn up to 1.7. Raises MissingData."""
    with extra("compare", "dp_logistic_regression, dp_naive_bayes and dp_forest"):
        import diffprivlib.models
    return diffprivlib  # type: ignore[no-any-return]


def with_every_class(
    rows: np.ndarray, labels: np.ndarray, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Append one public row of zeros per class, so that a model's classes do not depend on records.

    A row of zeros adds a constant to the logistic loss, and one per class does not change which
    class leads in a leaf.
    """
    zeros = np.zeros((num_classes, rows.shape[1]))
    return np.vstack([rows, zeros]), np.append(labels, np.arange(num_classes))


def _unit_rows(inputs: np.ndarray) -> np.ndarray:
    """float64 [n, d + 1], with a column of ones; no norm exceeds 1."""
    return np.column_stack([inputs, np.ones(len(inputs))]) / np.sqrt(inputs.shape[1] + 1)


@contextmanager
def _strict(library: ModuleType) -> Iterator[None]:
    """Raise LabelwallError where diffprivlib warns that it reads bounds or classes from records."""
    with warnings.catch_warnings():
        # Deprecations in scikit-learn and scipy; convergence, which depends on the noise.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", library.utils.PrivacyLeakWarning)
        try:
            yield
        except library.utils.PrivacyLeakWarning:
            raise LabelwallError(
                "diffprivlib would have read bounds or classes from the records; nothing was kept."
            ) from None


@contextmanager
def _fresh_numpy_state() -> Iterator[None]:
    """Reseed numpy's global generator, which draws random splits, from the operating system.

    Training of a student may have seeded it with a public number.
    """
    state = np.random.get_state()
    np.random.seed()
    try:
        yield
    finally:
        np.random.set_state(state)
