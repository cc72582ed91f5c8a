"""Accuracy of Ind-KNN's answers beside Ind-KNN without noise, plain kNN and Private-kNN.

    python benchmarks/shared/image_features.py --images CIFAR10 --cache features/  # once
    python benchmarks/accuracy/ind_knn_accuracy.py --cache features/

The train split is private. Of the test split, the first rows are a labelled PUBLIC validation set:
its mean centres the features and all parameters are chosen on it (ind_knn_choice.py). The rows
after it are the query sets, which nothing was chosen on. Ind-KNN answers through a new ledger for
each set, in batches of 250. Linear NoisySGD is trained once on all private rows, its learning rate
chosen likewise. `--results FOLDER` saves the measurements; an interrupted run resumes from them.
Features take 20 minutes of one core for 60,000 images.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.benchmarks.figures.figures import DASHED, INK, PALETTE, picture
from labelwall.benchmarks.shared.ind_knn_choice import (
    LEVELS,
    REACH,
    SAMPLED,
    Chosen,
    Split,
    choose,
    choose_own,
    choose_poll,
    described,
    feature_options,
    ind_plan,
    poll_plan,
    read_splits,
)
from labelwall.benchmarks.shared.kept import kept
from labelwall.benchmarks.shared.linear_sgd import CLASSES, DELTA, RATES, train
from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.teacher.accounting.accountant import certified_epsilon, require_affordable
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.charging import answer_prepaid
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import EarlierAnswers, IndKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import AGGREGATE, NaiveKnn, PrivateKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex

BATCH = 250
NEIGHBOURS = (5, 10, 20, 30, 50, 100, 200)  # plain kNN


def ask_ind_knn(mechanism: IndKnn, epsilon: float, voters: Voters) -> np.ndarray:
    """Labels int64 [n] from the real mechanism, charged to a new ledger.

    Raises BudgetRefused above ``epsilon``.
    """
    plan = ind_plan(mechanism, epsilon)
    require_affordable(plan)
    labels = []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger.create(
            Path(folder) / "ledger.sqlite", dataset="benchmark", plan=plan, unsafe=False
        )
        serials = ledger.enrol(voters.index.ids)
        earlier = EarlierAnswers(Path(folder) / "answered.bin", voters.queries.shape[1])
        select = mechanism.select(voters.length)
        for start in range(0, len(voters.queries), BATCH):
            part = voters.select(range(start, min(start + BATCH, len(voters.queries))))
            keys = [f"{start + i:064x}" for i in range(len(part.queries))]
            reused = (
                earlier.votes(ledger.state.results, select, part.queries, CLASSES)
                if mechanism.reuse
                else None
            )
            answer_prepaid(ledger, 0, mechanism, part, serials, keys, SystemEntropy(), reused)
            earlier.add(keys, part.queries)
            labels += [mechanism.outcome(ledger.state.results[key])[1] for key in keys]
    return np.array(labels)


def ask_poll(mechanism: PrivateKnn | NaiveKnn, voters: Voters) -> np.ndarray:
    """Labels int64 [n]: one noisy winner a query."""
    keys = [f"query {i}" for i in range(len(voters.queries))]
    return mechanism.draw(AGGREGATE, voters, keys, SystemEntropy())


def without_noise(mechanism: IndKnn, voters: Voters) -> np.ndarray:
    """Labels int64 [n] by the same neighbours and weights, no noise and no budgets."""
    sums = [
        np.bincount(voters.labels[near.rows], weights=near.weights, minlength=voters.num_classes)
        for near in voters.similar(mechanism.select(voters.length))
    ]
    return np.array(sums).argmax(axis=1)


def plain_knn(voters: Voters) -> dict[int, np.ndarray]:
    """Labels int64 [n] by the majority of the k nearest, ties to the lowest class, by k."""
    nearest = voters.labels[voters.index.prefix(voters.queries, max(NEIGHBOURS))]
    each = np.eye(voters.num_classes, dtype=np.int64)
    return {k: each[nearest[:, :k]].sum(axis=1).argmax(axis=1) for k in NEIGHBOURS}


def spread(shares: Sequence[float]) -> str:
    """Median (min..max), in percent."""
    return f"{100 * np.median(shares):.1f} ({100 * min(shares):.1f}..{100 * max(shares):.1f})"


def main() -> None:
    parser = feature_options(__doc__, Path("ind_knn_epsilon.svg"), "the picture")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--sets", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--epochs", type=int, default=10, help="of Linear NoisySGD")
    add_record(parser)
    report(parser.parse_args())


@dataclass(frozen=True)
class Exam:
    """The query sets, and for each of them the private records as its voters."""

    sets: list[Split]
    voters: list[Voters]

    @classmethod
    def of(cls, private: Split, sets: list[Split], length: float) -> "Exam":
        index = ExactIndex(private.features, np.arange(len(private.features)))
        voters = [Voters(index, private.labels, CLASSES, s.features, length) for s in sets]
        return cls(sets, voters)

    def right(self, ask: Callable[[Voters], np.ndarray]) -> list[float]:
        """Share of right answers in each set."""
        return [
            float((ask(voter) == part.labels).mean())
            for voter, part in zip(self.voters, self.sets, strict=True)
        ]


def report(options: argparse.Namespace) -> None:
    """Choose on public rows, ask, print."""
    private, validation, others, length = read_splits(options, options.sets * options.queries)
    sets = [others.part(i * options.queries, options.queries) for i in range(options.sets)]
    exam = Exam.of(private, sets, length)
    print(
        f"{len(private.labels):,} private, {len(sets)} x {options.queries:,} queries, "
        f"delta {DELTA}; % right, median (range)"
    )
    best = plain_table(exam, options)
    chosen = kept_choice(options, validation, len(private.labels))
    print(f"public: {len(validation.labels):,} rows, seed {options.seed}")
    print(f"cosine levels {LEVELS} without noise; Private-kNN: gamma {SAMPLED}, k / gamma {REACH}")
    fields, share = kept(
        options.results,
        "own choice",
        lambda: chosen_own(validation, length),
    )
    own = kept(
        options.results,
        "own right",
        lambda: exam.right(lambda voters: without_noise(IndKnn(**fields), voters)),
    )
    print(
        f"Ind-KNN without noise and budgets, {described(IndKnn(**fields))}, "
        f"public {100 * share:.1f}: {spread(own)}, ",
        end="",
    )
    print(f"{100 * (best - np.median(own)):.1f} less than kNN", flush=True)
    sgd = linear_sgd(private, validation, sets, options)
    naive = naive_knn(exam, validation, options)
    measured = private_table(
        exam, chosen, options, own, {"naive kNN": naive, "Linear NoisySGD": sgd}
    )
    if options.record:
        names = ("Ind-KNN", "Private-kNN", "naive kNN", "Linear NoisySGD")
        rows = [
            [options.cache.name, epsilon, *(percent(measured[n][i]) for n in names), percent(own)]
            for i, epsilon in enumerate(options.epsilons)
        ]
        columns = ("features", "epsilon", *names, "Ind-KNN, no privacy")
        record("ind_knn_accuracy", columns, rows, keys=2, seeds=[options.seed])
    flat = {"plain kNN, not private": best, "Ind-KNN without noise": float(np.median(own))}
    series = {name: (options.epsilons, shares) for name, shares in measured.items()}
    draw_medians(options.out, series, f"epsilon at delta = {DELTA:g}", flat)  # UAI23 Figure 1a


def linear_sgd(
    private: Split, validation: Split, sets: list[Split], options: argparse.Namespace
) -> list[list[float]]:
    """Linear NoisySGD's accuracy on each set, for each epsilon.

    Public rows choose its learning rate.
    """
    found = []
    for epsilon in options.epsilons:

        def trained(rate: float, epsilon: float = epsilon) -> dict[str, Any]:
            return train(private, [validation, *sets], epsilon, rate, options.epochs, options.seed)

        trainings = [
            kept(options.results, f"sgd {epsilon:g} {rate:g}", lambda rate=rate: trained(rate))
            for rate in RATES
        ]
        best = max((training["right"] for training in trainings), key=lambda right: right[0])
        found.append(best[1:])
    return found


def naive_knn(exam: Exam, validation: Split, options: argparse.Namespace) -> list[list[float]]:
    """Naive kNN's (UAI23 Algorithm 2) accuracy on each set, for each epsilon.

    Public rows choose its k.
    """

    def measure(epsilon: float) -> list[float]:
        records = len(exam.voters[0].labels)
        asked, seed = options.queries, options.seed
        chosen, _ = choose_poll(validation, records, epsilon, asked, seed, sampled=(1.0,))
        mechanism = NaiveKnn(k=chosen.k, sigma_vote=chosen.sigma_vote)
        return exam.right(lambda voters: ask_poll(mechanism, voters))

    return [
        kept(options.results, f"naive {epsilon:g}", lambda epsilon=epsilon: measure(epsilon))
        for epsilon in options.epsilons
    ]


# By name: places on the x axis, and the accuracy on each set at each of them.
Series = dict[str, tuple[Sequence[float], list[list[float]]]]


def draw_medians(path: Path, series: Series, x: str, flat: dict[str, float] | None = None) -> None:
    """Medians with their ranges, and a horizontal line for each share of ``flat``."""
    with picture(path) as (axes,):
        for (name, (at, shares)), color in zip(series.items(), PALETTE, strict=False):
            percent = 100 * np.array(shares)
            middle = np.median(percent, axis=1)
            sides = [middle - percent.min(axis=1), percent.max(axis=1) - middle]
            axes.errorbar(at, middle, yerr=sides, color=color, marker="o", capsize=3, label=name)
        for (name, share), color in zip((flat or {}).items(), (INK, PALETTE[0]), strict=False):
            axes.axhline(100 * share, color=color, linestyle=DASHED, label=name)
        axes.set(xlabel=x, ylabel="percent right, median and range")


def kept_choice(options: argparse.Namespace, validation: Split, records: int) -> Chosen:
    """``choose``, or its cached result."""
    found = kept(options.results, "choice", lambda: asdict(choose(validation, records, options)))
    ind_knn = [(IndKnn(**fields), right) for fields, right in found["ind_knn"]]
    private_knn = [(PrivateKnn(**fields), right) for fields, right in found["private_knn"]]
    return Chosen(ind_knn, private_knn)


def chosen_own(validation: Split, length: float) -> tuple[dict[str, object], float]:
    """``choose_own`` in a form that JSON can represent."""
    mechanism, share = choose_own(validation, length)
    return mechanism.fields(), share


def plain_table(exam: Exam, options: argparse.Namespace) -> float:
    """Median accuracy of plain kNN, 0..1, at the k that is best on the query sets themselves."""

    def measure() -> list[list[float]]:
        found = [plain_knn(voters) for voters in exam.voters]
        return [
            [
                float((each[k] == part.labels).mean())
                for each, part in zip(found, exam.sets, strict=True)
            ]
            for k in NEIGHBOURS
        ]

    by_k = dict(zip(NEIGHBOURS, kept(options.results, "plain", measure), strict=True))
    best = max(by_k, key=lambda k: float(np.median(by_k[k])))
    medians = ", ".join(f"{k}: {100 * np.median(shares):.1f}" for k, shares in by_k.items())
    print(f"plain kNN, not private, by k: {medians}")
    print(f"plain kNN at the best k, {best}: {spread(by_k[best])}", flush=True)
    return float(np.median(by_k[best]))


def private_table(
    exam: Exam,
    chosen: Chosen,
    options: argparse.Namespace,
    own: list[float],
    others: dict[str, list[list[float]]],
) -> dict[str, list[list[float]]]:
    """Print all methods at each epsilon, then the choices; accuracies on each set by method."""
    measured: dict[str, list[list[float]]] = {"Ind-KNN": [], "Private-kNN": []} | others
    own_columns = ["Ind-KNN", "less than without noise", "same, no noise, no budgets", "certified"]
    names = ["epsilon", *own_columns, "Private-kNN", "certified", *others]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for place, epsilon in enumerate(options.epsilons):
        ind, other = chosen.ind_knn[place][0], chosen.private_knn[place][0]

        def measure(
            ind: IndKnn = ind, other: PrivateKnn = other, epsilon: float = epsilon
        ) -> dict[str, list[float]]:
            return {
                "ind": exam.right(lambda voters: ask_ind_knn(ind, epsilon, voters)),
                "clear": exam.right(lambda voters: without_noise(ind, voters)),
                "polled": exam.right(lambda voters: ask_poll(other, voters)),
            }

        found = kept(options.results, f"epsilon {epsilon:g}", measure)
        poll = poll_plan(other.sample_rate, other.sigma_vote, epsilon, options.queries)
        costs = [round_up(certified_epsilon(plan)) for plan in (ind_plan(ind, epsilon), poll)]
        loss = f"{100 * (np.median(own) - np.median(found['ind'])):.1f}"
        cells = [
            spread(found["ind"]),
            loss,
            spread(found["clear"]),
            costs[0],
            spread(found["polled"]),
            costs[1],
            *(spread(shares[place]) for shares in others.values()),
        ]
        measured["Ind-KNN"].append(found["ind"])
        measured["Private-kNN"].append(found["polled"])
        print(f"| {epsilon:g} | {' | '.join(map(str, cells))} |", flush=True)
    print(
        "| epsilon | kernel, threshold, sigma_label, sigma_count, rho | public "
        "| k, sigma_vote, gamma | public |"
    )
    print("|---|---|---|---|---|")
    for epsilon, (ind, ind_right), (other, right) in zip(
        options.epsilons, chosen.ind_knn, chosen.private_knn, strict=True
    ):
        one = f"{described(ind)}, {ind.sigma_label}, {ind.sigma_count}, {ind.rho}"
        two = f"{other.k}, {other.sigma_vote}, {other.sample_rate}"
        print(f"| {epsilon:g} | {one} | {100 * ind_right:.1f} | {two} | {100 * right:.1f} |")
    return measured


if __name__ == "__main__":
    main()
