"""The planner on PUBLIC feature vectors as they are, for benchmarks of one mechanism."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from labelwall.experiment.plan.candidates import PLANNERS
from labelwall.experiment.plan.planner import Choice, Goal, RehearsalRows, View
from labelwall.experiment.plan.rehearsal import LabelledRows, Rehearsal
from labelwall.student.public_settings import PublicSide
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.label_kinds import label_space
from labelwall.wall.progress import no_progress


def planned_votes(
    mechanism: Mechanism, features: np.ndarray, labels: np.ndarray, classes: int, goal: Goal
) -> Choice[Any]:
    """The best choice for a goal, by labelled rows: features int8 [n, d], labels int64 [n]."""
    settings = PublicSide(data=DataConfig("arrays", path="-"), features="raw")
    task = Task(label_space("class", [str(i) for i in range(classes)]), features.shape[1:])
    rows, planner = features.astype(np.float32), PLANNERS[mechanism.kind]
    with tempfile.TemporaryDirectory() as scratch:
        stage = Rehearsal(
            settings=settings,
            task=task,
            public=rows,
            labelled=LabelledRows(inputs=rows, labels=labels, source="public rows"),
            goal=goal,
            progress=no_progress,
            scratch=Path(scratch),
        )
        records = goal.expected_records
        view = View("raw", 0, 0, 0, len(rows), classes, records)  # of however many dimensions
        public = RehearsalRows(lambda: (view,), stage.score)
        return planner.plan(mechanism, goal, public, no_progress).chosen
