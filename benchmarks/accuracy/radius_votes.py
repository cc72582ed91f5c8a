"""Labels by private_radius and by private_knn at the same epsilon, on features of image data sets.

    python benchmarks/shared/image_features.py --images CIFAR10 --cache FEATURES  # once
    python benchmarks/accuracy/radius_votes.py --cache FEATURES

The train split is private. The first test rows are PUBLIC: their mean centres the features, 1,000
of them with labels plan both mechanisms (the planners of `mechanism: auto`), and 2,000 are the
landmarks. Each planner may ask the rows of a query set once each, and wants the most right labels
within epsilon. Three query sets of other test rows; the mechanisms draw from the system's entropy.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labelwall.benchmarks.accuracy.ind_knn_accuracy import Exam, spread
from labelwall.benchmarks.shared.ind_knn_choice import Split, feature_options, read_splits
from labelwall.benchmarks.shared.linear_sgd import CLASSES, DELTA
from labelwall.benchmarks.shared.record import add_record, percent, record
from labelwall.benchmarks.shared.vote_plans import planned_votes
from labelwall.experiment.plan.planner import Choice, Goal
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import (
    AGGREGATE,
    LANDMARKS,
    SCREEN,
    PrivateKnn,
    PrivateRadius,
    SampledVotes,
)
from labelwall.teacher.noise.entropy import SystemEntropy

SIMULATED = 1_000  # public rows that a planner has
KINDS: tuple[type[SampledVotes], ...] = (PrivateKnn, PrivateRadius)


@dataclass(frozen=True)
class Asked:
    """Shares of a query set: answered, and answered with the right label."""

    answered: float
    right: float


def ask(mechanism: SampledVotes, asked: int, cap: int, voters: Voters, truth: np.ndarray) -> Asked:
    """Screen the first ``asked`` queries, and label the first ``cap`` that pass."""
    keys, entropy = [f"query {i}" for i in range(asked)], SystemEntropy()
    first = voters.select(range(asked))
    passed = np.flatnonzero(mechanism.draw(SCREEN, first, keys, entropy))[:cap]
    if not len(passed):
        return Asked(0.0, 0.0)
    named = [keys[i] for i in passed]
    labels = mechanism.draw(AGGREGATE, voters.select(passed.tolist()), named, entropy)
    return Asked(len(passed) / len(truth), float((labels == truth[passed]).sum()) / len(truth))


def main() -> None:
    parser = feature_options(__doc__, Path("unused.svg"), "not used")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.25, 0.75])
    add_record(parser)
    report(parser.parse_args())


def report(options: argparse.Namespace) -> None:
    """Plan on public rows, ask, print."""
    private, public, others, length = read_splits(options, options.sets * options.queries)
    sets = [others.part(i * options.queries, options.queries) for i in range(options.sets)]
    exam = Exam.of(private, sets, length)
    landmarks = public.part(0, LANDMARKS).features.tobytes()
    voters = [replace(each, landmarks=landmarks) for each in exam.voters]
    rows = []
    print("| epsilon | mechanism | asked | % answered | % right of these | % right | settings |")
    print("|---|---|---|---|---|---|---|")
    for epsilon in options.epsilons:
        for kind in KINDS:
            choice = planned(kind, public.part(0, SIMULATED), len(private.labels), epsilon, options)
            size, cap = choice.asked, choice.cap
            found = [
                ask(choice.mechanism, size, cap, each, part.labels)
                for each, part in zip(voters, sets, strict=True)
            ]
            print(row(epsilon, choice, found), flush=True)
            shares = [(a.answered, a.right / max(a.answered, 1e-9), a.right) for a in found]
            medians = [percent(each) for each in zip(*shares, strict=True)]
            rows.append([options.cache.name, epsilon, choice.mechanism.kind, *medians])
    if options.record:
        columns = ("features", "epsilon", "mechanism", "answered", "right of these", "right")
        record("radius_votes", columns, rows, keys=3, seeds="fresh noise")


def planned(
    kind: type[SampledVotes],
    rows: Split,
    records: int,
    epsilon: float,
    options: argparse.Namespace,
) -> Choice:
    """The best choice for a query set."""
    goal = Goal(epsilon, DELTA, records, options.queries, 1)
    return planned_votes(kind(), rows.features, rows.labels, CLASSES, goal)


def row(epsilon: float, choice: Choice, found: list[Asked]) -> str:
    """Medians and ranges over the sets."""

    def of(share: Callable[[Asked], float]) -> str:
        return spread([share(each) for each in found])

    fields = choice.mechanism.fields().items()
    settings = ", ".join(f"{name} {value}" for name, value in fields if name != "kind")
    cells = [
        f"{epsilon:g}, certified {choice.epsilon:.4f}",
        choice.mechanism.kind,
        str(choice.asked),
        of(lambda each: each.answered),
        of(lambda each: each.right / max(each.answered, 1e-9)),
        of(lambda each: each.right),
        settings,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
