"""How a student is trained. No torch here: the command line's help reads these fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..wall.errors import InvalidInput


@dataclass(frozen=True)
class StudentConfig:
    """A student's network, objective and optimiser.

    For values the loss is the squared error, vat and uda hold outputs together by squared
    differences, and whatever speaks of classes or of their probabilities (loss, gce_*,
    entropy_weight, uda_temperature, _confidence, _tsa, prune_*) has no effect.

    Args:
        backbone: small_cnn, mnist_cvpr20, svhn_cvpr20, cifar_conv3, mlp (feature vectors), linear
            (one layer on feature vectors, or on the first round's network, which stays as it is),
            or timm/NAME.
        objective: supervised (released labels alone), vat (Miyato et al. 2018) or uda (Xie et al.
            2019).
        loss: supervised loss; gce (generalised cross-entropy, Zhang and Sabuncu 2018) forgives
            wrong labels.
        gce_q: gce's exponent in (0, 1]: near 0 cross-entropy, 1 mean absolute error.
        gce_truncation: a released label that the student gives a smaller probability no longer
            counts, in [0, 1).
        gce_warm_up: share of the steps under cross-entropy before gce takes over, in [0, 1]; from
            fresh weights gce may never learn a class.
        soft: learn class probabilities where a mechanism releases them, by cross-entropy whatever
            the loss, instead of the most probable class.
        steps: optimiser steps of a training, a count.
        batch_labelled: labelled inputs a step, a count.
        batch_unlabelled: public inputs a step for the semi-supervised term, a count.
        learning_rate: peak of the one-cycle schedule of AdamW, per step.
        weight_decay: AdamW's decoupled decay, per step and unit of learning rate.
        ema_decay: of the averaged weights that are kept, per step, in [0, 1).
        warm_start: begin with the previous round's student instead of fresh weights.
        augment: strength of the random distortions: none, shift (small affine, for digits) or
            natural (adds flips, colour).
        unlabelled_weight: factor of the semi-supervised term in the loss.
        class_prior: none, or uniform where the classes are equally frequent among the public
            inputs, as far as one knows: no class then swallows another. uda corrects its targets
            towards that (distribution alignment); vat adds the imbalance of its predictions to
            their entropy, which together is mutual information (Hu et al. 2017).
        entropy_weight: factor of the entropy of predictions on public inputs (vat); above 0.3 only
            with a class prior.
        balance_weight: factor of the imbalance of predictions, relative to entropy_weight (vat with
            a class prior).
        vat_epsilon: length of the adversarial perturbation, in standard deviations of the input
            (L2).
        vat_xi: length of the finite difference, same unit.
        vat_iterations: power iterations, a count.
        uda_temperature: sharpening temperature of the target distribution, in (0, 1].
        uda_confidence: inputs whose largest probability is below do not count, in [0, 1).
        uda_tsa: training signal annealing schedule of the supervised loss: none, linear, log or
            exp.
        prune_folds: folds of the cross-validation that drops doubtful released labels before
            training, a count; 0 keeps all.
        prune_below: a label goes when the other folds' student gives it a smaller probability, in
            [0, 1).
        prune_steps: optimiser steps of each fold's short supervised training, a count.
        calibration_folds: the kept round's labels are cut into so many parts; one more training
            without one of them finds how sure the student may be (the temperature of its
            probabilities), a count; 0 leaves them as they are.
        accelerator: Lightning's accelerator: cpu, gpu or auto (a GPU where there is one).
        devices: how many GPUs, or processes on the CPU, share each step's batch, a count; batch
            sizes are of all together.
        strategy: Lightning's strategy: auto (this process for one device, ddp for several) or ddp
            (a process for each device).
        precision: Lightning's precision: 32-true, bf16-mixed or, on a GPU, 16-mixed; vat needs
            32-true.
        compile: translate the network by torch.compile before training.
    """

    backbone: str = "small_cnn"
    objective: Literal["supervised", "vat", "uda"] = "uda"
    loss: Literal["cross_entropy", "gce"] = "gce"
    gce_q: float = 0.7
    gce_truncation: float = 0.3
    gce_warm_up: float = 0.3
    soft: bool = True
    steps: int = 800
    batch_labelled: int = 32
    batch_unlabelled: int = 96
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    ema_decay: float = 0.995
    warm_start: bool = False
    augment: Literal["none", "shift", "natural"] = "shift"
    unlabelled_weight: float = 1.0
    class_prior: Literal["none", "uniform"] = "none"
    entropy_weight: float = 0.3
    balance_weight: float = 4.0
    vat_epsilon: float = 3.0
    vat_xi: float = 1e-1
    vat_iterations: int = 1
    uda_temperature: float = 0.5
    uda_confidence: float = 0.9
    uda_tsa: Literal["none", "linear", "log", "exp"] = "none"
    prune_folds: int = 4
    prune_below: float = 0.1
    prune_steps: int = 250
    calibration_folds: int = 5
    accelerator: Literal["cpu", "gpu", "auto"] = "cpu"
    devices: int = 1
    strategy: Literal["auto", "ddp"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    compile: bool = False

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_labelled",
            "batch_unlabelled",
            "vat_iterations",
            "prune_steps",
            "devices",
        ):
            _require(name, getattr(self, name) >= 1, "at least 1", getattr(self, name))
        for name in ("learning_rate", "vat_epsilon", "vat_xi"):
            _require(name, getattr(self, name) > 0, "positive", getattr(self, name))
        for name in ("weight_decay", "unlabelled_weight", "entropy_weight", "balance_weight"):
            _require(name, getattr(self, name) >= 0, "at least 0", getattr(self, name))
        for name in ("ema_decay", "uda_confidence", "gce_truncation", "prune_below"):
            _require(name, 0 <= getattr(self, name) < 1, "in [0, 1)", getattr(self, name))
        _require("gce_warm_up", 0 <= self.gce_warm_up <= 1, "in [0, 1]", self.gce_warm_up)
        for name in ("prune_folds", "calibration_folds"):
            folds = getattr(self, name)
            _require(name, folds in (0, *range(2, 21)), "0 or from 2 to 20", folds)
        for name in ("gce_q", "uda_temperature"):
            _require(name, 0 < getattr(self, name) <= 1, "in (0, 1]", getattr(self, name))
        self._check_devices()

    @property
    def apart(self) -> bool:
        """Whether the training has processes of its own."""
        return self.strategy == "ddp" or self.devices > 1

    def _check_devices(self) -> None:
        for name in (
            "batch_labelled",
            *(() if self.objective == "supervised" else ("batch_unlabelled",)),
        ):
            _require(
                name,
                getattr(self, name) >= self.devices,
                "at least student.devices",
                getattr(self, name),
            )
        half = self.precision != "32-true"
        _require(
            "precision",
            not (half and self.objective == "vat"),
            "32-true with objective vat",
            self.precision,
        )
        rule = "32-true or bf16-mixed with accelerator cpu"
        _require(
            "precision",
            not (self.precision == "16-mixed" and self.accelerator == "cpu"),
            rule,
            self.precision,
        )
        _require(
            "compile",
            not (self.compile and self.apart),
            "false with several devices or strategy ddp",
            self.compile,
        )


def _require(name: str, rule_holds: bool, rule: str, found: object) -> None:
    if not rule_holds:  # also catches NaN
        raise InvalidInput(f"student.{name}", rule, found)
