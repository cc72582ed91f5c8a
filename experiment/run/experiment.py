"""What asking and training need of a run."""

from __future__ import annotations

from dataclasses import dataclass

from labelwall.experiment.config.config import Config
from labelwall.experiment.run.console import Console
from labelwall.experiment.run.judge import Estimate, estimate_of
from labelwall.experiment.run.public_features import PublicFeatures
from labelwall.experiment.run.run_folder import RunFolder
from labelwall.experiment.run.teachers import Answering
from labelwall.wall.datasets.sources import PublicData, Task


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

    def estimates(self, rounds: int) -> list[Estimate | None]:
        """Those of the first ``rounds`` rounds, all of them finished."""
        return [estimate_of(self.folder.metrics(n) or {}) for n in range(1, rounds + 1)]
