"""Ind-KNN beside Linear NoisySGD, retrained at every update, while records come and go.

    python benchmarks/accuracy/retraining.py --cache features/ --results kept/

The cache is that of benchmarks/shared/image_features.py.
UAI23, Table 1 and Figure 3. Ind-KNN is a Teacher with its ledger: after every 200 queries some
records leave and as many others join; its epsilon is fixed before the first query. NoisySGD (10
epochs, batch 256, clip 0.1) is trained once for each of several epsilons, each training on the same
data set; the cost of several trainings is PRV composition of all their steps. Its learning rate
is the best for the query set itself, in its favour. Seconds are CPU time. Writes
docs/figures/retraining_*.svg.
"""

import argparse
import tempfile
import time
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.benchmarks.figures.figures import DASHED, PALETTE, SOLID, picture
from labelwall.benchmarks.shared.ind_knn_choice import (
    KERNELS,
    Split,
    choose_ind_knn,
    described,
    feature_options,
    ind_plan,
    read_splits,
)
from labelwall.benchmarks.shared.kept import kept
from labelwall.benchmarks.shared.linear_sgd import CLASSES, DELTA, RATES, train
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.messages import ExtractorSpec, Queries

LONG_STREAM = 100_000  # queries of Figure 3a
INTERVALS = (10, 30, 100, 300, 1000, 3000, 10_000)  # queries between updates, Figure 3a
MOVED = 100  # records that leave, and that join, at an update


def stream(
    private: Split, queries: Split, mechanism: IndKnn, epsilon: float, every: int
) -> dict[str, Any]:
    """Accuracy and CPU seconds of a teacher whose records change after ``every`` queries.

    ``spent``: median share of a record's budget, after each part. For the custodian alone: it is a
    function of private rows.
    """
    rows, dimensions = private.features.shape
    updates = -(-len(queries.labels) // every) - 1
    everybody = Records(private.features.astype(np.float32), private.labels, np.arange(rows))
    spec = ExtractorSpec("raw", (dimensions,), CLASSES)
    first, right, seconds, spent = rows - updates * MOVED, 0, {"answers": 0.0, "updates": 0.0}, []
    with tempfile.TemporaryDirectory() as folder:
        plan = ind_plan(mechanism, epsilon)
        ledger = Ledger.create(
            Path(folder) / "ledger.sqlite", dataset="benchmark", plan=plan, unsafe=False
        )
        teacher = Teacher(
            lambda: part(everybody, 0, first), ledger, Path(folder), CLASSES, SystemEntropy()
        )
        teacher.use_extractor(spec)
        for number, start in enumerate(range(0, len(queries.labels), every)):
            asked = queries.part(start, every)
            began = time.process_time()
            labels = teacher.answer(Queries(asked.features.astype(np.float32))).labels
            seconds["answers"] += time.process_time() - began
            right += int((labels == asked.labels).sum())
            left = ledger.individual_budgets.remaining(
                0, ledger.individual_budgets.serials(everybody.ids[:first])
            )
            spent.append(float(np.median(1 - left / FULL)))
            if number < updates:
                began = time.process_time()
                teacher.remove(everybody.ids[number * MOVED : (number + 1) * MOVED])
                teacher.add(part(everybody, first + number * MOVED, MOVED))
                seconds["updates"] += time.process_time() - began
    shares = {
        "query": seconds["answers"] / len(queries.labels),
        "update": seconds["updates"] / max(1, updates),
    }
    return {"right": right / len(queries.labels), "seconds": shares, "spent": spent}


def part(records: Records, start: int, rows: int) -> Records:
    """``rows`` records from ``start``."""
    at = slice(start, start + rows)
    return Records(records.inputs[at], records.labels[at], records.ids[at])


def together(trained: dict[str, Any], trainings: int) -> float:
    """Epsilon of ``trainings`` trainings with the same noise, by PRV composition of their steps."""
    return composed(trained["noise"], trained["sampling"], int(trained["steps"]) * trainings)


@lru_cache(maxsize=1024)
def composed(noise: float, sampling: float, steps: int) -> float:
    """Epsilon of so many steps."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(noise, sampling, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own orders: PRV decides
        return float(accountant.get_epsilon(DELTA))


def main() -> None:
    parser = feature_options(__doc__, Path(), "folder of the pictures")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--every", type=int, default=200, help="queries between two updates")
    parser.add_argument("--epsilon", type=float, default=2.0, help="of Ind-KNN")
    parser.add_argument(
        "--epsilons",
        type=float,
        nargs="+",
        default=[0.1, 0.5, 1.0],
        help="of one training of NoisySGD",
    )
    parser.add_argument("--epochs", type=int, default=10)
    report(parser.parse_args())


def report(options: argparse.Namespace) -> None:
    """Choose on public rows, ask, train, print, draw."""
    private, validation, queries, _ = read_splits(options, options.queries)

    def choice() -> dict[str, object]:
        asked = [options.epsilon], options.queries
        rows = validation, options.private
        (chosen,) = choose_ind_knn(KERNELS, *rows, *asked)
        return chosen.mechanism.fields()

    mechanism = IndKnn(**kept(options.results, "choice", choice))
    hashed = replace(mechanism, tables=30, bits=8)
    living = {
        name: kept(
            options.results,
            name,
            lambda m=m: stream(private, queries, m, options.epsilon, options.every),
        )
        for name, m in (("Ind-KNN", mechanism), ("Ind-KNN-Hash 30 x 8", hashed))
    }
    sgd = trainings(options, private, queries)
    print(
        f"{options.private:,} private, {options.queries:,} queries, "
        f"an update every {options.every}, delta {DELTA}"
    )
    print(
        f"Ind-KNN: {described(mechanism)}, sigma_label {mechanism.sigma_label}, "
        f"sigma_count {mechanism.sigma_count}"
    )
    print_table(options, living, sgd)
    draw_seconds(options.out / "retraining_seconds.svg", living, sgd)
    draw_epsilon(options.out / "retraining_epsilon.svg", options, living["Ind-KNN"], mechanism, sgd)


def trainings(
    options: argparse.Namespace, private: Split, queries: Split
) -> dict[float, dict[str, Any]]:
    """By epsilon of one training, at the learning rate that is best at the middle one."""

    def trained(epsilon: float, rate: float) -> dict[str, Any]:
        name = f"sgd epsilon {epsilon:g} rate {rate:g}"
        found: dict[str, Any] = kept(
            options.results,
            name,
            lambda: train(private, [queries], epsilon, rate, options.epochs, options.seed),
        )
        return found

    middle = options.epsilons[len(options.epsilons) // 2]
    rate = max(RATES, key=lambda rate: trained(middle, rate)["right"][0])
    print(f"NoisySGD: learning rate {rate:g} of {RATES}, {options.epochs} epochs")
    return {epsilon: trained(epsilon, rate) for epsilon in options.epsilons}


def print_table(
    options: argparse.Namespace, living: dict[str, Any], sgd: dict[float, dict[str, Any]]
) -> None:
    """Accuracy, CPU time a query and epsilon of each method, for one data set and all updates."""
    updates = -(-options.queries // options.every)
    print(
        f"| method | % right | CPU ms a query | with {updates} data sets "
        f"| epsilon | with {updates} data sets |"
    )
    print("|---|---|---|---|---|---|")
    for name, found in living.items():
        query = found["seconds"]["query"]
        update = found["seconds"]["update"] * (updates - 1) / options.queries
        epsilon = f"{options.epsilon:g} | {options.epsilon:g}"
        print(
            f"| {name} | {100 * found['right']:.1f} | {1000 * query:.2f} "
            f"| {1000 * (query + update):.2f} | {epsilon} |"
        )
    for found in sgd.values():
        once, often = (
            (n * found["seconds"] / options.queries + found["predict"]) for n in (1, updates)
        )
        epsilon = f"{together(found, 1):.2f} | {together(found, updates):.2f}"
        print(
            f"| NoisySGD | {100 * found['right'][0]:.1f} | {1000 * once:.2f} "
            f"| {1000 * often:.2f} | {epsilon} |"
        )
    seconds = living["Ind-KNN"]["seconds"]["update"], next(iter(sgd.values()))["seconds"]
    print(
        f"an update: Ind-KNN {seconds[0]:.2f} s (with {2 * MOVED} records), "
        f"NoisySGD {seconds[1]:.1f} s"
    )


def draw_seconds(path: Path, living: dict[str, Any], sgd: dict[float, dict[str, Any]]) -> None:
    """Figure 3a: CPU seconds a query of a long stream, by the number of queries between updates."""
    every = np.array(INTERVALS)
    updates = LONG_STREAM / every
    with picture(path, legend_columns=3) as (axes,):
        for (name, found), color in zip(living.items(), PALETTE, strict=False):
            each = found["seconds"]["query"] + found["seconds"]["update"] * updates / LONG_STREAM
            axes.plot(every, each, color=color, marker="o", label=name)
        found = next(iter(sgd.values()))
        each = found["seconds"] * np.maximum(1, updates) / LONG_STREAM + found["predict"]
        axes.plot(
            every,
            each,
            color=PALETTE[4],
            linestyle=DASHED,
            marker="s",
            label="Linear NoisySGD, trained again",
        )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="queries between two updates",
            ylabel="CPU seconds a query",
        )


def draw_epsilon(
    path: Path,
    options: argparse.Namespace,
    living: dict[str, Any],
    mechanism: IndKnn,
    sgd: dict[float, dict[str, Any]],
) -> None:
    """Figure 3b: epsilon as the stream goes on. The median record's is not releasable."""
    ends = np.minimum(np.arange(1, len(living["spent"]) + 1) * options.every, options.queries)
    median = [0.0]
    for share in living["spent"]:
        assert mechanism.rho is not None
        rho = max(1e-9, share * mechanism.rho)
        median.append(
            certified_epsilon(
                ind_plan(
                    replace(mechanism, rho=rho, sigma_count=max(1e5, mechanism.sigma_count or 0)),
                    1e6,
                )
            )
        )
    with picture(path, legend_columns=2) as (axes,):
        right = f"{100 * living['right']:.1f}% right"
        axes.plot(
            [0, options.queries], [options.epsilon] * 2, color=PALETTE[0], label=f"Ind-KNN, {right}"
        )
        axes.plot(
            [0, *ends],
            median,
            color=PALETTE[0],
            linestyle=":",
            label="its median record: CUSTODIAN ONLY, not releasable",
        )
        for found, color in zip(sgd.values(), PALETTE[1:], strict=False):
            for every, line in ((options.every, SOLID), (2 * options.every, DASHED)):
                starts = np.arange(0, options.queries, every)
                spent = [together(found, n) for n in range(1, len(starts) + 1)]
                name = f"NoisySGD, {100 * found['right'][0]:.1f}% right" + (
                    f", again every {every}" if line == SOLID else f", {every}"
                )
                axes.step(
                    [*starts, options.queries],
                    [*spent, spent[-1]],
                    where="post",
                    color=color,
                    linestyle=line,
                    label=name,
                )
        axes.set(
            xlabel="queries answered",
            ylabel=f"epsilon at delta = {DELTA:g}",
            xlim=(0, options.queries),
            ylim=(0, None),
        )


if __name__ == "__main__":
    main()
