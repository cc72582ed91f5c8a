"""A round of noisy gradients on the public side.

Weights go to the teacher, a noisy sum comes back, and so on for a few steps; the linear model that
follows labels the public rows and is a result by itself. Probabilities of classes are averaged with
those of the public rows nearby before they become labels.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import safetensors.numpy

from ...wall.labels.registry import numbered_space
from ...wall.messages import Outcome, Receipt
from ...wall.weights import Weights, bias
from .fitted import Fitted, Question
from .linear_model import AttributeModel, LinearModel
from .run_folder import PROBABILITIES
from .smoothing import Says, with_neighbours
from .sums_model import SumsModel
from .value_model import ValueModel

CLASSIFIER = "linear.safetensors"
MODELS: dict[str, type[SumsModel]] = {
    model.space: model for model in (LinearModel, AttributeModel, ValueModel)
}


def fit_weights(question: Question) -> Fitted:
    """A linear model by the noisy sums of a few steps.

    Where a cap ends the steps early, by those that were answered. Leaves linear.safetensors
    (``classifier``) in the folder and, for classes, probabilities.npy (float32 [n, c], of the
    question's features in their order).
    """
    asked = question.asked
    assert asked.steps is not None
    assert asked.noise is not None
    model = MODELS[asked.labels](
        question.features,
        question.classes,
        question.length,
        asked.noise,
        asked.clip,
        asked.steps,
        asked.gain,
    )
    receipts: list[Receipt] = []
    answered = 0
    for step in range(1, asked.steps + 1):
        model.weights = question.stored(f"weights_{step}.npz", "weights", model.next_weights)
        found = question.count(Weights(model.weights, question.slot))
        receipts.append(found.receipt)
        if found.counts is None:
            break
        model.add(found.counts[0])
        answered += 1

    def label(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not answered:
            refused = np.full(len(features), Outcome.CAP_REACHED, dtype=np.uint8)
            return numbered_space(asked.labels, question.classes).no_labels(len(features)), refused
        return model.labels(says(features), asked.margin)

    if not answered:
        return Fitted(label, together(receipts))
    says: Says = model.says
    said = says(question.features)
    if model.has_probabilities:
        says = with_neighbours(says, question.features)
        content = io.BytesIO()
        np.save(content, says(question.features))
        question.write(PROBABILITIES, content.getvalue())
    question.write(CLASSIFIER, classifier(model, question.extractor))
    return Fitted(label, together(receipts), model.estimate(said))


def together(receipts: Sequence[Receipt]) -> Receipt:
    """The receipt of consecutive queries; where the ledger stands is the last one's."""
    return replace(
        receipts[-1],
        asked=sum(receipt.asked for receipt in receipts),
        served=sum(receipt.served for receipt in receipts),
        charged={
            release: sum(receipt.charged[release] for receipt in receipts)
            for release in receipts[0].charged
        },
    )


def classifier(model: SumsModel, extractor: str) -> bytes:
    """A safetensors file: ``weights`` float32 [d + 1, c], whose last input is a constant.

    Logits are (features, bias) weights of the integer features of the ``extractor`` with that hash;
    hash, bias and kind of ``labels`` are metadata. Probabilities are their softmax for classes, the
    sigmoid of each for attributes; a value is so many half ranges from the middle of its bounds.
    """
    metadata = {"extractor": extractor, "bias": str(bias(model.length)), "labels": model.space}
    weights = model.released.astype(np.float32)
    return safetensors.numpy.save({"weights": weights}, metadata)
