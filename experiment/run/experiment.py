"""What asking and training need of a run."""

from __future__ import annotations

from dataclasses import dataclass

from ...wall.datasets.sources import PublicData, Task
from ..config.config import Config
from .console import Console
from .public_features import PublicFeatures
from .quality import Estimate, estimate_of
from .run_folder import RunFolder
from .teachers import Answering
from .training_rows import TrainingRows, training_rows_of


@dataclass
class Experiment:
    """What the rounds of a run share."""

    config: Config
    folder: RunFolder
    task: Task
    public: PublicData
    teacher: Answering
    console: Console
    features: PublicFeatures

    def training_rows(self) -> TrainingRows:
        """What trains the student's backbone."""
        student, first = self.config.student, self.config.first
        return training_rows_of(student.backbone, first, self.task, self.public, self.features)

    def estimates(self, rounds: int) -> list[Estimate | None]:
        """Those of the first ``rounds`` rounds, all of them finished."""
        return [estimate_of(self.folder.metrics(n) or {}) for n in range(1, rounds + 1)]
