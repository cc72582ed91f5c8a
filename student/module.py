"""The student as one LightningModule: supervised, VAT or UDA, by the losses of student.losses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics.classification import MulticlassAccuracy, MultilabelAccuracy

from student import losses
from student.augment import Augmenter
from student.config import StudentConfig
from student.data import Batch
from wall.backbones import Backbone, standardise


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Batch norm's running statistics stay: perturbed inputs are not the population that the student will see."""
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


SHARE_DECAY = 0.98  # of the running share of each predicted class, per step


class Trainee(pl.LightningModule):
    """What all students share: a backbone, its running average, the schedule, and a draw of its own for every step.

    ``mean``, ``std``: per-channel statistics of public images (0..1 scale), empty for vectors; ``seed``: of the random
    distortions and perturbations, drawn anew from (seed, step) at every step.
    """

    def __init__(
        self, config: StudentConfig, network: Backbone, mean: tuple[float, ...], std: tuple[float, ...], seed: int
    ) -> None:
        super().__init__()
        self.network = network
        self.average = copy.deepcopy(network).requires_grad_(False)  # the student; in the state dict, so it resumes exactly
        self._config, self._mean, self._std, self._seed = config, mean, std, seed
        self._augment = Augmenter(config.augment)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs [n, c] of inputs on the 0..1 scale."""
        return self.network(self._standardised(x))

    def _standardised(self, x: torch.Tensor) -> torch.Tensor:
        return standardise(x, self._mean, self._std) if x.ndim == 4 else x

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((self._seed << 24) + self.global_step)
            supervised, unlabelled = self._objective(*batch)
        loss = supervised + self._config.unlabelled_weight * unlabelled
        self.log_dict({"loss/supervised": supervised, "loss/unlabelled": unlabelled}, on_step=False, on_epoch=True)
        return loss

    def _objective(self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(supervised, semi-supervised) terms of a batch."""
        raise NotImplementedError

    def _smoothness(
        self, public: torch.Tensor, outputs: torch.Tensor, choose: losses.Network, divergence: losses.Divergence
    ) -> torch.Tensor:
        """How far a small adversarial step takes the outputs of ``public`` away (VAT). ``choose``: of the network's outputs."""
        c = self._config
        with frozen_statistics(self.network):
            return losses.virtual_adversarial_loss(
                lambda x: choose(self.network(x)),
                self._standardised(public),
                outputs,
                epsilon=c.vat_epsilon,
                xi=c.vat_xi,
                iterations=c.vat_iterations,
                generator=torch.Generator().manual_seed((self._seed << 24) + self.global_step),
                divergence=divergence,
            )

    @torch.no_grad()
    def on_train_batch_end(self, *_: object) -> None:
        """Exponential average of weights and batch statistics; the decay grows to its value, to forget the start."""
        decay = min(self._config.ema_decay, (1 + self.global_step) / (10 + self.global_step))
        for mean, value in zip(self.average.state_dict().values(), self.network.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - decay)
            else:
                mean.copy_(value)

    def configure_optimizers(self) -> dict[str, object]:  # type: ignore[override]
        c = self._config
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=c.learning_rate, weight_decay=c.weight_decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=c.learning_rate, total_steps=c.steps + 1, pct_start=0.15)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Student(Trainee):
    """Trains a backbone on released classes and all public inputs.

    ``attributes``: there are ``num_classes`` of them, each present or absent, and every loss is the mean over them of its binary
    form (losses.pairs).
    """

    class_share: torch.Tensor  # float32 [c], running share of each class among the predictions

    def __init__(
        self,
        config: StudentConfig,
        network: Backbone,
        num_classes: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        seed: int,
        attributes: bool = False,
    ) -> None:
        super().__init__(config, network, mean, std, seed)
        self._attributes, self._outcomes = attributes, 2 if attributes else num_classes
        self.register_buffer("class_share", torch.full((num_classes,), 1 / num_classes))  # resumes with the state dict
        self.accuracy: MulticlassAccuracy | MultilabelAccuracy
        if attributes:  # the mean over the attributes, as in CVPR20 Table 3
            self.accuracy = MultilabelAccuracy(num_classes, average="macro")
        else:
            self.accuracy = MulticlassAccuracy(num_classes, average="micro")

    def _objective(self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(supervised, semi-supervised) terms. One forward pass for all rows, so that batch norm sees one population."""
        c, x = self._config, self._augment.weak(x)
        if c.objective == "supervised":
            return self._supervised(self._choices(self(x)), y), torch.zeros((), device=self.device)
        if c.objective == "uda":
            logits = self(torch.cat([x, public, self._augment.strong(public)]))
            labelled, clean, augmented = map(self._choices, logits.split([len(x), len(public), len(public)]))
            target = self._aligned(clean) if c.class_prior == "uniform" else clean
            return self._supervised(labelled, y), losses.uda_consistency(target, augmented, c.uda_temperature, c.uda_confidence)
        public = self._augment.weak(public)
        labelled, clean = map(self._choices, self(torch.cat([x, public])).split([len(x), len(public)]))
        return self._supervised(labelled, y), self._adversarial(public, clean)

    def _choices(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of exclusive outcomes: of the classes as they are, of each attribute being absent or present."""
        return losses.pairs(logits) if self._attributes else logits

    @torch.no_grad()
    def _aligned(self, clean: torch.Tensor) -> torch.Tensor:
        """Targets aligned to equally frequent classes, by the running share of each class among the predictions."""
        self.class_share.lerp_(clean.softmax(dim=1).mean(dim=0), 1 - SHARE_DECAY)
        return losses.align(clean, self.class_share)

    def _adversarial(self, public: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        c = self._config
        smooth = self._smoothness(public, logits, self._choices, losses.kl_divergence)
        certain = losses.entropy(logits)
        if c.class_prior == "uniform":
            certain = certain + c.balance_weight * losses.imbalance(logits)
        return smooth + c.entropy_weight * certain

    def _supervised(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        c, y = self._config, y.flatten()
        logits, y = logits[y >= 0], y[y >= 0]  # of a labelled row's attributes some may be unsaid
        if c.loss == "gce" and self.global_step >= c.gce_warm_up * c.steps:
            each = losses.generalised_cross_entropy(logits, y, c.gce_q, c.gce_truncation)
        else:
            each = F.cross_entropy(logits, y, reduction="none")
        schedule = c.uda_tsa if c.objective == "uda" else "none"
        threshold = losses.tsa_threshold(schedule, self.global_step / c.steps, self._outcomes)
        return losses.annealed_mean(each, logits, y, threshold)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """Reported, never selected by: the last averaged weights are the student, whatever this says."""
        x, y = batch
        logits = self.average(self._standardised(x))
        self.accuracy((logits > 0).long() if self._attributes else logits, y)
        self.log("accuracy/test", self.accuracy, on_step=False, on_epoch=True)
