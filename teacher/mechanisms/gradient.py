"""Sums of a linear model's gradients, in integers: what a record adds depends on it alone.

Every step is exact, so that no record's part depends on its place, on the other records, on the
batch or on the machine: products and sums are of integers below 2^53 in float64 (whose order of
summation does not matter then), everything else is int64 (docs/privacy.md).
"""

from collections.abc import Iterator
from decimal import Decimal
from functools import cache

import numpy as np

from ...wall.label_kinds import STEPS, unpack
from ...wall.matrices import CLIP, COUNT, FRACTION
from ..search.cpu import ExactIndex

ROWS = 4096  # records whose gradients are computed together
PARTS = 1 << 22  # entries of persons' parts in memory together
STEP = 8  # bits: the exponential's argument is rounded to a multiple of 2^-8
EXPONENT = 24  # bits: the exponential is an integer times 2^-24
LARGEST = 16  # exp(-16) is counted as 0


def gradient_sums(
    weights: np.ndarray,
    units: tuple[int, ...],
    bias: int,
    space: str,
    gain: int,
    index: ExactIndex,
    labels: np.ndarray,
) -> np.ndarray:
    """Sums of all records' clipped gradients, and COUNT for each record.

    A person adds the average of its rows' parts, every entry rounded towards 0. With a ``gain``
    that is multiplied and clipped again, and COUNT shrinks as the clipped part does, so that sums
    over counts stay weighted means of gradients (``_boosted``).

    Returns int64 [n_queries, (d + 1) * c + 1]: row after row of the weights, then the records. A
    record's part has the length sqrt(CLIP^2 + COUNT^2) at most, whatever the weights.

    ``weights``: int16 [n_queries, d + 1, c]; ``units``: the residuals' unit for each of them
    (``residual_unit``), 1..MAX_UNIT; ``bias``: the last input of every record, 1..MAX_BIAS.
    ``space``: what a record's label is, a key of RESIDUALS. ``gain``: 1..MAX_GAIN.
    """
    features = index.features
    sums, counted = np.zeros(weights.shape, dtype=np.int64), np.full((len(weights), 1), 0)
    entries = weights[0].size if len(weights) else 1
    for rows, size in _blocks(index, entries, gain):
        block = features[rows]
        inputs = np.full((len(block), block.shape[1] + 1), float(bias))
        inputs[:, :-1] = block
        squares = np.einsum("nd,nd->n", inputs, inputs).astype(np.int64)  # below 2^24
        for total, records, w, unit in zip(sums, counted, weights, units, strict=True):
            logits = (inputs @ w.astype(np.float64)).astype(np.int64)  # below 2^33
            shrunk = clipped(RESIDUALS[space](logits, labels[rows], unit), squares)
            added, number = _summed(inputs, shrunk.astype(np.float64), size, gain)
            total += added
            records += number
    return np.concatenate([sums.reshape(len(sums), -1), counted], axis=1)


def class_residuals(logits: np.ndarray, labels: np.ndarray, unit: int) -> np.ndarray:
    """(softmax - label) in multiples of 1/``unit``: int64 [n, c], |entry| <= unit.

    ``logits``: int64 [n, c], times 2^-FRACTION, differences below 2^34; ``labels``: int64 [n].
    """
    residuals = _softmax(logits, unit)
    residuals[np.arange(len(residuals)), labels] -= unit
    return residuals


def attribute_residuals(logits: np.ndarray, labels: np.ndarray, unit: int) -> np.ndarray:
    """(sigmoid - label) of every attribute, as ``class_residuals``; ``labels``: packed."""
    present = _softmax(np.stack([np.zeros_like(logits), logits], axis=-1), unit)[..., 1]
    residuals: np.ndarray = present - unit * unpack(labels, logits.shape[1])
    return residuals


def value_residuals(logits: np.ndarray, labels: np.ndarray, unit: int) -> np.ndarray:
    """(prediction - value) in half ranges, times ``unit``: int64 [n, 1], |entry| <= 2 unit.

    Predictions beyond the range count as its ends. ``labels``: steps, 0..STEPS.
    """
    half = 1 << FRACTION >> 1
    predicted = np.clip((unit * logits + half) >> FRACTION, -unit, unit)
    residuals: np.ndarray = predicted - (2 * unit * labels // STEPS - unit)[:, np.newaxis]
    return residuals


RESIDUALS = {"class": class_residuals, "attributes": attribute_residuals, "value": value_residuals}


def _softmax(logits: np.ndarray, unit: int) -> np.ndarray:
    """Along the last axis, in multiples of 1/``unit``, to the nearest: int64 like ``logits``."""
    table, shift = exponentials(), FRACTION - STEP
    behind = logits.max(axis=-1, keepdims=True) - logits  # at least 0
    powers = table[np.minimum((behind + (1 << shift >> 1)) >> shift, len(table) - 1)]
    total = powers.sum(axis=-1, keepdims=True)  # from 2^24 to 2^36
    shares: np.ndarray = (2 * unit * powers + total) // (2 * total)
    return shares


def clipped(residuals: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """The residuals, shrunk towards 0 where residual times input is longer than CLIP.

    ``residuals``: int64 [n, c] of |r|^2 <= 2^38; ``squares``: int64 [n], |input|^2 <= 2^24. Then
    every row has |r|^2 |input|^2 <= CLIP^2: for s = ceil(|r| |input|) > CLIP, the result is at most
    |r| CLIP / s in length.
    """
    products = (residuals * residuals).sum(axis=1) * squares  # at most 2^62
    long = products > CLIP * CLIP
    if not long.any():
        return residuals
    shrunk, r = residuals.copy(), residuals[long]
    lengths = ceil_sqrt(products[long])[:, np.newaxis]
    shrunk[long] = np.sign(r) * (np.abs(r) * CLIP // lengths)  # towards 0
    return shrunk


def ceil_sqrt(squares: np.ndarray) -> np.ndarray:
    """The smallest integers whose squares are at least ``squares``: int64 [n] of 1..2^62."""
    roots = np.sqrt(squares.astype(np.float64)).astype(np.int64)  # off by one at most
    roots -= roots * roots >= squares  # now below the root, or just below
    roots -= roots * roots >= squares
    roots += roots * roots < squares
    roots += roots * roots < squares
    return roots


@cache
def exponentials() -> np.ndarray:
    """2^EXPONENT exp(-i 2^-STEP), rounded down: int64 [LARGEST * 2^STEP + 1]; the last one is 0."""
    exact = ((Decimal(-i) / (1 << STEP)).exp() for i in range(LARGEST << STEP))
    powers = np.array([int(e * (1 << EXPONENT)) for e in exact] + [0], dtype=np.int64)
    powers.flags.writeable = False
    return powers


def _blocks(index: ExactIndex, entries: int, gain: int) -> Iterator[tuple[slice | np.ndarray, int]]:
    """Rows whose parts are summed together, and how many of them each person has (1: no persons).

    A person's rows are beside each other. ``entries``: of a part, a count.
    """

    def persons_together(size: int) -> int:
        return ROWS if size == gain == 1 else max(1, min(ROWS // size, PARTS // entries))

    if index.persons is None:
        for start in range(0, len(index), persons_together(1)):
            yield slice(start, start + persons_together(1)), 1
        return
    order = np.argsort(index.persons, kind="stable")
    starts = np.unique(index.persons[order], return_index=True)[1]
    sizes = np.diff(np.append(starts, len(order)))
    for size in np.unique(sizes).tolist():
        own, together = starts[sizes == size], persons_together(size)
        for first in range(0, len(own), together):
            firsts = own[first : first + together]
            yield order[(firsts[:, np.newaxis] + np.arange(size)).ravel()], size


def _summed(
    inputs: np.ndarray, residuals: np.ndarray, size: int, gain: int
) -> tuple[np.ndarray, int]:
    """Sum of the parts of persons, with ``size`` rows each: int64 [d + 1, c], and what counts them.

    ``inputs``: float64 [r, d + 1]; ``residuals``: float64 [r, c], both integers, a person's rows
    beside each other. Each product is at most CLIP, so that partial sums are exact.
    """
    if size == 1 and gain == 1:  # every row's part is added as it is
        return (inputs.T @ residuals).astype(np.int64), COUNT * len(inputs)
    persons = len(inputs) // size
    of_rows = inputs.reshape(persons, size, -1).transpose(0, 2, 1)  # [persons, d + 1, size]
    parts = (of_rows @ residuals.reshape(persons, size, -1)).astype(np.int64)
    averages = np.sign(parts) * (np.abs(parts) // size)
    if gain == 1:
        return averages.sum(axis=0), COUNT * persons
    boosted, counted = _boosted(averages, gain)
    return boosted.sum(axis=0), int(counted.sum())


def _boosted(averages: np.ndarray, gain: int) -> tuple[np.ndarray, np.ndarray]:
    """``gain`` times the averages, shrunk to CLIP where longer, and COUNT shrunk alike.

    ``averages``: int64 [n, d + 1, c], each of length CLIP at most. Returns the same form, each of
    length CLIP at most: for s >= max(CLIP, gain |a|) every entry is at most gain |a_j| CLIP / s;
    and int64 [n], floor(COUNT CLIP / s). The largest products are below 2^53.
    """
    squares = gain**2 * (averages * averages).sum(axis=(1, 2))  # at most 2^12 2^40
    lengths = np.maximum(CLIP, ceil_sqrt(np.maximum(squares, 1)))
    shrunk = gain * CLIP * np.abs(averages) // lengths[:, np.newaxis, np.newaxis]
    return np.sign(averages) * shrunk, COUNT * CLIP // lengths
