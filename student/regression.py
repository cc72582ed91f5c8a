"""The student of real values: squared error on released ones, consistency of squared differences on all public inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torchmetrics.regression import MeanSquaredError, R2Score

from student import losses
from student.config import StudentConfig
from student.module import Trainee
from wall.backbones import Backbone
from wall.values import STEPS, Scale


class Regressor(Trainee):
    """Trains a backbone with one output, which is -1 at a value's lower bound and 1 at the upper one.

    Released labels are steps between the bounds, int64 [b, 1]. Everything a class has a probability for (confidence, entropy,
    generalised cross-entropy, annealing) has no counterpart here. ``scale``: the bounds, for reported errors.
    """

    def __init__(
        self,
        config: StudentConfig,
        network: Backbone,
        scale: Scale,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        seed: int,
    ) -> None:
        super().__init__(config, network, mean, std, seed)
        self._scale = scale
        self.error, self.explained = MeanSquaredError(squared=False), R2Score()

    def _objective(self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(supervised, semi-supervised) terms. One forward pass for all rows, so that batch norm sees one population."""
        c, x = self._config, self._augment.weak(x)
        if c.objective == "supervised":
            return self._supervised(self(x), y), torch.zeros((), device=self.device)
        if c.objective == "uda":
            outputs = self(torch.cat([x, public, self._augment.strong(public)]))
            labelled, clean, augmented = outputs.split([len(x), len(public), len(public)])
            return self._supervised(labelled, y), losses.squared_difference(clean, augmented) / len(public)
        public = self._augment.weak(public)
        labelled, clean = self(torch.cat([x, public])).split([len(x), len(public)])
        smooth = self._smoothness(public, clean, lambda outputs: outputs, losses.squared_difference)
        return self._supervised(labelled, y), smooth

    def _supervised(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(outputs, 2 * y.to(outputs.dtype) / STEPS - 1)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """Reported, never selected by: the last averaged weights are the student, whatever this says."""
        x, y = batch
        low, high = self._scale.low, self._scale.high
        found = low + (self.average(self._standardised(x))[:, 0].clamp(-1, 1) + 1) / 2 * (high - low)
        for name, metric in (("rmse/test", self.error), ("r2/test", self.explained)):
            metric(found, y.to(found.dtype))
            self.log(name, metric, on_step=False, on_epoch=True)
