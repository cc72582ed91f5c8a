"""The student of real values: squared error on released ones, consistency of squared differences on
all public inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torchmetrics.regression import MeanSquaredError, R2Score

from ..wall.labels.values import STEPS
from . import losses
from .module import StudentModule
from .ranks import exact


class Regressor(StudentModule):
    """Trains a backbone with one output, which is -1 at a value's lower bound and 1 at the upper
    one.

    Released labels are steps between the bounds, int64 [b]. Everything a class has a probability
    for (confidence, entropy, generalised cross-entropy, annealing) has no counterpart here.
    """

    def _prepare(self) -> None:
        self.error, self.explained = MeanSquaredError(squared=False), R2Score()

    def _objective(
        self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ranks, rows = self._ranks, self._ranks.part(len(public))
        x = self._augment.weak(x, ranks.part(len(x)))
        if self._config.objective == "supervised":
            return self._supervised(self(x), y), torch.zeros((), device=self.device)
        if self._config.objective == "uda":
            labelled, *pair = self._outputs(x, public[rows], self._augment.strong(public, rows))
            clean, augmented = (ranks.whole(outputs, len(public)) for outputs in pair)
            return self._supervised(labelled, y), losses.squared_difference(clean, augmented) / len(
                public
            )
        moved = self._augment.weak(public, rows)
        labelled, clean = self._outputs(x, moved)
        smooth = self._smoothness(moved, clean, lambda outputs: outputs, losses.squared_difference)
        return self._supervised(labelled, y), smooth

    def _supervised(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``outputs``: this rank's; ``y``: of all rows."""
        targets = 2 * y.float()[:, None] / STEPS - 1  # [b] -> [b, 1]
        return F.mse_loss(self._ranks.whole(outputs, len(y)), targets)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """Reported, never selected by: the last averaged weights are the student, whatever this
        says.
        """
        x, y = batch
        low, high = self._labels.bounds
        found = low + (exact(self.average(self._standardised(x)))[:, 0].clamp(-1, 1) + 1) / 2 * (
            high - low
        )
        for name, metric in (("rmse/test", self.error), ("r2/test", self.explained)):
            metric.update(found, y.to(found.dtype))  # not called: a single row has no R2 of its own
            self.log(name, metric, on_step=False, on_epoch=True)
