"""The students as LightningModules: what objectives are made of, for each kind of label."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.transforms import v2

from ..wall.label_kinds import STEPS
from ..wall.networks import Backbone
from ..wall.preprocessing import Preprocessing
from . import losses
from .batches import STEPS_A_CHAPTER, Batch, Pool
from .objectives import OBJECTIVES
from .student_config import StudentConfig
from .tuning import (
    BALANCE,
    EMA_DECAY,
    GCE_Q,
    GCE_TRUNCATION,
    GCE_WARM_UP,
    LAYER_DECAY,
    SHARE_DECAY,
    UDA_CONFIDENCE,
    UDA_TEMPERATURE,
    VAT_XI,
    WEIGHT_DECAY,
)

# Images that share one draw: v2 draws once a call, and a call a single image costs more than the
# network's step
GROUP = 16
BILINEAR = v2.InterpolationMode.BILINEAR


class Augmenter:
    """Distorts images, float32 [n, c, h, w] on the 0..1 scale.

    Feature vectors [n, d] get a little Gaussian noise, in deviations of each entry.

    ``strength``: none, shift (affine distortions that keep a digit's class) or natural (adds
    mirroring and RandAugment). Draws from torch's global generator, which a training step seeds.
    """

    def __init__(self, strength: str) -> None:
        mirror = v2.RandomAffine(degrees=0, translate=(0.125, 0.125)), v2.RandomHorizontalFlip()
        nudge = v2.RandomAffine(degrees=8, translate=(0.07, 0.07), interpolation=BILINEAR)
        affine = v2.RandomAffine(
            degrees=12, translate=(0.08, 0.08), scale=(0.88, 1.12), shear=7, interpolation=BILINEAR
        )
        # Erasing a patch of a digit can make it another one: with it, consistency cost MNIST a
        # point even under true labels.
        erasing = v2.RandomErasing(p=0.5, scale=(0.02, 0.15))
        change = v2.RandAugment(num_ops=2, magnitude=9)  # of bytes
        to_bytes, back = v2.ToDtype(torch.uint8, scale=True), v2.ToDtype(torch.float32, scale=True)
        natural = v2.Compose([*mirror, to_bytes, change, back, erasing])
        self._weak = {"none": None, "shift": nudge, "natural": v2.Compose(mirror)}[strength]
        self._strong = {"none": None, "shift": affine, "natural": natural}[strength]

    def weak(self, x: torch.Tensor) -> torch.Tensor:
        """What labelled inputs go through."""
        return _grouped(x, self._weak, 0.02)

    def strong(self, x: torch.Tensor) -> torch.Tensor:
        """What the student must not be confused by (UDA)."""
        return _grouped(x, self._strong, 0.1)


def weak_views(kept: int) -> int:
    """How many of the views that were kept of an image are weakly distorted, itself among them."""
    return (kept + 1) // 2


class Kept:
    """Draws one of the views that were kept of each row, [n, views, ...]."""

    def weak(self, x: torch.Tensor) -> torch.Tensor:
        return _drawn(x[:, : weak_views(x.shape[1])])

    def strong(self, x: torch.Tensor) -> torch.Tensor:
        return _drawn(x[:, min(weak_views(x.shape[1]), x.shape[1] - 1) :])


def _drawn(views: torch.Tensor) -> torch.Tensor:
    each = torch.randint(views.shape[1], (len(views),))
    return views[torch.arange(len(views)), each]


def _grouped(x: torch.Tensor, transform: v2.Transform | None, noise: float) -> torch.Tensor:
    if x.ndim == 2:
        return x + noise * x.std(dim=0, correction=0) * torch.randn_like(x)
    return x if transform is None else torch.cat([transform(group) for group in x.split(GROUP)])


def _first(x: torch.Tensor) -> torch.Tensor:
    """The first of the views that were kept of each row; single views as they are."""
    return x[:, 0] if x.ndim == 5 else x


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


class Student(pl.LightningModule):
    """Trains a backbone on released classes and all public inputs. It has a running average, a
    schedule, and for every step a draw of its own, from (``seed``, step, device).

    ``pool``: what is learned, and how its inputs are standardised; or inputs [n, views, ...] as the
    network takes them, several views of each row. ``depths``: layers of a pretrained ``network``'s
    parameters by name, from 0; the earlier ones learn more slowly.
    """

    class_share: torch.Tensor  # float32 [c], running share of each class among the predictions

    def __init__(
        self,
        config: StudentConfig,
        network: Backbone,
        pool: Pool,
        seed: int,
        depths: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        # Convolutions of small images take a half to a quarter of the time by this order
        self.network = network.to(memory_format=torch.channels_last)
        # The student; in the state dict, so it resumes exactly
        self.average = copy.deepcopy(network).requires_grad_(False)
        self.config, self._labels, self._seed = config, pool.labels, seed
        kept, self._depths = pool.inputs.ndim == 5, depths
        self._preprocess = _first if kept else Preprocessing(pool.mean, pool.std)
        self._objective = OBJECTIVES[config.objective]
        self.augment = Kept() if kept else Augmenter(config.augment)
        self._terms: list[torch.Tensor] = []  # of the loss, of each step of this chapter
        self._tested: list[tuple[torch.Tensor, torch.Tensor]] = []  # outputs and truth
        # A buffer, so that it resumes with the state dict
        count = pool.labels.outputs
        self.register_buffer("class_share", torch.full((count,), 1 / count))

    def _choices(self, outputs: torch.Tensor) -> torch.Tensor:
        """Outputs as the losses take them: logits of exclusive outcomes, or values."""
        return outputs

    def consistency(self, clean: torch.Tensor, augmented: torch.Tensor) -> torch.Tensor:
        """UDA's term. With a class prior, targets are aligned by the running share of each class
        among the predictions.
        """
        if self.config.class_prior == "uniform":
            with torch.no_grad():
                self.class_share.lerp_(clean.softmax(dim=1).mean(dim=0), 1 - SHARE_DECAY)
            clean = losses.align(clean, self.class_share)
        return losses.uda_consistency(clean, augmented, UDA_TEMPERATURE, UDA_CONFIDENCE)

    def _divergence(self, clean: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        """VAT's distance, summed over rows."""
        return losses.kl_divergence(clean, moved)

    def certain(self, outputs: torch.Tensor) -> torch.Tensor:
        """What VAT adds to smoothness: entropy of the predictions; with a class prior, their
        imbalance as well.
        """
        certain = losses.entropy(outputs)
        if self.config.class_prior == "uniform":
            certain = certain + BALANCE * losses.imbalance(outputs)
        return self.config.entropy_weight * certain

    def supervised(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """``y``: labels int64 [b] or [b, c], or class probabilities float32 [b, c]."""
        c = self.config
        if y.is_floating_point():  # not gce, which forgives labels because they hide their doubt
            return F.cross_entropy(outputs, y, reduction="none").mean()
        y = y.flatten()
        outputs, y = outputs[y >= 0], y[y >= 0]  # of a row's attributes some may be unsaid
        if c.loss == "gce" and self.global_step >= GCE_WARM_UP * c.steps:
            return losses.generalised_cross_entropy(outputs, y, GCE_Q, GCE_TRUNCATION).mean()
        return F.cross_entropy(outputs, y, reduction="none").mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs float32 [n, c] of inputs on the 0..1 scale."""
        return exact(self.network(self._preprocess(x)))

    @property
    def _step_seed(self) -> int:
        return (self._seed << 24) + self.global_step + (self.global_rank << 56)

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            if self.device.type == "cpu":  # all devices' seeds take longer than a small step
                torch.default_generator.manual_seed(self._step_seed)
            else:
                torch.manual_seed(self._step_seed)
            supervised, unlabelled = self._objective.terms(self, batch)
        self._note(supervised.detach(), unlabelled.detach())
        return supervised + unlabelled

    def _note(self, *terms: torch.Tensor) -> None:
        """Log the terms' means over a chapter at its last step; once a step would cost a fifth of
        a small network's time.
        """
        self._terms.append(torch.stack(terms))
        done = self.global_step + 1
        if done % STEPS_A_CHAPTER == 0 or done == self.config.steps:
            supervised, unlabelled = torch.stack(self._terms).mean(dim=0)
            self._terms.clear()
            self.log_dict(
                {"loss/supervised": supervised, "loss/unlabelled": unlabelled},
                on_step=False,
                on_epoch=True,
                sync_dist=self.config.devices > 1,
            )

    def nothing(self) -> torch.Tensor:
        return torch.zeros((), device=self.device)

    @torch.no_grad()
    def constant(self, x: torch.Tensor) -> torch.Tensor:
        """Choices for ``x`` as targets, which have no gradient."""
        return self._choices(self(x))

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` distorted, the second half of it strongly."""
        half = len(x) // 2
        return torch.cat([self.augment.weak(x[:half]), self.augment.strong(x[half:])])

    @torch.no_grad()
    def said(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Choices of the averaged student for weakly distorted ``inputs``."""
        weak = torch.cat([self.augment.weak(x) for x in inputs if len(x)])
        said = exact(self.average(self._preprocess(weak)))
        return [self._choices(part) for part in said.split([len(x) for x in inputs])]

    def co_refined(
        self, outputs: torch.Tensor, y: torch.Tensor, said: torch.Tensor, trust: float
    ) -> torch.Tensor:
        """Cross-entropy to the mean of labels and of what is ``said``, which counts ``trust``."""
        if not y.is_floating_point():
            y = y.flatten()
            outputs, said, y = outputs[y >= 0], said[y >= 0], y[y >= 0]
            y = F.one_hot(y, outputs.shape[1]).float()
        target = (1 - trust) * y + trust * said.softmax(dim=1)
        return F.cross_entropy(outputs, target)

    def outputs(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Choices for each of the ``inputs``, in one pass: batch norm sees one population."""
        outputs = self(torch.cat(inputs)).split([len(x) for x in inputs])
        return [self._choices(part) for part in outputs]

    def smoothness(self, public: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
        """How far a small adversarial step takes the outputs of a public batch away (VAT), on the
        mean of its rows.
        """
        generator = torch.Generator().manual_seed(self._step_seed)
        directions = torch.randn(public.shape, generator=generator, dtype=public.dtype)
        with frozen_statistics(self.network):
            return losses.virtual_adversarial_loss(
                lambda x: self._choices(exact(self.network(x))),
                self._preprocess(public),
                outputs,
                epsilon=self.config.vat_epsilon,
                xi=VAT_XI,
                directions=directions.to(public.device),
                divergence=self._divergence,
            )

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> None:
        """Reported, never selected by: the last averaged weights are the student."""
        x, y = batch
        self._tested.append((exact(self.average(self._preprocess(x))), y))

    def on_validation_epoch_end(self) -> None:
        outputs, truth = (torch.cat(part).cpu().numpy() for part in zip(*self._tested, strict=True))
        self._tested.clear()
        score = self._labels.score(self._labels.predict(outputs), truth)
        names = ("accuracy",) if "errors" not in score else ("rmse", "r2")
        measured = score.get("errors", score) or {}
        self.log_dict({f"{name}/test": measured[name] for name in names if name in measured})

    @torch.no_grad()
    def on_train_batch_end(self, *_: object) -> None:
        """Exponential average of weights and batch statistics; the decay grows to its value, to
        forget the start.
        """
        decay = min(EMA_DECAY, (1 + self.global_step) / (10 + self.global_step))
        averages, values = (
            (*network.parameters(), *network.buffers()) for network in (self.average, self.network)
        )
        for mean, value in zip(averages, values, strict=True):
            if mean.is_floating_point():
                mean.lerp_(value, 1 - decay)
            else:
                mean.copy_(value)

    def configure_optimizers(self) -> dict[str, object]:  # type: ignore[override]
        c = self.config
        layers: dict[int, list[nn.Parameter]] = {}
        for name, parameter in self.network.named_parameters():
            layers.setdefault(self._depths[name] if self._depths else 0, []).append(parameter)
        rates = [c.learning_rate * LAYER_DECAY ** (max(layers) - depth) for depth in layers]
        optimizer = torch.optim.AdamW(
            [
                {"params": layer, "lr": rate}
                for layer, rate in zip(layers.values(), rates, strict=True)
            ],
            weight_decay=WEIGHT_DECAY,
            fused=True,
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=rates, total_steps=c.steps + 1, pct_start=0.15
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class AttributeStudent(Student):
    """Trains on released attributes, each present or absent: every loss is the mean over them of
    its binary form.
    """

    def _choices(self, outputs: torch.Tensor) -> torch.Tensor:
        """Logits of each attribute being absent or present."""
        return losses.pairs(outputs)


class Regressor(Student):
    """Trains a backbone with one output, which is -1 at a value's lower bound and 1 at the upper
    one.

    Released labels are steps between the bounds, int64 [b]. Everything a class has a probability
    for (confidence, entropy, generalised cross-entropy) has no counterpart here.
    """

    def consistency(self, clean: torch.Tensor, augmented: torch.Tensor) -> torch.Tensor:
        return losses.squared_difference(clean, augmented) / len(clean)

    def _divergence(self, clean: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        return losses.squared_difference(clean, moved)

    def certain(self, outputs: torch.Tensor) -> torch.Tensor:
        return self.nothing()

    def co_refined(
        self, outputs: torch.Tensor, y: torch.Tensor, said: torch.Tensor, trust: float
    ) -> torch.Tensor:
        target = (1 - trust) * (2 * y.float()[:, None] / STEPS - 1) + trust * said
        return F.mse_loss(outputs, target)

    def supervised(self, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        targets = 2 * y.float()[:, None] / STEPS - 1  # [b] -> [b, 1]
        return F.mse_loss(outputs, targets)


STUDENT_MODULES: dict[str, type[Student]] = {  # by a label space's kind
    "class": Student,
    "attributes": AttributeStudent,
    "value": Regressor,
}
