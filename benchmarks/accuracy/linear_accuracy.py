r"""Accuracy of private_linear by epsilon, on features that shared/image_features.py cached.

    python benchmarks/accuracy/linear_accuracy.py --cache FEATURES
    python benchmarks/accuracy/linear_accuracy.py --table penbased --epsilons 0.1 0.5 1 2 --seeds 7

Train rows are private, the first half of the test rows public (without labels), the rest is the
test split. `--attributes` takes Fashion-MNIST's attributes for its classes, on ATTRIBUTE_AXES axes
and in the mechanism's own number of steps; a share of right labels is the mean over them.

For classes axes and steps are those that `labelwall run --private ...` would choose
(experiment/config/own.py), draws are the mechanism's own. `--records` and `--public` keep the first
rows alone. `--beside` puts other features of the same rows beside them, each kind divided by its
deviation; rows that only one of them has are left out. `--table` takes a table of KEEL instead of a
cache (benchmarks/shared/tables.py says how to install them): 70% of its rows are train rows.

The peer is Linear NoisySGD (Tramer and Boneh 2021) on the same features, centred, as unit vectors,
with all records in every batch, its best setting at small budgets. Its steps and its learning rate
are the best of a grid by the labels of the public rows. In its favour: private_linear does not see
these labels, and the peer's noise is ideal, its price exact.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.benchmarks.shared.tables import keel
from labelwall.experiment.config.own import Findings, default_mechanism
from labelwall.student.asking.features import linear_power, principal_axes
from labelwall.student.linear.linear_model import Says, fit, with_neighbours
from labelwall.student.linear.measure import FitSettings
from labelwall.teacher.accounting.conversion import gaussian_delta
from labelwall.teacher.mechanisms.base import Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.sums import (
    SUM,
    LinearSums,
    PrivateLinear,
    PrivateLinearAttributes,
)
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.datasets.sources import CLOTHES_ATTRIBUTES, clothes_codes
from labelwall.wall.features.embedder import RAW_UNIT, quantise
from labelwall.wall.label_kinds import numbered_space
from labelwall.wall.matrices import MAX_ENTRY

DELTA = 1e-5
COLUMNS = ("data", "private rows", "epsilon", "private_linear", "Linear NoisySGD")
CLIP = 0.1  # of a record's gradient
STEPS, RATES = (10, 40, 100), (1.0, 4.0, 16.0, 64.0)  # of the peer's grid
BLOCK = 4096  # rows that the peer looks at together
ATTRIBUTE_AXES = 64
Rows = tuple[np.ndarray, np.ndarray]


def rows_of(cache: Path, split: str) -> Rows:
    """(float [n, d], labels int64 [n]) of all cached rows of a split."""
    chunks = [np.load(path) for path in sorted(cache.glob(f"{split}_*.npz"))]
    features, labels = ([chunk[name] for chunk in chunks] for name in ("features", "labels"))
    return np.concatenate(features), np.concatenate(labels)


def accuracy(mechanism: LinearSums, private: Rows, public: np.ndarray, test: Rows) -> float:
    """Share of test rows' labels that are right after one round. Labels are codes, int64 [n]."""
    assert mechanism.axes is not None
    assert mechanism.noise_multiplier is not None
    center, axes = principal_axes(public, mechanism.axes, linear_power)
    length = max(MAX_ENTRY, RAW_UNIT * math.sqrt(axes.shape[1]))

    def embedded(x: np.ndarray) -> np.ndarray:
        return quantise(x, tuple(center.tolist()), length, axes.astype(np.float64))[0]

    index = ExactIndex(embedded(private[0]), np.arange(len(private[0])))
    attributes = mechanism.label_space == "attributes"
    outputs = len(CLOTHES_ATTRIBUTES) if attributes else int(private[1].max()) + 1

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        voters = Voters(index, private[1], outputs, weights[np.newaxis], length)
        return weights, mechanism.draw(SUM, voters, [f"{step:064x}"], SystemEntropy())[0]

    kind = mechanism.label_space
    how = FitSettings(
        kind, outputs, length, mechanism.noise_multiplier, mechanism.clip, mechanism.steps
    )
    model = fit(ask, embedded(public), how)
    assert model is not None
    says: Says = model.says
    if kind == "class":
        says = with_neighbours(says, embedded(public))
    labels, _ = model.to_labels(says(embedded(test[0])), 0.0)
    return float((labels == numbered_space(kind, outputs).expand(test[1])).mean())


@dataclass(frozen=True)
class Descent:
    """Full-batch noisy gradient descent: ``steps`` with momentum 0.9, per-record clipping."""

    steps: int
    rate: float
    seed: int = 0


def descend(descents: Sequence[Descent], private: Rows, epsilon: float) -> np.ndarray:
    """Weights float32 [d, descents, classes] at (epsilon, DELTA) for one record more or less.

    All have the same number of steps and go side by side, so that a step reads the rows once.
    ``private``: float32 unit vectors [n, d] with labels.
    """
    x, labels = private
    classes, (steps,) = int(labels.max()) + 1, {descent.steps for descent in descents}
    scale = CLIP * math.sqrt(steps) / gaussian_mu(epsilon)
    draws = [np.random.default_rng(descent.seed) for descent in descents]
    rates = np.repeat(np.array([d.rate for d in descents], dtype=np.float32), classes)
    weights = np.zeros((x.shape[1], len(rates)), dtype=np.float32)
    velocity = np.zeros_like(weights)
    for _ in range(steps):
        gradient = np.zeros_like(weights)
        for start in range(0, len(x), BLOCK):
            part = x[start : start + BLOCK]
            residuals = softmax((part @ weights).reshape(len(part), -1, classes), axis=2)
            residuals[np.arange(len(part)), :, labels[start : start + BLOCK]] -= 1
            lengths = np.linalg.norm(residuals, axis=2, keepdims=True)  # of gradients: |x| = 1
            residuals *= np.minimum(1, CLIP / np.maximum(lengths, 1e-9))
            gradient += part.T @ residuals.reshape(len(part), -1)
        noise = [random.normal(0, scale, (x.shape[1], classes)) for random in draws]
        gradient += np.concatenate(noise, axis=1).astype(np.float32)
        velocity = 0.9 * velocity + gradient / (CLIP * len(x))
        weights -= rates * velocity
    return weights.reshape(len(weights), -1, classes)


def shares(weights: np.ndarray, rows: Rows) -> list[float]:
    """Of rows that are right, for each descent's weights."""
    found = np.einsum("nd,dsc->nsc", rows[0], weights, optimize=True).argmax(axis=2)
    return [float(share) for share in (found == rows[1][:, np.newaxis]).mean(axis=0)]


def gaussian_mu(epsilon: float) -> float:
    """The distance of two unit Gaussians that are (epsilon, DELTA)-indistinguishable."""
    return float(brentq(lambda mu: gaussian_delta(mu, epsilon) - DELTA, 1e-4, 10.0))


def peer(
    private: Rows, public: Rows, test: Rows, epsilon: float, seeds: int
) -> tuple[Descent, list[float]]:
    """The best descent on the public rows with the first seed, and its accuracy by seed."""
    scored: list[tuple[float, float, Descent]] = []
    for steps in STEPS:
        descents = [Descent(steps, rate) for rate in RATES]
        weights = descend(descents, private, epsilon)
        scored += zip(shares(weights, public), shares(weights, test), descents, strict=True)
    _, first, best = max(scored, key=lambda entry: entry[0])
    others = [replace(best, seed=seed) for seed in range(1, seeds)]
    return best, [first, *(shares(descend(others, private, epsilon), test) if others else [])]


def unit(rows: Rows, public: np.ndarray) -> Rows:
    """The rows as float32 vectors of length 1, centred by the public rows' mean."""
    x = (rows[0] - public.mean(axis=0)).astype(np.float32)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9), rows[1]


def spread(found: Sequence[float]) -> str:
    """The median and the range, in percent."""
    low, middle, high = (100 * f(found) for f in (min, statistics.median, max))
    return f"{middle:.1f}% ({low:.1f} to {high:.1f})"


def chosen(epsilon: float, records: int, public: int, classes: int) -> LinearSums:
    """The mechanism by default for so many records, with its noise; for attributes: 0 classes."""
    mechanism: LinearSums = PrivateLinearAttributes(axes=ATTRIBUTE_AXES)
    if classes:
        names = tuple(map(str, range(classes)))
        fields = default_mechanism(Findings("vectors", names, public), records, epsilon, DELTA, 1)
        mechanism = PrivateLinear(**fields)  # type: ignore[arg-type]
    (solved,) = calibrate([Priced(mechanism, mechanism.steps, mechanism.steps)], epsilon, DELTA)
    return solved


def beside(kinds: Sequence[Rows], spreads: Sequence[float]) -> Rows:
    """Kinds of features of the same first rows side by side, each over its spread."""
    count = min(len(labels) for _, labels in kinds)
    columns = [x[:count] / spread for (x, _), spread in zip(kinds, spreads, strict=True)]
    return np.concatenate(columns, axis=1), kinds[0][1][:count]


def table(name: str) -> tuple[Rows, Rows]:
    """Train and test rows of a KEEL table, in a fixed shuffle.

    Columns have the mean and the deviation of the public rows, and are clipped to 5.
    """
    x, labels = keel(name)
    order = np.random.default_rng(3).permutation(len(x))
    train = int(0.7 * len(x))
    public = x[order[train : (train + len(x)) // 2]]
    scaled = np.clip((x - public.mean(axis=0)) / (public.std(axis=0) + 1e-6), -5, 5)
    parts = [(scaled[rows], labels[rows]) for rows in (order[:train], order[train:])]
    return parts[0], parts[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--cache", type=Path, help="a folder of features")
    source.add_argument("--table", help="the name of a KEEL table")
    parser.add_argument("--beside", type=Path, help="a cache of other features of the same rows")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.05, 0.1, 0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=3, help="draws of the noise, a count")
    parser.add_argument("--records", type=int, help="private rows; all by default")
    parser.add_argument("--public", type=int, help="public rows; half of the test rows by default")
    parser.add_argument("--attributes", action="store_true", help="Fashion-MNIST's attributes")
    parser.add_argument("--alone", action="store_true", help="without the peer")
    add_record(parser)
    options = parser.parse_args()
    if options.table:
        kinds, caches = [table(options.table)], []
    else:
        caches = [options.cache, *([options.beside] if options.beside else [])]
        kinds = [(rows_of(cache, "train"), rows_of(cache, "test")) for cache in caches]
    tests = [rows for _, rows in kinds]
    spreads = [float(np.sqrt(x[: len(x) // 2].var(axis=0).sum())) for x, _ in tests]
    x, labels = beside([rows for rows, _ in kinds], spreads)
    classes = 0 if options.attributes else int(labels.max()) + 1
    private = x[: options.records], labels[: options.records]
    held, truth = beside(tests, spreads)
    if options.attributes:
        private, truth = (private[0], clothes_codes()[private[1]]), clothes_codes()[truth]
    half = len(held) // 2
    labelled, test = (held[:half], truth[:half]), (held[half:], truth[half:])
    public = labelled[0][: options.public]
    print(f"{len(private[0])} private, {len(public)} public, {len(test[0])} test rows")
    print("| epsilon | axes, steps | private_linear | steps, rate | Linear NoisySGD |")
    print("|---|---|---|---|---|")
    units = unit(private, public), unit(labelled, public), unit(test, public)
    data, rows = options.table or " beside ".join(cache.name for cache in caches), []
    for epsilon in options.epsilons:
        used = chosen(epsilon, len(private[0]), len(public), classes)
        ours = [accuracy(used, private, public, test) for _ in range(options.seeds)]
        print(f"| {epsilon:g} | {used.axes}, {used.steps} | {spread(ours)} |", end="", flush=True)
        rows.append([data, len(private[0]), epsilon, percent(ours), None])
        if options.alone or not classes:
            print(flush=True)
            continue
        best, theirs = peer(*units, epsilon, options.seeds)
        rows[-1][-1] = percent(theirs)
        print(f" {best.steps}, {best.rate:g} | {spread(theirs)} |", flush=True)
    if options.record:
        name = "linear_attributes" if options.attributes else "linear_accuracy"
        record(name, COLUMNS, rows, keys=3, seeds="fresh noise")


if __name__ == "__main__":
    main()
