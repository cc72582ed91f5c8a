r"""Every method's labels and student on the same features, by budget.

    python benchmarks/methods.py --cache FEATURES --scratch FOLDER --out methods.jsonl
    python benchmarks/methods.py --table --out methods.jsonl

FEATURES has one folder for each set (benchmarks/image_features.py): cifar_stages, fashion_hog,
fashion_net, mnist_hog, texts. Train rows are private, half of the test rows public, the other half
is the test split; all on the public rows' 256 first principal axes.

Each cell is a run with a ledger: labels for the public rows, then a small network trained on them.
Settings of reverse_knn, private_knn and ind_knn are what `mechanism: auto` finds for that method
alone, by the public rows' labels (votes: LEAST_RIGHT of them right, where that is affordable);
private_linear has those of own data without labels; GNMAX has 250 linear classifiers and as many
queries as keep its noise below NOISE votes, at least FEWEST. A line of JSON is appended for each
cell; cells that are there are not repeated.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from linear_accuracy import rows_of
from regret_data import DELTA, narrowed

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.groups import BudgetConfig, CapsConfig, RoundConfig
from labelwall.experiment.config.own import Findings, default_mechanism
from labelwall.experiment.plan.planner import Goal
from labelwall.experiment.plan.search import planned_config, search
from labelwall.experiment.run.console import Console
from labelwall.experiment.run.rounds import run
from labelwall.student.config import StudentConfig
from labelwall.teacher.mechanisms.registry import Auto, mechanism_class
from labelwall.teacher.mechanisms.sums import PrivateLinear
from labelwall.teacher.mechanisms.votes import Gnmax
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.wall.datasets.config import DataConfig
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.errors import BudgetRefused
from labelwall.wall.progress import no_progress

SETS = {
    "cifar_stages": "CIFAR-10, three depths",
    "fashion_hog": "Fashion-MNIST, HOG",
    "fashion_net": "Fashion-MNIST, network",
    "mnist_hog": "MNIST, HOG",
    "texts": "texts",
}
EPSILONS = (0.1, 1.0, 0.05, 2.0, 0.5)  # in the order of runs
METHODS = ("private_linear", "reverse_knn", "private_knn", "gnmax", "ind_knn")
QUERIES, FEWEST, NOISE = (2000, 1000, 600, 300, 150, 80, 40, 20), 10, 50.0  # of GNMAX
LEAST_RIGHT = {"private_knn": 0.6, "ind_knn": 0.6}  # share of labels; more of them teach less
STUDENT = StudentConfig(  # that of configs/compare_cifar10_features.yaml
    "mlp", "supervised", "cross_entropy", augment="none", steps=600
)


def arrays(cache: Path, scratch: Path, name: str) -> Path:
    """An npz file with the rows of a set, written once."""
    path = scratch / f"{name}.npz"
    if not path.exists():
        private, (x, y) = rows_of(cache / name, "train"), rows_of(cache / name, "test")
        half = len(x) // 2
        parts = narrowed(private, (x[:half], y[:half]), (x[half:], y[half:]))
        named = zip(("private", "public", "test"), parts, strict=True)
        fields = {
            f"{split}_{axis}": rows[i] for split, rows in named for i, axis in enumerate("xy")
        }
        scratch.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part.npz")
        np.savez(unfinished, **fields)
        unfinished.rename(path)
    return path


def setting(path: Path, method: str, epsilon: float) -> Config:
    """A run of one round by a method at a budget. Raises BudgetRefused where it can not be."""
    with np.load(path) as stored:
        records, classes = len(stored["private_y"]), int(stored["private_y"].max()) + 1
    names = [str(number) for number in range(classes)]
    config = Config(
        DataConfig("arrays", path=str(path), classes=names),
        [RoundConfig()],
        budget=BudgetConfig(epsilon, DELTA),
        mechanism=Auto(),
        student=STUDENT,
        threads=1,
        workers=1,
        expected_records=records,
    )
    task, public = describe(config.data), read_public(config.data)
    rows = len(public.inputs)
    if method == "private_linear":
        facts = Findings("vectors", tuple(names), rows)
        fields = default_mechanism(facts, records, epsilon, DELTA, 1)
        mechanism = PrivateLinear(**fields)  # type: ignore[arg-type]
        return replace(config, mechanism=mechanism, features="raw")
    if method == "gnmax":
        return replace(queried(config, rows), features="raw")
    mechanism = mechanism_class(method)()
    for least in (LEAST_RIGHT.get(method, 0.0), 0.0):
        goal = Goal(epsilon, DELTA, records, rows, 1, least)
        try:
            found = search(config, task, public, goal, [mechanism], no_progress)
        except BudgetRefused:
            if not least:
                raise
        else:
            break
    return planned_config(config, found.chosen)


def queried(config: Config, rows: int) -> Config:
    """GNMAX with the most queries whose noise is small enough."""
    for asked in (*(count for count in QUERIES if count <= rows), FEWEST):
        asking = replace(
            config, mechanism=Gnmax(), rounds=[RoundConfig(asked)], caps=CapsConfig(asked, asked)
        )
        if asked == FEWEST or asking.solved().mechanism.require("sigma_vote") <= NOISE:
            break
    return asking


def measure(config: Config, seed: int) -> dict[str, object]:
    """A run's figures; shares in 0..1."""
    with tempfile.TemporaryDirectory() as folder:
        summary = run(
            replace(config, seed=seed),
            Path(folder) / "run",
            entropy=SystemEntropy(),
            console=Console(quiet=True),
        )
        figures = json.loads((Path(folder) / "run" / "round_1" / "metrics.json").read_text())
    return {
        "answered": figures["answered"],
        "labels": figures["label_accuracy"],
        "student": figures["student_accuracy"],
        "epsilon": summary["epsilon"],
    }


def cells(options: argparse.Namespace) -> None:
    """Run, and append, every cell that is missing."""
    known = [json.loads(line) for line in lines(options.out)]
    done = {(c["set"], c["budget"], c["method"], c["seed"]) for c in known}
    plans: dict[tuple[str, float, str], Config] = {}
    for seed, epsilon, name, method in product(
        range(options.seeds), options.epsilons, options.sets, options.methods
    ):
        if (name, epsilon, method, seed) in done:
            continue
        began = time.process_time()
        key = (name, epsilon, method)
        found: dict[str, object] = {}
        try:
            if key not in plans:
                plans[key] = setting(arrays(options.cache, options.scratch, name), method, epsilon)
            found = measure(plans[key], seed) | {"mechanism": asdict(plans[key].mechanism)}
        except BudgetRefused as error:
            found = {"refused": str(error)}
        cell = {"set": name, "budget": epsilon, "method": method, "seed": seed, **found}
        cell["seconds"] = round(time.process_time() - began)
        with options.out.open("a") as out:
            out.write(json.dumps(cell) + "\n")


def lines(path: Path) -> list[str]:
    """Of a file that may not be there."""
    return path.read_text().splitlines() if path.exists() else []


def table(path: Path) -> str:
    """A row a set and budget: medians over the seeds, labels that are right and the student."""
    found: dict[tuple[str, float, str], list[dict]] = {}
    for cell in map(json.loads, lines(path)):
        found.setdefault((cell["set"], cell["budget"], cell["method"]), []).append(cell)
    rows = [f"| data | epsilon | {' | '.join(METHODS)} |", "|---" * (2 + len(METHODS)) + "|"]
    for name, epsilon in product(SETS, sorted(EPSILONS)):
        entries = [entry(found.get((name, epsilon, method), [])) for method in METHODS]
        rows.append(f"| {SETS[name]} | {epsilon:g} | {' | '.join(entries)} |")
    return "\n".join(rows)


def entry(cells: list[dict]) -> str:
    """Number of labels, how many are right, test accuracy of the student."""
    if not cells:
        return "not run"
    if "refused" in cells[0]:
        return "nothing affordable"
    answered, labels, student = (
        statistics.median(cell[key] or 0 for cell in cells)
        for key in ("answered", "labels", "student")
    )
    return f"{answered:.0f}, {100 * labels:.1f}%, {100 * student:.1f}%"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, help="folder of cached features")
    parser.add_argument("--scratch", type=Path, help="folder for the sets as arrays")
    parser.add_argument("--out", type=Path, required=True, help="lines are appended")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each cell, a count")
    parser.add_argument("--table", action="store_true", help="print the table of --out alone")
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        cells(options)
    print(table(options.out))


if __name__ == "__main__":
    main()
