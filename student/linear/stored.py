"""The file of a classifier: safetensors, with ``weights`` float32 [d + 1, c].

Those of a balanced one have ``offsets`` [c] of its logits in them, which the file has beside.

Logits are (features, bias) weights of the integer features of an extractor. Its hash, the bias, the
kind of labels and the weights' precision are metadata. Probabilities are the softmax of the logits
for classes, the sigmoid of each for attributes; a value is so many half ranges from the middle of
its bounds.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from ...wall.files import reading
from ...wall.label_kinds import steps_of
from ...wall.matrices import bias
from .moments import class_probabilities


@dataclass(frozen=True)
class StoredFit:
    """Weights of integer inputs, float64 [d + 1, c], and their precision, in squares of records.

    ``offsets``: of the logits, float64 [c], which a balanced classifier adds; 0 of others.
    """

    weights: np.ndarray = field(repr=False)
    precision: float
    offsets: np.ndarray | float = 0.0


def to_bytes(fit: StoredFit, extractor: str, length: float, labels: str) -> bytes:
    """The file of a ``fit`` on features of the ``extractor`` with that hash.

    ``length``: of a unit vector after quantisation; ``labels``: the label space's kind.
    """
    metadata = {"extractor": extractor, "bias": str(bias(length)), "labels": labels}
    metadata["precision"] = repr(fit.precision)
    weights, tensors = fit.weights.copy(), dict[str, np.ndarray]()
    if isinstance(fit.offsets, np.ndarray):
        weights[-1] += fit.offsets / bias(length)
        tensors["offsets"] = fit.offsets
    tensors["weights"] = weights.astype(np.float32)
    return safetensors.numpy.save(tensors, metadata)


def stored_layer(path: Path) -> tuple[np.ndarray, float]:
    """Weights float32 [d + 1, c] of a stored classifier, and the constant last input."""
    with reading(path), safetensors.safe_open(path, "numpy") as file:
        return file.get_tensor("weights"), float(file.metadata()["bias"])


def stored_fit(path: Path, extractor: str) -> StoredFit | None:
    """A stored classifier; None if there is none, or one of another ``extractor``'s features."""
    if not path.exists():
        return None
    with reading(path), safetensors.safe_open(path, "numpy") as file:
        weights, about = file.get_tensor("weights").astype(np.float64), file.metadata()
        offsets = file.get_tensor("offsets") if "offsets" in file.keys() else 0.0  # noqa: SIM118
    if about["extractor"] != extractor:
        return None
    weights[-1] -= offsets / float(about["bias"])
    return StoredFit(weights=weights, precision=float(about["precision"]), offsets=offsets)


def stored_probabilities(path: Path, features: np.ndarray) -> np.ndarray:
    """Probabilities float32 [n, c] of rows int8 [n, d] by a stored classifier of classes."""
    weights, constant = stored_layer(path)
    logits = features @ weights[:-1].astype(np.float64) + constant * weights[-1]
    return np.asarray(class_probabilities(logits).astype(np.float32))


def stored_steps(path: Path, features: np.ndarray) -> np.ndarray:
    """Steps int64 [n] of rows int8 [n, d] by a stored regression of values."""
    weights, constant = stored_layer(path)
    values = features @ weights[:-1].astype(np.float64) + constant * weights[-1]
    return steps_of(values[:, 0])
