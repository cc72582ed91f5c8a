"""A round of private_linear on the public side.

Weights go to the teacher, a noisy sum comes back, and so on for a few steps; the classifier that
follows labels the public rows and is a result by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.numpy

from labelwall.experiment.run.linear_model import LinearModel
from labelwall.teacher.features.embedder import Embedder
from labelwall.teacher.mechanisms.base import Asks
from labelwall.wall.matrix import Matrix, NoisyCounts
from labelwall.wall.messages import (
    ABSTAINED,
    Answers,
    ExtractorSpec,
    Outcome,
    Receipt,
    join_answers,
)
from labelwall.wall.weights import FRACTION, Weights, bias

PROBABILITIES, CLASSIFIER = "probabilities.npy", "linear.safetensors"


def ask_weights(
    count: Callable[[Matrix], NoisyCounts],
    inputs: np.ndarray,
    extractor: ExtractorSpec,
    asked: Asks,
    *,
    classes: int,
    slot: int,
    seed: int,
    folder: Path,
    batch_size: int,
    workers: int,
    device: str,
) -> Answers:
    """Labels of PUBLIC ``inputs`` by a linear classifier of their features.

    ``count``: the teacher's method. ``folder``: of the round. The weights of each step are written
    there before they are sent: a resumed round must send the same ones, since others would be
    charged again. Afterwards it has ``probabilities.npy`` (float32 [n, c], of ``inputs``) and the
    classifier (``save_classifier``), unless a cap was reached before the first step.
    """
    assert asked.steps is not None
    embedder = Embedder(
        extractor, probe=inputs[:64], batch_size=batch_size, workers=workers, device=device
    )
    features, _ = embedder.embed(inputs)
    length = embedder.length(features.shape[1])
    model = LinearModel(features, classes, length, asked.noise_multiplier, asked.clip)
    receipts, known = [], False
    for step in range(1, asked.steps + 1):
        model.weights = _stored(folder / f"weights_{step}.npy", model.next_weights())
        found = count(Weights(model.weights, slot))
        receipts.append(found.receipt)
        if found.counts is None:
            break
        model.add(found.counts[0])
        known = True
    receipt = join_answers([_nothing(each) for each in receipts]).receipt
    if not known:
        refused = np.full(len(inputs), Outcome.CAP_REACHED, dtype=np.uint8)
        return Answers(np.full(len(inputs), ABSTAINED, dtype=np.int64), refused, receipt)
    chances = model.probabilities(features)
    _save(folder / PROBABILITIES, chances)
    save_classifier(folder / CLASSIFIER, model, extractor)
    return Answers(*labels_of(chances, asked.margin), receipt)


def labels_of(probabilities: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """(labels int64 [n], outcomes uint8 [n]) of float32 [n, c].

    The most probable class (the lowest on ties) where it leads the next by more than ``margin``.
    """
    ordered = np.sort(probabilities, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > margin
    if margin == 0:
        clear[:] = True
    labels = np.where(clear, probabilities.argmax(axis=1), ABSTAINED)
    outcomes = np.where(clear, Outcome.ANSWERED, Outcome.ABSTAINED)
    return labels.astype(np.int64), outcomes.astype(np.uint8)


def save_classifier(path: Path, model: LinearModel, extractor: ExtractorSpec) -> None:
    """Write the classifier: ``weights`` float32 [d + 1, c] and what they mean, as metadata.

    Class probabilities are softmax((features, bias) weights), with the extractor's integer
    features.
    """
    metadata = {
        "extractor": extractor.sha256(),
        "bias": str(bias(model.length)),
        "logits": "(features, bias) weights",
    }
    weights = {"weights": (model.weights / 2.0**FRACTION).astype(np.float32)}
    scratch = path.with_name(path.name + ".part")
    scratch.write_bytes(safetensors.numpy.save(weights, metadata))
    scratch.replace(path)


def _stored(path: Path, weights: np.ndarray) -> np.ndarray:
    """The weights at ``path``; these ones, written there, where there are none."""
    if not path.exists():
        _save(path, weights)
    stored: np.ndarray = np.load(path, allow_pickle=False)
    return stored


def _save(path: Path, array: np.ndarray) -> None:
    scratch = path.with_name(path.name + ".part")
    with scratch.open("wb") as file:
        np.save(file, array)
    scratch.replace(path)


def _nothing(receipt: Receipt) -> Answers:
    """No answers, with a receipt."""
    return Answers(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8), receipt)
