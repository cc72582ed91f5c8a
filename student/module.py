"""The student as one LightningModule: supervised, VAT or UDA, by the losses of student.losses."""

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

from ..wall.labels.base import LabelSpace
from ..wall.networks.architectures import Backbone
from ..wall.preprocessing import Preprocessing
from . import losses
from .augment import Augmenter
from .config import StudentConfig
from .data import STEPS_A_CHAPTER, Batch
from .norms import share_norms
from .ranks import ALONE, Ranks, exact


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


def seed_draws(seed: int) -> None:
    """Seed the generators that a step draws from.

    torch.manual_seed would also note the seed, with a stack trace, for each kind of device that
    this process has not used.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


SHARE_DECAY = 0.98  # of the running share of each predicted class, per step


class StudentModule(pl.LightningModule):
    """What all students share: a backbone, its running average, the schedule, and a draw of its own
    for every step.

    ``labels``: what is learned. ``takes_class_prior``: whether a prior over exclusive classes has a
    meaning for them. ``mean``, ``std``: per-channel statistics of public images (0..1 scale), empty
    for vectors; ``seed``: of the random distortions and perturbations, drawn anew from (seed, step)
    at every step. ``ranks``: the processes that share the training; each is given whole batches,
    draws for all of their rows, and has its own rows go through the network.
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
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__()
        # Before the norms are replaced: it is an ordinary network
        average = copy.deepcopy(network).requires_grad_(False)
        self.network = network if ranks.size == 1 else share_norms(network)
        self.average = average  # the student; in the state dict, so it resumes exactly
        self._config, self._labels, self._seed, self._ranks = config, labels, seed, ranks
        self._preprocess = Preprocessing(mean, std)
        self._augment = Augmenter(config.augment)
        self._terms: list[torch.Tensor] = []  # of the loss, of each step of this chapter
        self._prepare()

    def _prepare(self) -> None:
        """Metrics and state of this kind of label, at the end of the construction."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs float32 [n, c] of inputs on the 0..1 scale."""
        return exact(self.network(self._standardised(x)))

    def _standardised(self, x: torch.Tensor) -> torch.Tensor:
        return self._preprocess(x)

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            seed_draws((self._seed << 24) + self.global_step)
            supervised, unlabelled = self._objective(*batch)
        loss = supervised + self._config.unlabelled_weight * unlabelled
        self._note(supervised.detach(), unlabelled.detach())
        return loss * self._ranks.size

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
            )

    def _objective(
        self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(supervised, semi-supervised) terms of a whole batch, with a gradient for the rows of
        this rank.
        """
        raise NotImplementedError

    def _outputs(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """This rank's outputs for its rows of each of the ``inputs``.

        One forward pass: batch norm sees one population.
        """
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

        ``public``, ``outputs``: this rank's rows; ``choose``: of the network's outputs.
        """
        c, rows = self._config, self._config.batch_unlabelled
        generator = torch.Generator().manual_seed((self._seed << 24) + self.global_step)
        directions = torch.randn(
            (rows, *public.shape[1:]), generator=generator, dtype=public.dtype
        )[self._ranks.part(rows)]
        with frozen_statistics(self.network):
            own = losses.virtual_adversarial_loss(
                lambda x: choose(exact(self.network(x))),
                self._standardised(public),
                outputs,
                epsilon=c.vat_epsilon,
                xi=c.vat_xi,
                iterations=c.vat_iterations,
                directions=directions.to(public.device),
                divergence=divergence,
            )
        return self._ranks.total(own * (len(public) / rows))

    @torch.no_grad()
    def on_train_batch_end(self, *_: object) -> None:
        """Exponential average of weights and batch statistics; the decay grows to its value, to
        forget the start.
        """
        decay = min(self._config.ema_decay, (1 + self.global_step) / (10 + self.global_step))
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
            self.network.parameters(),
            lr=c.learning_rate,
            weight_decay=c.weight_decay,
            fused=True,
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
        self._outcomes = count  # exclusive ones, of which one is right
        # A buffer, so that it resumes with the state dict.
        self.register_buffer("class_share", torch.full((count,), 1 / count))
        self.accuracy: Metric = MulticlassAccuracy(count, average="micro")

    def _objective(
        self, x: torch.Tensor, y: torch.Tensor, public: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        c = self._config
        labelled_rows = self._ranks.part(len(x))
        public_rows = self._ranks.part(len(public))
        x = self._augment.weak(x, labelled_rows)
        if c.objective == "supervised":
            return self._supervised(self._whole(self(x), len(y)), y), torch.zeros(
                (), device=self.device
            )
        if c.objective == "uda":
            strong = self._augment.strong(public, public_rows)
            # By itself: with the others, batch norm would want a gradient of these rows as well
            with torch.no_grad():
                clean = self(public[public_rows])
            labelled, augmented = self._outputs(x, strong)
            clean, augmented = (self._whole(rows, len(public)) for rows in (clean, augmented))
            target = self._aligned(clean) if c.class_prior == "uniform" else clean
            consistency = losses.uda_consistency(
                target, augmented, c.uda_temperature, c.uda_confidence
            )
            return self._supervised(self._whole(labelled, len(y)), y), consistency
        moved = self._augment.weak(public, public_rows)
        labelled, clean = self._outputs(x, moved)
        smooth = self._smoothness(moved, self._choices(clean), self._choices, losses.kl_divergence)
        return self._supervised(self._whole(labelled, len(y)), y), smooth + self._certain(
            self._whole(clean, len(public))
        )

    def _whole(self, logits: torch.Tensor, rows: int) -> torch.Tensor:
        """Logits of exclusive outcomes for all ``rows`` of a batch, from this rank's."""
        return self._choices(self._ranks.whole(logits, rows))

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
        c, certain = self._config, losses.entropy(logits)
        if c.class_prior == "uniform":
            certain = certain + c.balance_weight * losses.imbalance(logits)
        return c.entropy_weight * certain

    def _supervised(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``y``: labels int64 [b] or [b, c], or class probabilities float32 [b, c]."""
        c = self._config
        if y.is_floating_point():  # not gce, which forgives labels because they hide their doubt
            each, y = F.cross_entropy(logits, y, reduction="none"), y.argmax(dim=1)
            return self._annealed(each, logits, y)
        y = y.flatten()
        logits, y = logits[y >= 0], y[y >= 0]  # of a labelled row's attributes some may be unsaid
        if c.loss == "gce" and self.global_step >= c.gce_warm_up * c.steps:
            each = losses.generalised_cross_entropy(logits, y, c.gce_q, c.gce_truncation)
        else:
            each = F.cross_entropy(logits, y, reduction="none")
        return self._annealed(each, logits, y)

    def _annealed(self, each: torch.Tensor, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean of the rows' losses, float32 [b], annealed by their (most probable) labels ``y``."""
        c = self._config
        schedule = c.uda_tsa if c.objective == "uda" else "none"
        threshold = losses.tsa_threshold(schedule, self.global_step / c.steps, self._outcomes)
        return losses.annealed_mean(each, logits, y, threshold)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """Reported, never selected by: the last averaged weights are the student, whatever this
        says.
        """
        x, y = batch
        logits = exact(self.average(self._standardised(x)))
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
        self._outcomes = 2
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
