"""A linear model from noisy sums: its fit, what it says of rows, its file. All is post-processing.

Probabilities of classes are averaged with those of the PUBLIC rows nearby before they become
labels: a linear model errs alone where classes have curved borders or the noise has bent its own;
the rows nearby mostly have the same label, and their errors differ.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
from scipy.special import expit, softmax

from ...teacher.features.embedder import unit_length
from ...teacher.search.cpu import ExactIndex
from ...wall.files import reading
from ...wall.label_kinds import STEPS
from ...wall.matrices import bias
from ...wall.messages import ABSTAINED, RELEASED, ExtractorSpec, Outcome
from .descent import Doubt, attribute_weights, class_weights
from .labelled import Labelled, better
from .measure import MAX_ROWS, MIN_RECORDS, Ask, FitSettings, Measurements, with_bias
from .shift import Shares
from .values import value_weights

Says = Callable[[np.ndarray], np.ndarray]

# Tried on two sets of images, on texts and on characters (docs/decisions.md).
NEIGHBOURS = 10
SHARE = 0.3  # of the neighbours in a prediction
SURE = 2.0  # deviations by which a count must be above its noise
# Of the precision of an earlier period's weights: tried on texts in twelve periods, epsilon 2. Less
# forgets what is still true, more remembers records that left.
KEPT = 0.5
VIRTUAL_ROWS = 20_000
MAX_VIRTUAL = 10_000_000  # entries of the virtual rows: float32


@dataclass(frozen=True)
class LinearModel:
    """What a fit gives.

    Args:
        labels: the label space's kind.
        length: of a unit vector after quantisation.
        weights: of integer inputs, float64 [d + 1, c].
        shares: for classes, the records' and the public rows', which the weights are for.
        doubt: how sure the probabilities should be; None where noise hides it.
        records: the noisy number of the records, and its deviation.
        explained: for values, their variance among public rows and its deviation.
        known: share of the public labels that it gives, cross-validated; 0 where none is known.
        precision: of the weights, in squares of records: their noise's variance is inverse to it.
    """

    labels: str
    length: float
    weights: np.ndarray = field(repr=False)
    shares: Shares | None = field(default=None, repr=False)
    doubt: Doubt | None = (1.0, 1.0, 1.0)
    records: tuple[float, float] = (math.inf, 0.0)
    explained: tuple[float, float] | None = None
    known: float = 0.0
    precision: float = 1.0

    def says(self, features: np.ndarray) -> np.ndarray:
        """Of rows int8 [n, d]: float32 [n, c], probabilities, or values from -1 to 1."""
        logits = with_bias(features, self.length) @ self.weights
        if self.labels == "value":
            return np.clip(logits, -1, 1).astype(np.float32)
        likely = softmax(logits, axis=1) if self.labels == "class" else expit(logits)
        return np.asarray(likely.astype(np.float32))

    def to_labels(self, predicted: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
        """(labels, outcomes uint8 [n]) of what the model ``says``.

        The most probable class, int64 [n], where it leads the next by more than ``margin``, or
        than on half of the rows on which it leads; of each attribute its presence, int64 [n, c],
        where one answer leads the other by more; steps above the lower bound of values, int64 [n].
        """
        if self.labels == "value":
            labels = np.rint((predicted[:, 0].astype(np.float64) + 1) / 2 * STEPS).astype(np.int64)
            return labels, np.full(len(predicted), Outcome.ANSWERED, dtype=np.uint8)
        if self.labels == "class":
            ordered, best = np.sort(predicted, axis=1), predicted.argmax(axis=1)
            lead = ordered[:, -1] - ordered[:, -2]
            least = np.full(predicted.shape[1], margin)
            for label in np.unique(best):  # a class whose leads are all small keeps some labels
                least[label] = min(margin, np.median(lead[best == label]))
            clear = lead > least[best]
            labels = np.where(clear, best, ABSTAINED).astype(np.int64)
        else:
            clear = np.abs(2 * predicted - 1) > margin
            labels = np.where(clear, predicted > 0.5, ABSTAINED).astype(np.int64)
            clear = clear.any(axis=1)
        return labels, np.where(clear, Outcome.ANSWERED, Outcome.ABSTAINED).astype(np.uint8)

    @property
    def some_records(self) -> bool:
        """Whether the released counts are above their noise."""
        count, deviation = self.records
        return count > SURE * deviation

    def certainty(self, predicted: np.ndarray, factor: float = 1.0) -> np.ndarray:
        """The probability of each row's labels, float [n], of what the model ``says``; with logits
        times ``factor``.
        """
        if self.labels == "class":
            logits = np.log(np.maximum(predicted.astype(np.float64), 1e-30))
            return np.asarray(softmax(factor * logits, axis=1).max(axis=1))
        return np.asarray(np.maximum(predicted, 1 - predicted).mean(axis=1))

    def to_bytes(self, extractor: str) -> bytes:
        """A safetensors file: ``weights`` float32 [d + 1, c], whose last input is a constant.

        Logits are (features, bias) weights of the integer features of the ``extractor`` with that
        hash; hash, bias and kind of ``labels`` are metadata. Probabilities are their softmax for
        classes, the sigmoid of each for attributes; a value is so many half ranges from the middle
        of its bounds.
        """
        metadata = {"extractor": extractor, "bias": str(bias(self.length)), "labels": self.labels}
        metadata["precision"] = repr(self.precision)
        return safetensors.numpy.save({"weights": self.weights.astype(np.float32)}, metadata)


def fit(
    ask: Ask,
    public: np.ndarray,
    how: FitSettings,
    known: Labelled | None = None,
    earlier: tuple[np.ndarray, float] | None = None,
    again: bool = False,
) -> LinearModel | None:
    """A linear model by the noisy sums that ``ask`` gives, and PUBLIC rows int8 [n, d].

    ``known``: PUBLIC rows with labels; ``earlier``: weights and precision of a fit to records of an
    earlier period, or round, with which these weights are averaged. ``again``: these are sums of
    the same features as the earlier ones. Steps begin at its weights then, since the same sums
    would only be read again. Where a cap ends the steps early, by the sums that were answered; None
    where none was.
    """
    measure, inputs = Measurements(ask, how), how.inputs(public[:MAX_ROWS])
    shares = explained = None
    doubt: Doubt | None = (1.0, 1.0, 1.0)
    if how.labels == "value":
        weights, explained = value_weights(measure, inputs, how) or (None, None)
    elif how.labels == "class":
        start = None if known is None or known.complete else known.weights
        if again and earlier is not None:
            start = earlier[0] * how.unit
        weights, shares, doubt = class_weights(measure, inputs, how, start) or (None, None, None)
    else:
        weights = attribute_weights(measure, inputs, how)
    if weights is None:
        return None
    records, right = (float(np.mean(measure.counts)), measure.count_noise), 0.0
    foreign = shares is not None and shares.foreign and records[0] > SURE * records[1]
    if known is not None and not foreign:  # labels of rows unlike the records would mislead
        hidden = known.complete or doubt is None or doubt[1] <= 0
        likely = softmax(inputs @ weights, axis=1).mean(axis=0)
        lost = 0.0 if hidden else 1 - float(likely[known.classes].sum())
        weights, right = better(known, weights, lost)
        right, doubt = (right, (1.0, 1.0, 1.0)) if known.complete else (0.0, doubt)
    weights, precision = weights / how.unit, max(records[0], MIN_RECORDS) ** 2
    if earlier is not None:
        kept = KEPT * earlier[1]
        weights = (precision * weights + kept * earlier[0]) / (precision + kept)
        precision += kept
    of_labels = how.labels, how.length, weights, shares, doubt, records, explained, right
    return LinearModel(*of_labels, precision)


def with_neighbours(says: Says, public: np.ndarray) -> Says:
    """What ``says`` says of rows, mixed with its mean over the nearest public rows of each.

    ``says``: of rows int8 [n, d]: float32 [n, c]; the result is such a function, too. ``public``:
    int8 [m, d], m >= 1, of which the first MAX_ROWS count. A public row is its own nearest one.
    Rows do not depend on one another, so that a resumed run gives the same.
    """
    near = ExactIndex(public[:MAX_ROWS], np.arange(len(public[:MAX_ROWS])))
    predicted, count = says(public[:MAX_ROWS]), min(NEIGHBOURS, len(near))

    def mixed(features: np.ndarray) -> np.ndarray:
        around = predicted[near.nearest(features, count)[0]].mean(axis=1)
        return np.asarray(((1 - SHARE) * says(features) + SHARE * around).astype(np.float32))

    return mixed


def virtual_rows(rows: np.ndarray, seed: int) -> np.ndarray:
    """Some PUBLIC rows, float32 [n, d], each moved by a part of the difference of two others."""
    count = min(VIRTUAL_ROWS, MAX_VIRTUAL // rows.shape[1])
    random = np.random.default_rng(seed)
    at, to, by = random.integers(0, len(rows), (3, count))
    part = random.random((count, 1), dtype=np.float32)
    return np.asarray((rows[at] + part * (rows[to] - rows[by])).astype(np.float32))


def as_network(path: Path, extractor: ExtractorSpec) -> ExtractorSpec | None:
    """A stored classifier of classes and the ``extractor`` of its features as one network; None
    where features are not a network's, vectors as they are or hog on axes.
    """
    raw, axes = extractor.backbone == "raw", extractor.projection()
    hog = extractor.backbone == "hog" and axes is not None
    if extractor.backbone.startswith(RELEASED) or not (raw or hog or extractor.weights):
        return None
    with reading(path), safetensors.safe_open(path, "numpy") as file:
        weights, constant = file.get_tensor("weights"), float(file.metadata()["bias"])
    tensors = safetensors.numpy.load(extractor.weights) if extractor.weights else {}
    head = tensors.pop("head.weight", None)
    tensors.pop("head.bias", None)
    width = len(extractor.center) or extractor.input_shape[0] if head is None else head.shape[1]
    axes = np.eye(width) if axes is None else axes / np.abs(axes).max()
    turned = np.zeros((width, width))
    turned[: axes.shape[1]] = axes.T
    layer = np.zeros((width, weights.shape[1]))
    layer[: axes.shape[1]] = weights[:-1] * unit_length(extractor, axes.shape[1]) / width**0.5
    tensors = {name.replace("trunk.", "trunk.0.", 1): tensor for name, tensor in tensors.items()}
    tensors |= {
        "trunk.1.weight": turned.astype(np.float32),
        "trunk.1.bias": (-turned @ np.asarray(extractor.center or np.zeros(width))).astype("f4"),
        "head.weight": np.ascontiguousarray(layer.T, dtype=np.float32),
        "head.bias": (constant * weights[-1]).astype(np.float32),
    }
    name, channels = RELEASED + ("linear" if raw else extractor.backbone), extractor.input_shape[-1]
    return replace(
        extractor,
        mean=(0.0,) * channels if hog else extractor.mean,
        std=(1.0,) * channels if hog else extractor.std,
        backbone=name,
        num_classes=weights.shape[1],
        weights=safetensors.numpy.save(tensors),
        center=(),
        axes=b"",
        scale=1.0,
    )


def after_features(network: ExtractorSpec) -> ExtractorSpec:
    """What ``as_network`` gave, without the network of the features: for rows that have these."""
    tensors = safetensors.numpy.load(network.weights)
    own = {name: part for name, part in tensors.items() if not name.startswith("trunk.0.")}
    shape = (own["head.weight"].shape[1],)
    linear = replace(network, backbone=f"{RELEASED}linear", input_shape=shape, mean=(), std=())
    return replace(linear, weights=safetensors.numpy.save(own))


def stored_fit(path: Path, extractor: str) -> tuple[np.ndarray, float] | None:
    """A stored classifier's weights, float64 [d + 1, c], and their precision; None where there is
    none, or one of other features.
    """
    if not path.exists():
        return None
    with reading(path), safetensors.safe_open(path, "numpy") as file:
        weights, about = file.get_tensor("weights").astype(np.float64), file.metadata()
    return (weights, float(about["precision"])) if about["extractor"] == extractor else None


def stored_probabilities(path: Path, features: np.ndarray) -> np.ndarray:
    """What a stored classifier of classes says of int8 [n, d]: float32 [n, c]."""
    with reading(path), safetensors.safe_open(path, "numpy") as file:
        weights, constant = file.get_tensor("weights"), float(file.metadata()["bias"])
    logits = features @ weights[:-1].astype(np.float64) + constant * weights[-1]
    return np.asarray(softmax(logits, axis=1).astype(np.float32))
