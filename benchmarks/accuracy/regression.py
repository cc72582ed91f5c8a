"""Prices of diamonds: errors of noisy mean, median and linear regression by epsilon.

    pip install --no-deps plotnine==0.15.9     # ships the table; nothing else of it is used
    python benchmarks/accuracy/regression.py            # errors of answers, no student
    python benchmarks/accuracy/regression.py --export diamonds.npz
    labelwall compare --config configs/compare_diamonds.yaml

Errors of kNN without noise are beside them. 53,940 diamonds (ggplot2's table): a row is weight,
colour, clarity and cut, its value the logarithm of the price to base 2, so that an error of 1 is a
factor of 2. 40,000 rows are private, 10,000 public, the rest for tests, along a constant shuffle.
The features' weights and the bounds are declared by hand. Mechanisms are asked as a teacher asks
them, with fresh samples and noise. The regression (private_linear_value) has the defaults of its
mechanism, the noise that the budget asks for, and answers the same queries.
"""

import argparse
import csv
import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from labelwall.benchmarks.shared.record import add_record, record
from labelwall.student.linear.linear_model import fit
from labelwall.student.linear.measure import FitSettings
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.mechanisms.base import Mechanism, Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.sums import SUM, PrivateLinearValue
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian, Regression
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.datasets.folders import constant_order
from labelwall.wall.errors import MissingData
from labelwall.wall.features.embedder import quantise_box
from labelwall.wall.label_kinds import ValueLabels, errors
from labelwall.wall.matrices import MAX_ENTRY
from labelwall.wall.messages import Value

PRIVATE = 40_000
PUBLIC = 10_000
DELTA = 1e-6
QUERIES = 300
COLUMNS = ("answers", "setting", "epsilon", "% answered", "RMSE", "MAE", "R2")
SCALE = ValueLabels(8.0, 15.0)  # $256 to $32,768
CUTS = ("Fair", "Good", "Very Good", "Premium", "Ideal")
# From worst to best.
COLOURS = "JIHGFED"
CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
KNN = 20  # neighbours of the reference without privacy
GAMMA = 0.1
EPSILONS = (0.1, 0.5, 1.0, 2.0)  # of the regression
MEANS = [
    PrivateKnnMean(k=k, sample_rate=GAMMA, sigma_mean=s)
    for k, s in ((400, 15.2), (400, 8.05), (200, 4.31))
]
MEDIANS = [
    PrivateKnnMedian(k=k, sample_rate=GAMMA, epsilon=e)
    for k, e in ((400, 0.131), (200, 0.25), (100, 0.47))
]
SCREENED = PrivateKnnMedian(
    k=200, sample_rate=GAMMA, epsilon=0.25, threshold=140, window=12, sigma_screen=60.0
)


def diamonds() -> tuple[np.ndarray, np.ndarray]:
    """(float32 [n, 4] in -1..1, float64 [n]) in the constant order.

    Raises MissingData without the package.
    """
    found = importlib.util.find_spec("plotnine")
    if found is None or found.origin is None:
        raise MissingData("plotnine is not installed: pip install --no-deps plotnine==0.15.9")
    with (Path(found.origin).parent / "data" / "diamonds.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    x = np.array([_features(row) for row in table], dtype=np.float32)
    y = np.log2([float(row["price"]) for row in table])
    order = constant_order(map(str, range(len(table))))
    return x[order], y[order]


def _features(row: dict[str, str]) -> tuple[float, float, float, float]:
    """Weight counts most, then clarity and colour, as jewellers price them."""
    clarity, colour, cut = (
        CLARITIES.index(row["clarity"]),
        COLOURS.index(row["color"]),
        CUTS.index(row["cut"]),
    )
    return (
        float(np.log2(float(row["carat"]))) / 2.5,
        (clarity / 7 - 0.5),
        (colour / 6 - 0.5) * 0.7,
        (cut / 4 - 0.5) * 0.2,
    )


def export(path: Path) -> None:
    """An npz file for the source `arrays`."""
    x, y = diamonds()
    names, ends = ("private", "public", "test"), [0, PRIVATE, PRIVATE + PUBLIC, len(x)]
    parts = {
        f"{name}_{axis}": rows[a:b]
        for name, a, b in zip(names, ends, ends[1:], strict=False)
        for axis, rows in zip("xy", (x, y), strict=True)
    }
    np.savez(path, **parts)  # type: ignore[arg-type]


def answered(mechanism: Regression, voters: Voters) -> np.ndarray:
    """Released labels of all queries of ``voters``, int64 [q], -1 where none was.

    Goes through the stages as a teacher does.
    """
    entropy, keys = SystemEntropy(), [str(i) for i in range(len(voters.queries))]
    results: list[dict[str, Value]] = [{} for _ in keys]
    for stage in mechanism.stages:
        due = [i for i, known in enumerate(results) if mechanism.next_stage(known) == stage]
        drawn = mechanism.draw(stage, voters.select(due), [keys[i] for i in due], entropy)
        for i, value in zip(due, drawn.tolist(), strict=True):
            results[i][stage] = value
    return np.array([mechanism.outcome(known)[1] for known in results], dtype=np.int64)


def voters_of(repeat: int) -> tuple[Voters, np.ndarray]:
    """(the private rows before QUERIES public ones, those rows' own values, float64 [QUERIES])."""
    x, y = diamonds()
    features, _ = quantise_box(x, (0.0,) * 4, (1.0,) * 4)
    rows = PRIVATE + np.random.default_rng(repeat).permutation(PUBLIC)[:QUERIES]
    index = ExactIndex(features[:PRIVATE], np.arange(PRIVATE))
    return Voters(index, SCALE.steps(y[:PRIVATE]), 1, features[rows], float(MAX_ENTRY)), y[rows]


def measured(repeats: int) -> Iterator[list]:
    """The table, row by row, with the cells of COLUMNS."""
    scenes = [voters_of(repeat) for repeat in range(repeats)]
    reference = []
    for voters, truth in scenes:
        near = voters.index.prefix(voters.queries, KNN)
        reference.append((1.0, errors(SCALE.decode(voters.labels[near]).mean(axis=1), truth)))
    yield _row(f"{KNN} nearest, no privacy", "", None, reference)
    for mechanism in (*MEANS, *MEDIANS, SCREENED):
        found = []
        for voters, truth in scenes:
            labels = answered(mechanism, voters)
            known = labels >= 0
            found.append((float(known.mean()), errors(SCALE.decode(labels[known]), truth[known])))
        is_mean = isinstance(mechanism, PrivateKnnMean)
        noise = f"sigma = {mechanism.sigma_mean}" if is_mean else f"epsilon = {mechanism.epsilon}"
        name = "mean" if is_mean else "median"
        name += ", screened" if mechanism.threshold is not None else ""
        setting = f"k = {mechanism.k}, {noise}"
        yield _row(name, setting, _price(mechanism, QUERIES), found)
    for epsilon in EPSILONS:
        steps = PrivateLinearValue().steps
        (linear,) = calibrate([Priced(PrivateLinearValue(), steps, steps)], epsilon, DELTA)
        scores = [(1.0, errors(fitted(linear, voters), truth)) for voters, truth in scenes]
        setting = f"sigma = {linear.noise_multiplier:.3g}"
        yield _row("linear regression", setting, _price(linear, steps), scores)


def fitted(mechanism: PrivateLinearValue, voters: Voters) -> np.ndarray:
    """Values of all queries of ``voters`` by a regression whose public rows are all of PUBLIC."""
    x, _ = diamonds()
    public, _ = quantise_box(x[PRIVATE : PRIVATE + PUBLIC], (0.0,) * 4, (1.0,) * 4)

    def ask(step: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked = replace(voters, queries=weights[np.newaxis])
        return weights, mechanism.draw(SUM, asked, [f"{step:064x}"], SystemEntropy())[0]

    noise = mechanism.require("noise_multiplier")
    how = FitSettings("value", 1, voters.length, noise, mechanism.clip, mechanism.steps)
    model = fit(ask, public, how)
    assert model is not None
    labels, _ = model.to_labels(model.says(voters.queries), 0.0)
    return SCALE.decode(labels)


def _price(mechanism: Mechanism, asked: int) -> float:
    slot = Slot(mechanism.fields(), mechanism.releases(asked, asked))
    return round_up(certified_epsilon(Plan(99.0, DELTA, (slot,))))


def _row(
    name: str,
    setting: str,
    epsilon: float | None,
    found: list[tuple[float, dict[str, float] | None]],
) -> list:
    """Means over the repeats."""
    scores = [
        np.mean([scores[error] for _, scores in found if scores is not None])
        for error in ("rmse", "mae", "r2")
    ]
    share = round(100 * float(np.mean([share for share, _ in found])), 1)
    return [name, setting, epsilon, share, *(round(float(score), 3) for score in scores)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--export", type=Path, help="npz file to write instead")
    parser.add_argument(
        "--repeats", type=int, default=5, help="sets of queries, each with fresh draws, a count"
    )
    add_record(parser)
    options = parser.parse_args()
    if options.export is not None:
        export(options.export)
        return
    rows = []
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for row in measured(options.repeats):
        rows.append(row)
        print(f"| {' | '.join('' if cell is None else str(cell) for cell in row)} |", flush=True)
    if options.record:
        record("diamonds", COLUMNS, rows, keys=3, seeds="fresh noise")


if __name__ == "__main__":
    main()
