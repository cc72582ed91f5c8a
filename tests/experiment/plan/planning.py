"""Public rows for tests of the planners; the private rows exist in the tests alone."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.experiment.config.config import Config
from labelwall.experiment.plan.candidates import PLANNERS
from labelwall.experiment.plan.planner import Goal, Optimum, RehearsalRows
from labelwall.experiment.plan.rehearsal import LabelledRows, Rehearsal
from labelwall.teacher.custody.groups import BudgetConfig, RoundConfig
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.features.embedder import Embedder
from labelwall.wall.label_kinds import label_space
from labelwall.wall.labels import LabelSpace
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.progress import no_progress

CLASSES, DIMENSIONS, PRIVATE, PUBLIC, TEST = 3, 8, 1500, 400, 400
EMBEDDER = Embedder(ExtractorSpec("raw", (DIMENSIONS,), CLASSES))


def vectors(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping classes of vectors: float32 [n, 8], int64 [n]."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    return (rng.normal(size=(n, DIMENSIONS)) + 1.6 * np.eye(CLASSES, DIMENSIONS)[labels]).astype(
        np.float32
    ), labels


def embedded(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    inputs, labels = vectors(seed, n)
    return EMBEDDER.embed(inputs)[0], labels


@dataclass(frozen=True)
class Case:
    """Rows of one kind of labels. ``rows``: a function of a seed and a count, as ``vectors``."""

    data: DataConfig
    space: LabelSpace
    rows: Callable[[int, int], tuple[np.ndarray, np.ndarray]]

    def right(self, labels: np.ndarray, truth: np.ndarray) -> float:
        """The share of right labels; R2 of values, by its definition."""
        if self.space.kind == "value":
            away = self.space.decode(labels) - truth
            return float(1 - (away**2).mean() / truth.var())
        return float((labels == truth).mean())


def priced(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors whose values are linear, with noise of a tenth of their variance: float64 [n]."""
    x, _ = vectors(seed, n)
    noise = np.random.default_rng([seed, 1]).normal(size=n)
    return x, x[:, :4] @ [1.0, -1.0, 0.5, 0.5] + 0.55 * noise


def marked(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors with three attributes, one of them noisy: int64 [n, 3] of 0 and 1."""
    x, _ = vectors(seed, n)
    flipped = np.random.default_rng([seed, 2]).random(n) < 0.2
    found = np.stack([x[:, 0] > 0.5, x[:, 1] + x[:, 2] > 1, (x[:, 3] > 0) ^ flipped], axis=1)
    return x, found.astype(np.int64)


BOUNDS = [-8.0, 8.0]
CASES = {
    "class": Case(DataConfig("arrays", path="-"), label_space("class", list("abc"), []), vectors),
    "attributes": Case(
        DataConfig("arrays", path="-", labels="attributes"),
        label_space("attributes", list("abc"), []),
        marked,
    ),
    "value": Case(
        DataConfig("arrays", path="-", labels="value", bounds=BOUNDS),
        label_space("value", [], BOUNDS),
        priced,
    ),
}


def staged(
    tmp_path: Path,
    mechanism: Mechanism,
    labelled: int = 600,
    records: int = PRIVATE,
    epsilon: float = 1.0,
) -> Rehearsal:
    case = CASES[mechanism.label_space]
    config = Config(
        data=case.data,
        rounds=[RoundConfig(None if mechanism.once_a_round else 100)],
        budget=BudgetConfig(epsilon),
        mechanism=mechanism,
        features="raw",
        threads=1,
    )
    task, (public, _) = Task(case.space, (DIMENSIONS,)), case.rows(2, 500)
    inputs, labels = case.rows(3, labelled)
    return Rehearsal(
        settings=config,
        task=task,
        public=public,
        labelled=LabelledRows(inputs=inputs, labels=labels, source=""),
        goal=Goal(epsilon, 1e-5, records, 500, 1),
        progress=no_progress,
        scratch=tmp_path,
    )


def write(folder: Path, settings: str) -> Path:
    """A configuration of two rounds over an npz file that does not even hold the private rows."""
    (public_x, _), (test_x, test_y) = vectors(2, PUBLIC), vectors(3, TEST)
    np.savez(folder / "data.npz", public_x=public_x, test_x=test_x, test_y=test_y)
    data = f"data: {{source: arrays, path: {folder}/data.npz}}"
    path = folder / "config.yaml"
    path.write_text(f"{data}\n{settings}\nrounds: [{{queries: 9}}, {{queries: 9}}]\n")
    return path


def planned(mechanism: Mechanism, goal: Goal, public: RehearsalRows) -> Optimum[Any]:
    return PLANNERS[mechanism.kind].plan(mechanism, goal, public, no_progress)
