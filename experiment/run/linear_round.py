"""A round of private_linear on the public side.

Weights go to the teacher, a noisy sum comes back, and so on for a few steps; the classifier that
follows labels the public rows and is a result by itself.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import safetensors.numpy

from labelwall.experiment.run.fitted import Fitted, Question
from labelwall.experiment.run.judge import by_probabilities
from labelwall.experiment.run.linear_model import LinearModel
from labelwall.experiment.run.run_folder import PROBABILITIES
from labelwall.wall.messages import ABSTAINED, Outcome, Receipt
from labelwall.wall.weights import FRACTION, Weights, bias

CLASSIFIER = "linear.safetensors"


def fit_weights(question: Question) -> Fitted:
    """A linear classifier by the noisy sums of a few steps.

    Where a cap ends the steps early, by those that were answered. Leaves probabilities.npy
    (float32 [n, c], of the question's features in their order) and linear.safetensors
    (``classifier``) in the folder.
    """
    asked = question.asked
    assert asked.steps is not None
    assert asked.noise is not None
    model = LinearModel(
        question.features, question.classes, question.length, asked.noise, asked.clip
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
            return np.full(len(features), ABSTAINED, dtype=np.int64), refused
        return labels_of(model.probabilities(features), asked.margin)

    if not answered:
        return Fitted(label, together(receipts))
    content, chances = io.BytesIO(), model.probabilities(question.features)
    np.save(content, chances)
    question.write(PROBABILITIES, content.getvalue())
    question.write(CLASSIFIER, classifier(model, question.extractor))
    return Fitted(label, together(receipts), by_probabilities(chances))


def labels_of(probabilities: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """(labels int64 [n], outcomes uint8 [n]) of float32 [n, c].

    The most probable class where it leads the next by more than ``margin``.
    """
    ordered = np.sort(probabilities, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > margin
    labels = np.where(clear, probabilities.argmax(axis=1), ABSTAINED).astype(np.int64)
    return labels, np.where(clear, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)


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


def classifier(model: LinearModel, extractor: str) -> bytes:
    """A safetensors file: ``weights`` float32 [d + 1, c], whose last input is a constant.

    Class probabilities are softmax((features, bias) weights) of the integer features of the
    ``extractor`` with that hash; hash and bias are metadata.
    """
    metadata = {"extractor": extractor, "bias": str(bias(model.length))}
    weights = (model.weights / 2.0**FRACTION).astype(np.float32)
    return safetensors.numpy.save({"weights": weights}, metadata)
