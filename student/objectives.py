"""What a step learns from, by the objective's name. Loads without torch: a help lists the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .tuning import TRUST, TRUSTED_AFTER

if TYPE_CHECKING:
    from torch import Tensor

    Student = Any  # module.Student, which imports this file
    Batch = tuple[Tensor, Tensor, Tensor]
    Terms = tuple[Tensor, Tensor]  # supervised and semi-supervised, each a scalar


class Objective:
    """The loss of a step, of which each label kind has its forms (``Student``).

    ``unlabelled``: it learns from public rows; ``unsaid_alone``: of these only from rows without a
    released label; ``exact``: it needs 32 bits.
    """

    name: ClassVar[str]
    unlabelled = True
    unsaid_alone = False
    exact = False

    def terms(self, student: Student, batch: Batch) -> Terms:
        """The two terms of a batch: labelled inputs, their labels, public inputs."""
        raise NotImplementedError


class Supervised(Objective):
    """Released labels alone."""

    name, unlabelled = "supervised", False

    def terms(self, student: Student, batch: Batch) -> Terms:
        x, y, _ = batch
        (labelled,) = student.outputs(student.augment.weak(x))
        return student.supervised(labelled, y), student.nothing()


class Vat(Objective):
    """Virtual adversarial training (Miyato et al. 2018)."""

    name, exact = "vat", True

    def terms(self, student: Student, batch: Batch) -> Terms:
        x, y, public = batch
        x, moved = student.augment.weak(x), student.augment.weak(public)
        labelled, clean = student.outputs(x, moved)
        smooth = student.smoothness(moved, clean)
        return student.supervised(labelled, y), smooth + student.certain(clean)


class Uda(Objective):
    """Consistency under strong distortions (Xie et al. 2019)."""

    name = "uda"

    def terms(self, student: Student, batch: Batch) -> Terms:
        x, y, public = batch
        x, strong = student.augment.weak(x), student.augment.strong(public)
        # By itself: with the others, batch norm would want a gradient of these rows as well
        clean = student.constant(public)
        labelled, augmented = student.outputs(x, strong)
        return student.supervised(labelled, y), student.consistency(clean, augmented)


class Fixmatch(Objective):
    """Terms of distorted inputs, whose targets the averaged student says of weakly distorted ones.

    Of labelled inputs, half of which are strongly distorted, released labels are a part of the
    targets, which falls as the student learns (co-refinement).
    """

    name, unsaid_alone = "fixmatch", True

    def terms(self, student: Student, batch: Batch) -> Terms:
        x, y, public = batch
        trust = TRUST * min(1.0, student.global_step / (TRUSTED_AFTER * student.config.steps))
        told, clean = student.said(x, public)
        mixed = student.mixed(x)
        if not len(public):
            (labelled,) = student.outputs(mixed)
            return student.co_refined(labelled, y, told, trust), student.nothing()
        labelled, others = student.outputs(mixed, student.augment.strong(public))
        return student.co_refined(labelled, y, told, trust), student.consistency(clean, others)


REGISTERED: tuple[type[Objective], ...] = (Supervised, Vat, Uda, Fixmatch)
OBJECTIVES = {each.name: each() for each in REGISTERED}
