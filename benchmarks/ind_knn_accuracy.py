"""Accuracy of Ind-KNN's answers beside Ind-KNN without noise, plain kNN and Private-kNN.

    python benchmarks/image_features.py --images CIFAR10 --cache features/  # once, 20 minutes
    python benchmarks/ind_knn_accuracy.py --cache features/

The train split is private. Of the test split, the first rows are a labelled PUBLIC validation set:
its mean centres the features and all parameters are chosen on it
(teacher/mechanisms/ind_knn/simulate.py), for each kernel first the threshold without noise, then
threshold and noise for each epsilon; then the kernel. The rows after it are the query sets, which
nothing was chosen on. Ind-KNN answers through a new ledger for each set, in batches of 250.
Private-kNN's noise is the smallest whose best certificate fits; its screening is omitted at no
cost. Linear NoisySGD is trained once on all private rows, its learning rate chosen likewise.
`--results FOLDER` saves the measurements; an interrupted run resumes from them. Features take 20
minutes of one core for 60,000 images.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import image_features
import numpy as np
from figures import DASHED, INK, PALETTE, picture
from image_features import Scaling, public_scaling
from kept import kept
from linear_sgd import CLASSES, DELTA, RATES, train

from labelwall.teacher.accounting.accountant import certified_epsilon, odometer, require_affordable
from labelwall.teacher.accounting.conversion import round_up
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.charging import answer_prepaid
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.ind_knn.planning import (
    COUNT_NOISE,
    LABEL_NOISE,
    LEVELS,
    Trial,
    best_level,
    best_noise,
)
from labelwall.teacher.mechanisms.ind_knn.reused_answers import Released
from labelwall.teacher.mechanisms.ind_knn.simulate import SimulatedRecords, threshold_at
from labelwall.teacher.mechanisms.naive_knn.mechanism import NaiveKnn
from labelwall.teacher.mechanisms.private_knn.mechanism import AGGREGATE, PrivateKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex

BATCH = 250
# A record at cosine 0.5 counts in full, at 0.3 a fifth of that.
NARROW = IndKnn(kernel="rbf", bandwidth=0.5, near=1.0)
CLOSE = replace(NARROW, bandwidth=0.35, near=0.7)
KERNELS = (IndKnn(), NARROW, CLOSE, replace(NARROW, bandwidth=0.4))  # simulated with noise
# Tried without noise as well.
SHARPER = tuple(replace(NARROW, bandwidth=width, near=0.9) for width in (0.3, 0.35, 0.4))
NEIGHBOURS = (5, 10, 20, 30, 50, 100, 200)  # plain kNN
# Private-kNN: gamma, and k / gamma.
SAMPLED = (0.05, 0.1, 0.2)
REACH = (500, 1000, 2000, 3000, 4500, 6000)


@dataclass(frozen=True)
class Split:
    """Quantised features int8 [n, d] with labels int64 [n]."""

    features: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)

    def part(self, start: int, rows: int) -> Split:
        return Split(self.features[start : start + rows], self.labels[start : start + rows])


@dataclass(frozen=True)
class Chosen:
    """Mechanisms chosen on public rows for each epsilon, and their accuracy there, 0..1."""

    ind_knn: list[tuple[IndKnn, float]]
    private_knn: list[tuple[PrivateKnn, float]]


def choose(validation: Split, records: int, length: float, options: argparse.Namespace) -> Chosen:
    """Choose all mechanisms on public rows; every candidate gets the same noise."""
    shared = {"seed": options.seed, "repeats": options.repeats}
    trials = choose_ind_knn(
        KERNELS, validation, records, length, options.epsilons, options.queries, **shared
    )
    simulated = SimulatedRecords.of(
        validation.features, validation.labels, records, CLASSES, KERNELS[-1], length
    )
    polls = [
        choose_poll(simulated, epsilon, options.queries, options.seed)
        for epsilon in options.epsilons
    ]
    return Chosen([(trial.mechanism, trial.right) for trial in trials], polls)


def choose_ind_knn(
    kernels: Sequence[IndKnn],
    validation: Split,
    records: int,
    length: float,
    epsilons: Sequence[float],
    asked: int,
    *,
    seed: int,
    repeats: int = 1,
) -> list[Trial]:
    """The best kernel, threshold and noise for each epsilon."""
    trials = []
    for kernel in kernels:
        simulated = SimulatedRecords.of(
            validation.features, validation.labels, records, CLASSES, kernel, length
        )
        level, _ = best_level(simulated, kernel)
        trials.append(
            best_noise(
                simulated, kernel, epsilons, DELTA, asked, level=level, seed=seed, repeats=repeats
            )
        )
    return [
        max(of_epsilon, key=lambda trial: trial.right) for of_epsilon in zip(*trials, strict=True)
    ]


def choose_own(validation: Split, records: int, length: float) -> tuple[IndKnn, float]:
    """(the best kernel and threshold without noise and budgets, its accuracy on public rows)."""
    own = []
    for kernel in (*KERNELS, *SHARPER):
        simulated = SimulatedRecords.of(
            validation.features, validation.labels, records, CLASSES, kernel, length
        )
        level, share = best_level(simulated, kernel)
        own.append((replace(kernel, threshold=threshold_at(kernel, level)), share))
    return max(own, key=lambda found: found[1])


def choose_poll(
    simulated: SimulatedRecords,
    epsilon: float,
    asked: int,
    seed: int,
    sampled: Sequence[float] = SAMPLED,
) -> tuple[PrivateKnn, float]:
    """Private-kNN's sampling probability and k at ``epsilon``."""
    found = []
    for gamma in sampled:
        sigma = least_noise(gamma, epsilon, asked)
        for k in (round(gamma * reach) for reach in REACH):
            other = PrivateKnn(k=k, threshold=0, sigma_vote=sigma, sampling_probability=gamma)
            rng = np.random.default_rng(seed)
            found.append((other, simulate_poll(simulated, other, 2 * asked, rng)))
    return max(found, key=lambda tried: tried[1])


def simulate_poll(
    simulated: SimulatedRecords, mechanism: PrivateKnn, asked: int, rng: np.random.Generator
) -> float:
    """Private-kNN's share of right answers to the first ``asked`` rows; every query is answered."""
    similarity, classes = simulated.similarity[:asked], simulated.num_classes
    nearest = np.argsort(-similarity, axis=1)[:, :-1]  # the last is the row itself
    hits = rng.binomial(round(simulated.copies), mechanism.sampling_probability, nearest.shape)
    votes = np.diff(np.minimum(hits.cumsum(axis=1), mechanism.k), axis=1, prepend=0)
    place = np.arange(len(nearest))[:, None] * classes + simulated.labels[nearest]
    sums = np.bincount(place.ravel(), votes.ravel(), len(nearest) * classes)
    sums = sums.reshape(len(nearest), classes)
    noisy = sums + rng.normal(scale=mechanism.sigma_vote, size=sums.shape)
    return float((noisy.argmax(axis=1) == simulated.labels[:asked]).mean())


def least_noise(gamma: float, epsilon: float, asked: int) -> float:
    """A sigma_vote that certifies ``asked`` noisy winners: a multiple of 0.5, found from below."""
    sigma = max(0.5, round(278 * gamma / epsilon * math.sqrt(asked / 1000)) / 2)
    # With all caps used, the odometer is a certificate.
    while (cost := odometer(poll_plan(gamma, sigma, epsilon, asked), [asked])) > epsilon:
        sigma = max(sigma + 0.5, math.ceil(2 * sigma * (cost / epsilon) ** 0.9) / 2)
    return sigma


def poll_plan(gamma: float, sigma: float, epsilon: float, asked: int) -> Plan:
    """``asked`` noisy winners, no screening."""
    mechanism = PrivateKnn(
        threshold=0, sigma_screen=sigma, sigma_vote=sigma, sampling_probability=gamma
    )
    winners = tuple(
        release for release in mechanism.releases(asked, asked) if release.name == AGGREGATE
    )
    return Plan(epsilon, DELTA, (Slot(mechanism.fields(), winners),))


def ind_plan(mechanism: IndKnn, epsilon: float) -> Plan:
    """The one prepaid release, for any number of queries."""
    return Plan(epsilon, DELTA, (Slot(mechanism.fields(), mechanism.releases(1, 1)),))


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
        released = Released(Path(folder) / "answered.bin", voters.queries.shape[1])
        select = mechanism.select(voters.length)
        for start in range(0, len(voters.queries), BATCH):
            part = voters.select(range(start, min(start + BATCH, len(voters.queries))))
            keys = [f"{start + i:064x}" for i in range(len(part.queries))]
            reused = (
                released.votes(ledger.state.results, select, part.queries, CLASSES)
                if mechanism.reuse
                else None
            )
            answer_prepaid(ledger, 0, mechanism, part, serials, keys, SystemEntropy(), reused)
            released.add(keys, part.queries)
            labels += [mechanism.outcome(ledger.state.results[key])[1] for key in keys]
        ledger.close()
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder with the features")
    parser.add_argument(
        "--results", type=Path, help="folder that keeps what was measured with these options"
    )
    figure = Path(__file__).parents[1] / "docs" / "figures" / "ind_knn_epsilon.svg"
    parser.add_argument("--out", type=Path, default=figure, help="the picture")
    parser.add_argument("--private", type=int, default=50_000)
    parser.add_argument("--validation", type=int, default=5000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--sets", type=int, default=5)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--epochs", type=int, default=10, help="of Linear NoisySGD")
    parser.add_argument("--repeats", type=int, default=1, help="simulations of each candidate")
    parser.add_argument(
        "--whiten", type=int, default=0, help="principal axes of the public rows, a count; 0: none"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the simulations on public rows")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    report(options, public_scaling(options.cache, options.validation, options.whiten))


@dataclass(frozen=True)
class Exam:
    """The query sets, and for each of them the private records as its voters."""

    sets: list[Split]
    voters: list[Voters]

    @classmethod
    def of(cls, private: Split, sets: list[Split], length: float) -> Exam:
        index = ExactIndex(private.features, np.arange(len(private.features)))
        voters = [Voters(index, private.labels, CLASSES, s.features, length) for s in sets]
        return cls(sets, voters)

    def right(self, ask: Callable[[Voters], np.ndarray]) -> list[float]:
        """Share of right answers in each set."""
        return [
            float((ask(voter) == part.labels).mean())
            for voter, part in zip(self.voters, self.sets, strict=True)
        ]


def report(options: argparse.Namespace, scaling: Scaling) -> None:
    """Choose on public rows, ask, print."""
    private = Split(*image_features.read(options.cache, "train", scaling, options.private))
    rows = options.validation + options.sets * options.queries
    public = Split(*image_features.read(options.cache, "test", scaling, rows))
    validation = public.part(0, options.validation)
    sets = [
        public.part(options.validation + i * options.queries, options.queries)
        for i in range(options.sets)
    ]
    exam = Exam.of(private, sets, scaling.scale)
    print(
        f"{len(private.labels):,} private, {len(sets)} x {options.queries:,} queries, "
        f"delta {DELTA}; % right, median (range)"
    )
    best = plain_table(exam, options)
    chosen = kept_choice(options, validation, len(private.labels), scaling.scale)
    copies = len(private.labels) / len(validation.labels)
    print(f"public: {len(validation.labels):,} rows x {copies:g} copies, seed {options.seed}")
    print(
        f"cosine levels {LEVELS} without noise; then around the best, "
        f"label noise {LABEL_NOISE} typical weights,"
    )
    print(
        f"count noise {COUNT_NOISE} of the default; Private-kNN: gamma {SAMPLED}, k / gamma {REACH}"
    )
    fields, share = kept(
        options.results,
        "own choice",
        lambda: chosen_own(validation, len(private.labels), scaling.scale),
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
    naive = naive_knn(exam, validation, scaling.scale, options)
    measured = private_table(
        exam, chosen, options, own, {"naive kNN": naive, "Linear NoisySGD": sgd}
    )
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


def naive_knn(
    exam: Exam, validation: Split, length: float, options: argparse.Namespace
) -> list[list[float]]:
    """Naive kNN's (UAI23 Algorithm 2) accuracy on each set, for each epsilon.

    Public rows choose its k.
    """

    def measure(epsilon: float) -> list[float]:
        records = len(exam.voters[0].labels)
        simulated = SimulatedRecords.of(
            validation.features, validation.labels, records, CLASSES, KERNELS[-1], length
        )
        chosen, _ = choose_poll(simulated, epsilon, options.queries, options.seed, sampled=(1.0,))
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


def kept_choice(
    options: argparse.Namespace, validation: Split, records: int, length: float
) -> Chosen:
    """``choose``, or its cached result."""
    found = kept(
        options.results, "choice", lambda: asdict(choose(validation, records, length, options))
    )
    ind_knn = [(IndKnn(**fields), right) for fields, right in found["ind_knn"]]
    private_knn = [(PrivateKnn(**fields), right) for fields, right in found["private_knn"]]
    return Chosen(ind_knn, private_knn)


def chosen_own(validation: Split, records: int, length: float) -> tuple[dict[str, object], float]:
    """``choose_own`` in a form that JSON can represent."""
    mechanism, share = choose_own(validation, records, length)
    return mechanism.fields(), share


def described(m: IndKnn) -> str:
    """Kernel and threshold."""
    kernel = "cosine" if m.kernel == "cosine" else f"rbf {m.bandwidth:g}, near {m.near:g}"
    return f"{kernel}, threshold {m.threshold:.4g}"


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
        poll = poll_plan(other.sampling_probability, other.sigma_vote, epsilon, options.queries)
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
        two = f"{other.k}, {other.sigma_vote}, {other.sampling_probability}"
        print(f"| {epsilon:g} | {one} | {100 * ind_right:.1f} | {two} | {100 * right:.1f} |")
    return measured


if __name__ == "__main__":
    main()
