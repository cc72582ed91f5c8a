"""What protecting persons costs and brings: accuracy at equal epsilon, persons of 10 rows each.

    python benchmarks/accuracy/persons.py --data ../shared/data --cache hog.npz --persons 600 6000

MNIST under HOG, on the 48 principal axes of public rows. Persons of 10 rows are made in two ways:

- alike: a training image with those of its neighbours that are nearest (person_search.py);
- moved: a training image ten times, shifted by up to 2 pixels and turned by up to 10 degrees.

Public rows are the first 5,000 test images; the other 5,000 measure. delta = 1e-5. Ways to spend
epsilon:

- row: for one row; a person has what group privacy leaves, about 10 epsilon;
- group: for a person by group privacy: rows at epsilon / 10, delta / (10 e^(0.9 epsilon));
- person: for a person, as with `privacy.unit: person`.

The mechanisms' own draws and the public side's own fit label public rows; a logistic regression on
the labelled ones is the student. Parameters follow from the number of records alone, private_knn's
and the number of its queries from its planner and the labelled public rows. NoisySGD is a
linear model of the same features by one averaged gradient a person, clipped and noisy through
Opacus (its accountant's claim); its clip and learning rate are chosen on public rows, which
simulate persons. Seeds draw persons, noise, queries and batches anew. Prints one table.
"""

import argparse
import math
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from labelwall.benchmarks.shared.record import add_record, record
from labelwall.benchmarks.shared.vote_plans import planned_votes
from labelwall.benchmarks.speed.person_search import SIZE, alike
from labelwall.experiment.plan.planner import Goal
from labelwall.student.asking.features import linear_power, principal_axes
from labelwall.student.asking.matrix_round import MatrixRound, ask_matrices
from labelwall.teacher.mechanisms.base import Mechanism, Priced
from labelwall.teacher.mechanisms.calibration import calibrate
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.features.embedder import RAW_UNIT, Embedder, quantise
from labelwall.wall.guarantee import Unit
from labelwall.wall.matrices import Matrix, NoisyCounts
from labelwall.wall.messages import ExtractorSpec, Outcome, Receipt
from labelwall.wall.questions import Round

DELTA, CLASSES, PUBLIC, AXES = 1e-5, 10, 5000, 48
WAYS = ("row", "group", "person", "person (claimed)")
LEAST_VOTES = 3.0  # on a row, in deviations of their noise
LENGTH = RAW_UNIT * math.sqrt(AXES)
SEEN = ExtractorSpec("raw", (AXES,), CLASSES)  # whose vectors have that length
SHIFT, TURN = 2, 10.0  # pixels, degrees
RATE, STEPS = 1.0, 20  # of NoisySGD: whole batches
TRIED = tuple(product((1.0, 0.3, 0.1), (2.0, 8.0, 32.0)))  # clip and learning rate


@dataclass(frozen=True)
class Split:
    """Features int8 [n, AXES] and labels int64 [n]; ``persons``: int64 [n] of the private rows."""

    private: tuple[np.ndarray, np.ndarray] = field(repr=False)
    public: tuple[np.ndarray, np.ndarray] = field(repr=False)
    test: tuple[np.ndarray, np.ndarray] = field(repr=False)
    persons: np.ndarray = field(repr=False)

    @property
    def people(self) -> int:
        return len(np.unique(self.persons))


def hog(images: np.ndarray) -> np.ndarray:
    """HOG vectors int8 [n, 1296] of uint8 [n, 28, 28]."""
    embedder = Embedder(ExtractorSpec("hog", (28, 28, 1), CLASSES), workers=1)
    return embedder.embed(images[..., None])[0]


def moved(images: np.ndarray, seed: int) -> np.ndarray:
    """Each of uint8 [n, 28, 28] SIZE times, shifted and turned: uint8 [n * SIZE, 28, 28]."""
    import torch
    from torch.nn.functional import affine_grid, grid_sample

    rng = np.random.default_rng(seed)
    many = torch.from_numpy(np.repeat(images, SIZE, axis=0))[:, None].float()
    turns = np.deg2rad(rng.uniform(-TURN, TURN, len(many)))
    shifts = rng.uniform(-SHIFT, SHIFT, (len(many), 2)) / 14  # 14 pixels are half an image
    rows = [np.cos(turns), -np.sin(turns), shifts[:, 0], np.sin(turns), np.cos(turns), shifts[:, 1]]
    maps = torch.from_numpy(np.stack(rows, axis=1).reshape(-1, 2, 3)).float()
    grid = affine_grid(maps, list(many.shape), align_corners=False)
    found = grid_sample(many, grid, align_corners=False)
    return found[:, 0].round().byte().numpy()


def vectors(data: str, cache: Path | None, most: int) -> dict[str, np.ndarray]:
    """HOG vectors of MNIST and of ``most`` moved persons, labels, and persons of alike rows."""
    from torchvision.datasets import MNIST

    if cache is not None and cache.exists():
        return dict(np.load(cache))
    train, test = (MNIST(data, train=part) for part in (True, False))
    base = np.random.default_rng(0).permutation(len(train.data))[:most]
    found = {
        "train": hog(train.data.numpy()),
        "train_y": train.targets.numpy(),
        "test": hog(test.data.numpy()),
        "test_y": test.targets.numpy(),
        "moved": hog(moved(train.data.numpy()[base], 0)),
        "moved_y": np.repeat(train.targets.numpy()[base], SIZE),
    }
    found["alike"] = alike(found["train"])
    if cache is not None:
        np.savez(cache, **found)
    return found


def split(held: dict[str, np.ndarray], how: str, people: int, seed: int) -> Split:
    """``people`` of the persons, drawn anew for each seed."""
    if how == "alike":
        x, y, persons = held["train"], held["train_y"], held["alike"]
    else:
        x, y, persons = held["moved"], held["moved_y"], np.arange(len(held["moved"])) // SIZE
    whole = np.flatnonzero(np.bincount(persons) == SIZE)
    chosen = np.random.default_rng(seed).permutation(whole)[:people]
    rows = np.flatnonzero(np.isin(persons, chosen))
    mean, axes = principal_axes(held["test"][:PUBLIC].astype(np.float64), AXES, linear_power)

    def seen(features: np.ndarray) -> np.ndarray:
        return quantise(features.astype(np.float64), tuple(mean), LENGTH, axes)[0]

    test, test_y = seen(held["test"]), held["test_y"]
    return Split(
        (seen(x[rows]), y[rows]),
        (test[:PUBLIC], test_y[:PUBLIC]),
        (test[PUBLIC:], test_y[PUBLIC:]),
        persons[rows],
    )


def budgets(epsilon: float) -> Iterator[tuple[str, Unit, float, float]]:
    """(way, unit, epsilon, delta) of each way to spend epsilon."""
    yield "row", "row", epsilon, DELTA
    yield "group", "row", epsilon / SIZE, DELTA / (SIZE * math.exp(0.9 * epsilon))
    yield "person", "person", epsilon, DELTA


@dataclass(frozen=True)
class Paid:
    """A mechanism, and the caps of its queries and of its labels."""

    made: Mechanism
    asked: int = PUBLIC
    answered: int = PUBLIC


PLANS: dict[Goal, Paid] = {}  # of private_knn


def mechanism(kind: str, unit: Unit, rows: Split, epsilon: float, delta: float) -> Paid:
    """As a user would set it for so many records."""
    records = len(rows.persons) if unit == "row" else rows.people
    asked, made = 1, PrivateLinear()
    if kind == "private_knn":
        goal = Goal(epsilon, delta, records, PUBLIC, 1)
        if goal not in PLANS:  # public rows are the same for all seeds
            choice = planned_votes(PrivateKnn(), *rows.public, CLASSES, goal)
            PLANS[goal] = Paid(choice.mechanism, choice.asked, choice.cap)
        return PLANS[goal]
    if kind == "private_linear":
        asked = made.steps
    else:
        whole = priced(ReverseKnn(), unit, 1, epsilon, delta)
        cells = int(records / (LEAST_VOTES * whole.require("sigma")))
        made = ReverseKnn(centroids=max(2 * CLASSES, min(150, cells)))
    return Paid(priced(made, unit, asked, epsilon, delta))


def priced(made: Mechanism, unit: Unit, asked: int, epsilon: float, delta: float) -> Mechanism:
    return calibrate([Priced(made.for_unit(unit), asked, asked)], epsilon, delta)[0]


def labelled(paid: Paid, unit: Unit, rows: Split, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(public rows that have a label, int64 [m]; their labels)."""
    made = paid.made
    x, y = rows.private
    persons = rows.persons if unit == "person" else None
    index, entropy = ExactIndex(x, np.arange(len(x)), persons), SystemEntropy()
    if made.query_form.matrix is None:
        asked = np.random.default_rng(seed).permutation(PUBLIC)[: paid.asked]
        voters = Voters(index, y, CLASSES, rows.public[0][asked], LENGTH)
        keys = [f"{row}" for row in asked]
        passed = made.draw("screen", voters, keys, entropy).astype(bool)
        known = np.flatnonzero(passed)[: paid.answered].tolist()
        drawn = made.draw("aggregate", voters.select(known), [keys[i] for i in known], entropy)
        return asked[known], drawn

    def count(matrix: Matrix) -> NoisyCounts:
        voters = Voters(index, y, CLASSES, matrix.entries[None], LENGTH)
        drawn = made.draw(made.stages[0], voters, ["asked"], entropy)[0]
        counts = drawn.reshape(made.query_form.rows, -1)
        return NoisyCounts(counts, Receipt(1, 0, {"drawn": 1}, {"drawn": 0}, 0, ""))

    teacher = SimpleNamespace(count=count)
    with tempfile.TemporaryDirectory() as folder:
        form = made.query_form
        asked = MatrixRound(
            count=teacher.count,
            planned=Round(number=1, slot=0, queries=None, once=True, form=form, seed=seed),
            extractor=SEEN,
            features=rows.public[0],
            folder=Path(folder),
        )
        answers, _ = ask_matrices(asked)
    known = np.flatnonzero(answers.outcomes == Outcome.ANSWERED)
    return known, answers.labels[known]


def student(rows: Split, known: np.ndarray, labels: np.ndarray) -> float:
    """Test accuracy of a logistic regression on the labelled public rows."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) < 2:
        return float((rows.test[1] == (labels[0] if len(labels) else 0)).mean())
    fitted = LogisticRegression(C=0.1, max_iter=200).fit(rows.public[0][known] / LENGTH, labels)
    return float(fitted.score(rows.test[0] / LENGTH, rows.test[1]))


def noisy_sgd(rows: Split, epsilon: float, seed: int) -> float:
    """Test accuracy of a linear model by one clipped average gradient a person."""
    from labelwall.teacher.baselines.noisy_sgd import calibrate

    order = np.argsort(rows.persons, kind="stable")
    x, y = (part[order] for part in rows.private)
    persons = x.reshape(-1, SIZE, AXES), y.reshape(-1, SIZE)
    fold = PUBLIC // 4
    (held, held_y), (rest, rest_y) = (
        tuple(part[cut] for part in rows.public) for cut in (slice(fold), slice(fold, None))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        multiplier = calibrate(epsilon, DELTA, RATE, STEPS)[0]
        alone = rest[:, None], rest_y[:, None]
        weaker = multiplier * len(rest) / len(persons[0])  # the same noise on a mean gradient
        scores = [trained(*alone, held, held_y, weaker, *tried, seed) for tried in TRIED]
        return trained(*persons, *rows.test, multiplier, *TRIED[int(np.argmax(scores))], seed)


def trained(
    x: np.ndarray,
    y: np.ndarray,
    test_x: np.ndarray,
    test_y: np.ndarray,
    multiplier: float,
    clip: float,
    learning_rate: float,
    seed: int,
) -> float:
    """Accuracy on the test rows after training on persons: int8 [p, rows, d], int64 [p, rows]."""
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from torch.nn.functional import cross_entropy

    torch.manual_seed(seed)
    inputs, labels = torch.from_numpy(x / LENGTH).float(), torch.from_numpy(y)
    wrapped = GradSampleModule(torch.nn.Linear(AXES, CLASSES))
    plain = torch.optim.SGD(wrapped.parameters(), lr=learning_rate, momentum=0.9)
    optimizer = DPOptimizer(
        plain,
        noise_multiplier=multiplier,
        max_grad_norm=clip,
        expected_batch_size=int(RATE * len(labels)),
    )
    for _ in range(STEPS):
        chosen = torch.nonzero(torch.rand(len(labels)) < RATE).squeeze(1)
        said = wrapped(inputs[chosen])  # [persons, rows, classes]
        each = cross_entropy(said.flatten(0, 1), labels[chosen].flatten(), reduction="none")
        each.reshape(len(chosen), -1).mean(dim=1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        said = wrapped.to_standard_module()(torch.from_numpy(test_x / LENGTH).float())
    return float((said.argmax(dim=1).numpy() == test_y).mean())


def measured(rows: Split, kinds: list[str], epsilon: float, seed: int) -> Iterator[tuple]:
    """(mechanism, way, test accuracy)."""
    for kind in kinds:
        if kind == "NoisySGD":
            yield kind, "person (claimed)", noisy_sgd(rows, epsilon, seed)
            continue
        for way, unit, *budget in budgets(epsilon):
            paid = mechanism(kind, unit, rows, *budget)
            yield kind, way, student(rows, *labelled(paid, unit, rows, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with MNIST in torchvision's layout")
    parser.add_argument("--cache", type=Path, help="npz file that keeps the vectors")
    parser.add_argument("--persons", type=int, nargs="+", default=[600, 6000], help="counts")
    parser.add_argument("--made", nargs="+", default=["alike", "moved"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    kinds = ["private_knn", "reverse_knn", "private_linear", "NoisySGD"]
    parser.add_argument("--mechanisms", nargs="+", default=kinds, choices=kinds)
    add_record(parser)
    options, rows_measured = parser.parse_args(), []
    held = vectors(options.data, options.cache, max(options.persons))
    print("| persons | made | epsilon | mechanism | for | test accuracy, median (range) |")
    print("|---|---|---|---|---|---|", flush=True)
    for people in options.persons:
        for how in options.made:
            for epsilon in options.epsilons:
                started = time.process_time()
                found: dict[tuple[str, str], list[float]] = {}
                for seed in options.seeds:
                    rows = split(held, how, people, seed)
                    for kind, way, accuracy in measured(rows, options.mechanisms, epsilon, seed):
                        found.setdefault((kind, way), []).append(100 * accuracy)
                for (kind, way), each in found.items():
                    spread = f"{np.median(each):.1f}% ({min(each):.1f} to {max(each):.1f})"
                    print(f"| {people:,} | {how} | {epsilon:g} | {kind} | {way} | {spread} |")
                for kind in options.mechanisms:
                    each = [found.get((kind, way)) for way in WAYS]
                    medians = [known and round(float(np.median(known)), 1) for known in each]
                    rows_measured.append([kind, people, how, epsilon, *medians])
                print(f"<!-- {time.process_time() - started:.0f} s of CPU -->", flush=True)
    if options.record:
        columns = ("mechanism", "persons", "made", "epsilon", *WAYS)
        record("persons", columns, rows_measured, keys=4, seeds=options.seeds)


if __name__ == "__main__":
    main()
