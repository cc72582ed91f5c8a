"""How a student is trained. No torch here: the command line's help reads these fields."""

from dataclasses import dataclass, replace
from typing import Literal

from ..wall.errors import InvalidInput
from ..wall.messages import SIDES
from .objectives import OBJECTIVES

BY_FEATURES = "auto"  # the backbone that follows from the features
PRETRAINED = "pretrained"  # the backbone that begins at the first round's network
LINEAR_STEPS = 600  # of one layer, which learns soon
COUNTS = "steps batch_labelled batch_unlabelled doubtful_steps devices kept_views"


@dataclass(frozen=True)
class StudentConfig:
    """A student's network, objective and optimiser.

    For values the loss is the squared error, vat and uda hold outputs together by squared
    differences, and whatever speaks of classes or of their probabilities has no effect.

    Args:
        backbone: small_cnn, mnist_cvpr20, svhn_cvpr20, cifar_conv3, mlp (feature vectors), linear
            (one layer on feature vectors, or on the first round's network, which stays as it is),
            pretrained (the first round's network, such as features: efficientnet_lite2_stages,
            whose last blocks learn; its features go back), timm/NAME (fresh weights), auto (one
            supervised layer on a network's features, small_cnn beside hog).
        objective: supervised (released labels alone), vat (Miyato et al. 2018), uda (Xie et al.
            2019) or fixmatch (Sohn et al. 2020, on noisy labels: targets are released labels and,
            more and more, what the averaged student says).
        loss: supervised loss; gce (generalised cross-entropy, Zhang and Sabuncu 2018) forgives
            wrong labels.
        soft: learn class probabilities where a mechanism releases them, by cross-entropy whatever
            the loss, instead of the most probable class.
        steps: optimiser steps of a training, a count.
        batch_labelled: labelled inputs a step, a count.
        batch_unlabelled: public inputs a step for the semi-supervised term, a count.
        learning_rate: peak of the one-cycle schedule of AdamW, per step.
        augment: strength of the random distortions: none, shift (small affine, for digits) or
            natural (adds flips, colour).
        class_prior: none, or uniform if you know that classes are equally frequent among the public
            inputs: prevents one class from absorbing others. uda corrects its targets towards that
            (distribution alignment); vat adds the imbalance of its predictions to their entropy,
            which together is mutual information (Hu et al. 2017).
        entropy_weight: factor of the entropy of predictions on public inputs (vat). Advice: without
            a class prior take at most 0.3.
        vat_epsilon: length of the adversarial perturbation, in standard deviations of the input
            (L2).
        image_side: pixels of a side that images are enlarged to for backbone pretrained; its
            network's own size is more exact and takes longer.
        trained_blocks: last blocks of the pretrained network that learn, a count; the others stay
            as they are, and are computed once. 0: all learn, for a GPU.
        kept_views: augmented views of each public image that are kept for this, on the disk, a
            count.
        doubtful_folds: folds of the cross-validation that drops doubtful released labels before
            training, a count; 0 keeps all.
        doubtful_steps: optimiser steps of each fold's short supervised training, at most, a count:
            few labels take 100.
        accelerator: Lightning's accelerator: cpu, gpu or auto (a GPU where there is one).
        devices: how many GPUs, or processes on the CPU, share each step's batch, a count; batch
            sizes are of all together.
        precision: Lightning's precision: 32-true, bf16-mixed or, on a GPU, 16-mixed; vat needs
            32-true.
        logger: where public metrics go beside events.tfevents in each round's folder: tensorboard
            (rounds with their images and features, in the folder board), or trainings alone to csv,
            mlflow or wandb by Lightning's loggers.
    """

    backbone: str = "small_cnn"
    objective: Literal[tuple(OBJECTIVES)] = "uda"  # type: ignore[valid-type]
    loss: Literal["cross_entropy", "gce"] = "gce"
    soft: bool = True
    steps: int = 800
    batch_labelled: int = 32
    batch_unlabelled: int = 96
    learning_rate: float = 3e-3
    augment: Literal["none", "shift", "natural"] = "shift"
    class_prior: Literal["none", "uniform"] = "none"
    entropy_weight: float = 0.3
    vat_epsilon: float = 3.0
    image_side: int = 96
    trained_blocks: int = 4
    kept_views: int = 6
    doubtful_folds: int = 4
    doubtful_steps: int = 250
    accelerator: Literal["cpu", "gpu", "auto"] = "cpu"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    logger: Literal["tensorboard", "csv", "mlflow", "wandb"] = "tensorboard"

    def __post_init__(self) -> None:
        for name in COUNTS.split():
            self._require(name, getattr(self, name) >= 1, "at least 1")
        self._require("trained_blocks", self.trained_blocks >= 0, "at least 0")
        low, high = SIDES
        self._require("image_side", low <= self.image_side <= high, f"from {low} to {high}")
        if self.backbone == PRETRAINED:
            self._require("devices", self.devices == 1, f"1 with student.backbone: {PRETRAINED}")
        for name in ("learning_rate", "vat_epsilon"):
            self._require(name, getattr(self, name) > 0, "positive")
        self._require("entropy_weight", self.entropy_weight >= 0, "at least 0")
        folds = self.doubtful_folds in (0, *range(2, 21))
        self._require("doubtful_folds", folds, "0 or from 2 to 20")
        objective = OBJECTIVES[self.objective]
        unlabelled = ["batch_unlabelled"] if objective.unlabelled else []
        for name in ("batch_labelled", *unlabelled):
            shared = getattr(self, name) >= self.devices
            self._require(name, shared, "at least student.devices")
        exact = self.precision == "32-true" or not objective.exact
        self._require("precision", exact, f"32-true with objective {objective.name}")

    def beside(self, *, network: bool) -> "StudentConfig":
        """What ``auto`` becomes beside first features that are a network's, or are not."""
        if self.backbone != BY_FEATURES:
            return self
        if not network:
            return replace(self, backbone="small_cnn")
        one_layer = replace(self, backbone="linear", steps=LINEAR_STEPS)
        return replace(one_layer, objective="supervised", augment="none")

    @property
    def mirrors(self) -> bool:
        """Whether an image's mirror image has its label."""
        return self.augment == "natural"

    def _require(self, name: str, rule_holds: bool, rule: str) -> None:
        if not rule_holds:  # also catches NaN
            raise InvalidInput(f"student.{name}", rule, getattr(self, name))
