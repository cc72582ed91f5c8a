"""The students as LightningModules: supervised, VAT or UDA, by the losses of student.losses."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MultilabelAccuracy
from torchmetrics.regression import MeanSquaredError, R2Score

from ..wall.labels.base import LabelSpace
from ..wall.labels.values import STEPS
from ..wall.networks.architectures import Backbone
from ..wall.preprocessing import Preprocessing
from . import losses
from .augment import Augmenter
from .config import StudentConfig
from .data import STEPS_A_CHAPTER, Batch

WEIGHT_DECAY = 1e-2  # AdamW's, per step and unit of learning rate
EMA_DECAY = 0.995  # of the averaged weights that are kept, per step
SHARE_DECAY = 0.98  # of the running share of each predicted class, per step
GCE_Q = 0.7  # near 0 cross-entropy, 1 mean absolute error
GCE_TRUNCATION = 0.3  # a label that the student gives a smaller probability does not count
# Share of the steps under cross-entropy before gce: from fresh weights it may never learn a class
GCE_WARM_UP = 0.3
BALANCE = 4.0  # weight of the predictions' imbalance, relative to that of their entropy
VAT_XI = 0.1  # length of the finite difference, in standard deviations of the input
UDA_TEMPERATURE = 0.5  # sharpens the targets
UDA_CONFIDENCE = 0.9  # inputs whose largest probability is below do not count


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Batch norm's running statistics stay: perturbed inputs are not the population that the
    student will see.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def exact(x: torch.Tensor) -> torch.Tensor:
    """``x`` in float32, or as it is where that is more exact.

    Half precision is for products; statistics and losses are sums.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def seed_draws(seed: int) -> None:
    """Seed the generators that a step draws from.

    torch.manual_seed would also note the seed, with a stack trace, for each kind of device that
    this process has not used.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


class StudentModule(pl.LightningModule):
    """What all students share: a backbone, its running average, the schedule, and a draw of its own
    for every step.

    ``labels``: what is learned. ``takes_class_prior``: whether a prior over exclusive classes has a
    meaning for them. ``mean``, ``std``: per-channel statistics of public images (0..1 scale), empty
    for vectors; ``seed``: of the random distortions and perturbations, drawn anew from (seed, step,
    device) at every step.
    """

    takes_class_prior: ClassVar[bool] = False

    def __init__(
        self,
        config: StudentConfig,
        network: Backbone,
        labels: LabelSpace,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        seed: int,
    ) -> None:
        super().__init__()
        self.network = network
        # The student; in the state dict, so it resumes exactly
        self.average = copy.deepcopy(network).requires_grad_(False)
        self._config, self._labels, self._seed = config, labels, seed
        self._preprocess = Preprocessing(mean, std)
        self._augment = Augmenter(config.augment)
        self._terms: list[torch.Tensor] = []  # of the loss, of each step of this chapter
        self._prepare()

    def _prepare(self) -> None:
        """Metrics and state of this kind of label, at the end of the construction."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs float32 [n, c] of inputs on the 0..1 scale."""
        return exact(self.network(self._preprocess(x)))

    @property
    def _step_seed(self) -> int:
        return (self._seed << 24) + self.global_step + (self.global_rank << 56)

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            seed_draws(self._step_seed)
            supervised, unlabelled = self._objective(*batch)
        self._note(supervised.detach(), unlabelled.detach())
        return supervised + unlabelled

    def _note(self, *terms: torch.Tensor) -> None:
        """Log the terms' means over a chapter at its last step; once a step would cost a fifth of
        a small network's time.
        """
        self._terms.append(torch.stack(terms))
        done = self.global_step + 1
        if done % STEPS_A_CHAPTER == 0 or done == self._config.steps:
            supervised, unlabelled = torch.stack(self._terms).mean(dim=0)
            self._terms.clear()
            self.log_dict(
                {"loss/supervised": supervised, "loss/unlabelled": unlabelled},
                on_step=False,
                on_epoch=True,
                sync_dist=self._config.devices > 1,
            )

    def _objective(
        self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(supervised, semi-supervised) terms of a batch."""
        raise NotImplementedError

    def _outputs(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Outputs for each of the ``inputs``, in one pass: batch norm sees one population."""
        return list(self(torch.cat(inputs)).split([len(x) for x in inputs]))

    def _smoothness(
        self,
        public: torch.Tensor,
        outputs: torch.Tensor,
        choose: losses.Network,
        divergence: losses.Divergence,
    ) -> torch.Tensor:
        """How far a small adversarial step takes the outputs of a public batch away (VAT), on the
        mean of its rows.

        ``choose``: of the network's outputs.
        """
        generator = torch.Generator().manual_seed(self._step_seed)
        directions = torch.randn(public.shape, generator=generator, dtype=public.dtype)
        with frozen_statistics(self.network):
            return losses.virtual_adversarial_loss(
                lambda x: choose(exact(self.network(x))),
                self._preprocess(public),
                outputs,
                epsilon=self._config.vat_epsilon,
                xi=VAT_XI,
                directions=directions.to(public.device),
                divergence=divergence,
            )

    @torch.no_grad()
    def on_train_batch_end(self, *_: object) -> None:
        """Exponential average of weights and batch statistics; the decay grows to its value, to
        forget the start.
        """
        decay = min(EMA_DECAY, (1 + self.global_step) / (10 + self.global_step))
        for mean, value in zip(
            self.average.state_dict().values(), self.network.state_dict().values(), strict=True
        ):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - decay)
            else:
                mean.copy_(value)

    def configure_optimizers(self) -> dict[str, object]:  # type: ignore[override]
        c = self._config
        optimizer = torch.optim.AdamW(
            self.network.parameters(), lr=c.learning_rate, weight_decay=WEIGHT_DECAY, fused=True
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=c.learning_rate, total_steps=c.steps + 1, pct_start=0.15
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Student(StudentModule):
    """Trains a backbone on released classes and all public inputs."""

    takes_class_prior = True
    class_share: torch.Tensor  # float32 [c], running share of each class among the predictions

    def _prepare(self) -> None:
        count = self._labels.outputs
        # A buffer, so that it resumes with the state dict.
        self.register_buffer("class_share", torch.full((count,), 1 / count))
        self.accuracy: Metric = MulticlassAccuracy(count, average="micro")

    def _objective(
        self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        objective, prior = self._config.objective, self._config.class_prior
        x = self._augment.weak(x)
        if objective == "supervised":
            nothing = torch.zeros((), device=self.device)
            return self._supervised(self._choices(self(x)), y), nothing
        if objective == "uda":
            strong = self._augment.strong(public)
            # By itself: with the others, batch norm would want a gradient of these rows as well
            with torch.no_grad():
                clean = self._choices(self(public))
            labelled, augmented = map(self._choices, self._outputs(x, strong))
            target = self._aligned(clean) if prior == "uniform" else clean
            consistency = losses.uda_consistency(target, augmented, UDA_TEMPERATURE, UDA_CONFIDENCE)
            return self._supervised(labelled, y), consistency
        moved = self._augment.weak(public)
        labelled, clean = map(self._choices, self._outputs(x, moved))
        smooth = self._smoothness(moved, clean, self._choices, losses.kl_divergence)
        return self._supervised(labelled, y), smooth + self._certain(clean)

    def _choices(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of exclusive outcomes."""
        return logits

    @staticmethod
    def probability(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """What a network gives to each of the ``labels``, int64 [n] or [n, c]: float32 of their
        shape.
        """
        return logits.softmax(dim=1)[torch.arange(len(labels)), labels]

    @torch.no_grad()
    def _aligned(self, clean: torch.Tensor) -> torch.Tensor:
        """Targets aligned to equally frequent classes, by the running share of each class among the
        predictions.
        """
        self.class_share.lerp_(clean.softmax(dim=1).mean(dim=0), 1 - SHARE_DECAY)
        return losses.align(clean, self.class_share)

    def _certain(self, logits: torch.Tensor) -> torch.Tensor:
        """Entropy of the predictions; with a class prior, their imbalance as well."""
        certain = losses.entropy(logits)
        if self._config.class_prior == "uniform":
            certain = certain + BALANCE * losses.imbalance(logits)
        return self._config.entropy_weight * certain

    def _supervised(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``y``: labels int64 [b] or [b, c], or class probabilities float32 [b, c]."""
        c = self._config
        if y.is_floating_point():  # not gce, which forgives labels because they hide their doubt
            return F.cross_entropy(logits, y, reduction="none").mean()
        y = y.flatten()
        logits, y = logits[y >= 0], y[y >= 0]  # of a labelled row's attributes some may be unsaid
        if c.loss == "gce" and self.global_step >= GCE_WARM_UP * c.steps:
            return losses.generalised_cross_entropy(logits, y, GCE_Q, GCE_TRUNCATION).mean()
        return F.cross_entropy(logits, y, reduction="none").mean()

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """Reported, never selected by: the last averaged weights are the student, whatever this
        says.
        """
        x, y = batch
        logits = exact(self.average(self._preprocess(x)))
        self.accuracy(self._predicted(logits), y)
        self.log("accuracy/test", self.accuracy, on_step=False, on_epoch=True)

    def _predicted(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits as the accuracy takes them."""
        return logits


class AttributeStudent(Student):
    """Trains on released attributes, each present or absent: every loss is the mean over them of
    its binary form.
    """

    takes_class_prior = False

    def _prepare(self) -> None:
        super()._prepare()
        # The mean over the attributes, as in CVPR20 Table 3.
        self.accuracy = MultilabelAccuracy(self._labels.outputs, average="macro")

    def _choices(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of each attribute being absent or present."""
        return losses.pairs(logits)

    @staticmethod
    def probability(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.where(labels == 1, logits, -logits).sigmoid()

    def _predicted(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits > 0).long()


class Regressor(StudentModule):
    """Trains a backbone with one output, which is -1 at a value's lower bound and 1 at the upper
    one.

    Released labels are steps between the bounds, int64 [b]. Everything a class has a probability
    for (confidence, entropy, generalised cross-entropy) has no counterpart here.
    """

    def _prepare(self) -> None:
        self.error, self.explained = MeanSquaredError(squared=False), R2Score()

    def _objective(
        self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self._augment.weak(x)
        if self._config.objective == "supervised":
            return self._supervised(self(x), y), torch.zeros((), device=self.device)
        if self._config.objective == "uda":
            labelled, clean, strong = self._outputs(x, public, self._augment.strong(public))
            consistency = losses.squared_difference(clean, strong) / len(public)
            return self._supervised(labelled, y), consistency
        moved = self._augment.weak(public)
        labelled, clean = self._outputs(x, moved)
        smooth = self._smoothness(moved, clean, lambda outputs: outputs, losses.squared_difference)
        return self._supervised(labelled, y), smooth

    def _supervised(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        targets = 2 * y.float()[:, None] / STEPS - 1  # [b] -> [b, 1]
        return F.mse_loss(outputs, targets)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """Reported, never selected by: the last averaged weights are the student, whatever this
        says.
        """
        x, y = batch
        low, high = self._labels.bounds
        share = (exact(self.average(self._preprocess(x)))[:, 0].clamp(-1, 1) + 1) / 2
        values = low + share * (high - low)
        for name, metric in (("rmse/test", self.error), ("r2/test", self.explained)):
            # Not called: a single row has no R2 of its own
            metric.update(values, y.to(values.dtype))
            self.log(name, metric, on_step=False, on_epoch=True)


STUDENT_MODULES: dict[str, type[StudentModule]] = {  # by a label space's loss
    "cross_entropy": Student,
    "binary_cross_entropy": AttributeStudent,
    "squared_error": Regressor,
}
