"""Data sets of regret.py: images' cached features, tables, and texts as vectors."""

import argparse
import ast
import itertools
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labelwall.benchmarks.accuracy.linear_accuracy import rows_of
from labelwall.benchmarks.shared.tables import TABLES
from labelwall.experiment.config.config import Config
from labelwall.student.asking.features import principal_axes
from labelwall.teacher.custody.groups import BudgetConfig, RoundConfig
from labelwall.teacher.mechanisms.registry import Auto
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.datasets.folders import constant_order
from labelwall.wall.label_kinds import ValueLabels, errors, label_space

DELTA = 1e-5
DIMENSIONS = 256  # principal axes kept of wide features, which rehearsals look at anyway
PACKAGES = ("numpy", "scipy", "sklearn", "torch", "skimage", "matplotlib", "PIL", "timm")
LEAST_TEXT = 120  # characters of a docstring
Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Data:
    """Features float32 [n, d] with labels int64 [n], of each split.

    Where rows have values, private labels are their codes, others are values, float64 [n].
    """

    name: str
    private: Rows = field(repr=False)
    public: Rows = field(repr=False)
    test: Rows = field(repr=False)
    values: ValueLabels | None = None

    @property
    def classes(self) -> int:
        """Their number, 1 for a value."""
        return 1 if self.values else int(self.private[1].max()) + 1

    def right(self, labels: np.ndarray) -> float:
        """The share of right labels of the test rows; R2 of values."""
        if self.values is None:
            return float((labels == self.test[1]).mean())
        found = errors(self.values.decode(labels), self.test[1])
        return 0.0 if found is None else found["r2"]

    def config(self, epsilon: float) -> Config:
        """One round, everything open."""
        bounds = list(self.values.bounds) if self.values else []
        return Config(
            data=DataConfig(
                "arrays", path="-", labels="value" if bounds else "class", bounds=bounds
            ),
            rounds=[RoundConfig()],
            budget=BudgetConfig(epsilon, DELTA),
            mechanism=Auto(),
        )

    @property
    def task(self) -> Task:
        """Numbered classes, or values, of vectors."""
        if self.values is not None:
            return Task(self.values, (self.public[0].shape[1],))
        names = [str(number) for number in range(self.classes)]
        return Task(label_space("class", names, []), (self.public[0].shape[1],))


def narrowed(private: Rows, public: Rows, test: Rows) -> tuple[Rows, Rows, Rows]:
    """On the public rows' principal axes, where there are more than DIMENSIONS."""
    if public[0].shape[1] > DIMENSIONS:
        mean, axes = principal_axes(public[0], DIMENSIONS, 0.0)
        turn = axes.astype(np.float64) / np.abs(axes).max()

        def on(rows: Rows) -> Rows:
            parts = np.array_split(rows[0], 1 + len(rows[0]) // 5000)
            return np.concatenate([((p - mean) @ turn).astype(np.float32) for p in parts]), rows[1]

        return on(private), on(public), on(test)
    return tuple((x.astype(np.float32), y) for x, y in (private, public, test))  # type: ignore


def images(name: str, folder: str, public: int) -> Callable[[argparse.Namespace], Data]:
    """Cached features; so many of the test rows are public."""

    def read(options: argparse.Namespace) -> Data:
        private, held = (rows_of(options.cache / folder, split) for split in ("train", "test"))
        parts = tuple(
            (held[0][rows], held[1][rows]) for rows in (slice(public), slice(public, None))
        )
        return Data(name, *narrowed(private, *parts))

    return read


def shared(name: str, x: np.ndarray, y: np.ndarray) -> Data:
    """60% private, 20% public, 20% test rows, along a constant shuffle."""
    order = constant_order(map(str, range(len(x))))
    ends = [0, int(0.6 * len(x)), int(0.8 * len(x)), len(x)]
    parts = [order[a:b] for a, b in itertools.pairwise(ends)]
    return Data(name, *narrowed(*((x[rows], y[rows]) for rows in parts)))


def keel(name: str) -> Callable[[argparse.Namespace], Data]:
    """A table, each column with its public rows' mean and deviation, as tables are read."""

    def read(_: argparse.Namespace) -> Data:
        x, y = TABLES[name].read()
        found = shared(name, x, y)
        mean, spread = found.public[0].mean(axis=0), found.public[0].std(axis=0)
        scaled = [((x - mean) / spread, y) for x, y in (found.private, found.public, found.test)]
        return Data(name, *scaled)

    return read


def text(options: argparse.Namespace) -> Data:
    """Docstrings: the class is the package."""
    if options.text is not None:
        with np.load(options.text) as stored:
            return shared("text", stored["x"], stored["y"])
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import HashingVectorizer

    strings, labels = docstrings(Path(sysconfig.get_paths()["purelib"]))
    counts = HashingVectorizer(n_features=2**15, stop_words="english").transform(strings)
    x = TruncatedSVD(DIMENSIONS, random_state=0).fit_transform(counts)
    return shared("text", x.astype(np.float32), labels)


def docstrings(root: Path, packages: Sequence[str] = PACKAGES) -> tuple[list[str], np.ndarray]:
    """Different ones of ``packages``, with the package's number: int64 [n]."""
    found: dict[str, int] = {}
    for number, package in enumerate(packages):
        for path in sorted((root / package).rglob("*.py")):
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except (SyntaxError, UnicodeDecodeError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                    words = ast.get_docstring(node) or ""
                    if len(words) >= LEAST_TEXT:
                        found.setdefault(words.replace(package, " "), number)
    return list(found), np.array(list(found.values()), dtype=np.int64)


DATA: dict[str, Callable[[argparse.Namespace], Data]] = {
    "cifar10": images("cifar10", "cifar", 5000),
    "text": text,
    "phoneme": keel("phoneme"),
    "banana": keel("banana"),
    "fashion_mnist": images("fashion_mnist", "fashion_hog", 9000),
    "mnist": images("mnist", "mnist_hog", 9000),
}
