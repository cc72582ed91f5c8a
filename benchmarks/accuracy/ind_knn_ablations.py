"""Ind-KNN's accuracy by number of queries, reused answers, threshold, records, hash tables.

    python benchmarks/accuracy/ind_knn_ablations.py --cache features/ --results kept/ --only queries

UAI23's Figures 1b and 4 and the supplement's Figure 1. Threshold and noise are chosen by
ind_knn_choice.py, on labelled public rows; each point is the median over query sets drawn from
the public rows that nothing was chosen on. `records` replicates the private ones (delta stays 1e-5,
where the paper has 1 / records). Writes docs/figures/ind_knn_PART.svg.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from labelwall.benchmarks.accuracy.ind_knn_accuracy import (
    Exam,
    Series,
    ask_ind_knn,
    draw_medians,
    spread,
)
from labelwall.benchmarks.shared.ind_knn_choice import (
    KERNELS,
    Split,
    choose_ind_knn,
    described,
    feature_options,
    read_splits,
)
from labelwall.benchmarks.shared.kept import kept
from labelwall.experiment.plan.candidates import threshold_at
from labelwall.teacher.mechanisms.ind_knn import IndKnn

LEVELS = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4)  # of the cosine: thresholds tried
COPIES = (1, 2, 4, 6, 8)  # of the private records
TABLES = (10, 20, 30)


@dataclass(frozen=True)
class Setting:
    """Private rows, the public rows of the choice, those of the questions, and the options."""

    private: Split = field(repr=False)
    validation: Split = field(repr=False)
    pool: Split = field(repr=False)
    length: float
    options: argparse.Namespace

    def chosen(self, asked: int, epsilon: float, copies: int = 1) -> IndKnn:
        """By rehearsals on public rows that represent ``copies`` copies of the private ones."""
        options = self.options
        rows = copies * len(self.private.labels)

        def choose() -> dict[str, object]:
            goal = self.validation, rows, [epsilon], asked
            (choice,) = choose_ind_knn(KERNELS, *goal)
            return choice.mechanism.fields()

        return IndKnn(**kept(options.results, f"choice {asked} {epsilon:g} {rows}", choose))

    def right(
        self, name: str, mechanism: IndKnn, asked: int, epsilon: float, copies: int = 1
    ) -> list[float]:
        """Accuracy on each query set, drawn with a public seed and without repetition in a set."""

        def measure() -> list[float]:
            rng = np.random.default_rng(self.options.seed)
            drawn = [
                rng.permutation(len(self.pool.labels))[:asked] for _ in range(self.options.sets)
            ]
            sets = [Split(self.pool.features[rows], self.pool.labels[rows]) for rows in drawn]
            private = Split(
                np.tile(self.private.features, (copies, 1)), np.tile(self.private.labels, copies)
            )
            return Exam.of(private, sets, self.length).right(
                lambda voters: ask_ind_knn(mechanism, epsilon, voters)
            )

        found: list[float] = kept(self.options.results, name, measure)
        fields = f"{described(mechanism)}, {mechanism.sigma_label}, {mechanism.sigma_count}"
        print(f"| {name} | {fields} | {spread(found)} |", flush=True)
        return found


def queries(setting: Setting) -> None:
    """UAI23 Figure 1b: accuracy by number of queries, at epsilon 1."""
    counts = setting.options.asked
    shares = [
        setting.right(f"queries {asked}", setting.chosen(asked, 1.0), asked, 1.0)
        for asked in counts
    ]
    draw(setting, "queries", {"Ind-KNN, epsilon 1": (counts, shares)}, "queries answered")


def outlasted(setting: Setting) -> None:
    """More queries than planned for at epsilon 1, with and without reused answers."""
    planned, *longer = setting.options.asked[1:]
    mechanism, series = setting.chosen(planned, 1.0), {}
    for name, reuse in (("", False), (", reused", True)):
        used = replace(mechanism, reuse=reuse)
        shares = [
            setting.right(f"for {planned}, asked {asked}{name}", used, asked, 1.0)
            for asked in longer
        ]
        series[f"planned for {planned} queries{name}"] = longer, shares
    draw(setting, "outlasted", series, "queries answered")


def threshold(setting: Setting) -> None:
    """Accuracy by threshold, with the other fields as chosen, at epsilon 0.5 and 2."""
    asked, series = setting.options.asked[0], {}
    for epsilon in (0.5, 2.0):
        chosen = setting.chosen(asked, epsilon)
        tried = [replace(chosen, threshold=threshold_at(chosen, level)) for level in LEVELS]
        shares = [
            setting.right(f"threshold {level:g} epsilon {epsilon:g}", mechanism, asked, epsilon)
            for level, mechanism in zip(LEVELS, tried, strict=True)
        ]
        series[f"epsilon {epsilon:g}"] = LEVELS, shares
    draw(setting, "threshold", series, "cosine at the threshold")


def records(setting: Setting) -> None:
    """Supplement, Figure 1: accuracy by number of private records, replicated, at epsilon 1."""
    asked, rows = setting.options.asked[-1], len(setting.private.labels)
    shares = [
        setting.right(f"records {n * rows}", setting.chosen(asked, 1.0, n), asked, 1.0, n)
        for n in COPIES
    ]
    series = {"Ind-KNN, epsilon 1": ([copies * rows for copies in COPIES], shares)}
    draw(setting, "records", series, "private records")


def tables(setting: Setting) -> None:
    """UAI23 Figure 4: hashed by 10, 20 and 30 tables of 8 bits, and exact, by epsilon."""
    asked, epsilons = setting.options.asked[0], (0.5, 1.0, 2.0)
    chosen = {epsilon: setting.chosen(asked, epsilon) for epsilon in epsilons}
    series = {}
    for count in (*TABLES, 0):
        name = f"{count} tables" if count else "exact"
        shares = [
            setting.right(
                f"{name} epsilon {epsilon:g}",
                replace(chosen[epsilon], tables=count),
                asked,
                epsilon,
            )
            for epsilon in epsilons
        ]
        series[name] = epsilons, shares
    draw(setting, "tables", series, "epsilon")


def draw(setting: Setting, name: str, series: Series, x: str) -> None:
    draw_medians(setting.options.out / f"ind_knn_{name}.svg", series, x)


PARTS: dict[str, Callable[[Setting], None]] = {
    part.__name__: part for part in (queries, outlasted, threshold, records, tables)
}


def main() -> None:
    parser = feature_options(__doc__, Path(), "folder of the pictures")
    parser.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS))
    parser.add_argument(
        "--pool", type=int, default=5000, help="public rows that query sets are drawn from"
    )
    parser.add_argument(
        "--asked",
        type=int,
        nargs="+",
        default=[500, 1000, 2000, 3000, 5000],
        help="queries of a set, ascending",
    )
    parser.add_argument("--sets", type=int, default=3)
    options = parser.parse_args()
    private, validation, pool, length = read_splits(options, options.pool)
    print("| what | kernel, threshold, sigma_label, sigma_count | % right, median (range) |")
    print("|---|---|---|")
    for name in options.only:
        PARTS[name](Setting(private, validation, pool, length, options))


if __name__ == "__main__":
    main()
