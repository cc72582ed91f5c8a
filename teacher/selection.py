"""The smallest of many integer scores, in order: a threshold guessed from a sample, one pass, a radix sort of what is left."""

from __future__ import annotations

import math

import numpy as np

STRIDE = 31  # a first guess of a query's threshold looks at every 31st record; prime, as data sets come in periods


def nearest_rows(scores: np.ndarray, found: np.ndarray) -> None:
    """Fill ``found`` (int64 [b, m], m <= n) with the columns of the m smallest ``scores`` (int32 [b, n]) of each row.

    Ascending, equal scores by column: the order of the integer key (score, column), whatever the other rows are.
    """
    b, n = scores.shape
    m = found.shape[1]
    if m == n or b == 0 or m == 0:
        found[:] = stable_order(scores)[:, :m]
        return
    thresholds, counts, flat = _survivors(scores, m)
    inside = np.arange(counts.max()) < counts[:, None]
    # Rows are filled up with their threshold: no survivor is above it and a stable sort leaves the filling last.
    kept = np.repeat(thresholds[:, None], inside.shape[1], axis=1)
    kept[inside] = scores.reshape(-1)[flat]
    columns = np.zeros(inside.shape, dtype=np.int64)
    columns[inside] = flat
    columns -= np.arange(b)[:, None] * n
    found[:] = np.take_along_axis(columns, stable_order(kept)[:, :m], axis=1)


def stable_order(scores: np.ndarray) -> np.ndarray:
    """Ascending order of each row of ``scores`` (int32 [b, s]), equal ones as they come: int64 [b, s].

    numpy sorts 16-bit keys by radix, in a third of the time of one sort of 64-bit (score, column) keys: low half first.
    """
    if scores.size == 0:
        return np.zeros(scores.shape, dtype=np.int64)
    above = scores.astype(np.int64) - scores.min(axis=1, keepdims=True)
    order = np.argsort(above.astype(np.uint16), axis=1, kind="stable")
    high = (above >> 16).astype(np.uint16)
    if not high.any():
        return order
    second = np.argsort(np.take_along_axis(high, order, axis=1), axis=1, kind="stable")
    return np.take_along_axis(order, second, axis=1)


def _survivors(scores: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(thresholds int32 [b], counts int64 [b], flat positions int64 [sum of counts]) with counts >= m in every row.

    A guess from a sample, a little too high, usually leaves somewhat more than m. Where it leaves fewer, or far too many,
    the m-th score itself is the threshold; either way all ties of the m-th are there.
    """
    b, n = scores.shape
    guess = int(m / STRIDE + 3 * math.sqrt(m / STRIDE) + 3)
    exact = np.ones(b, dtype=bool)
    thresholds = np.zeros(b, dtype=np.int32)
    if guess < n // STRIDE:
        thresholds[:] = np.partition(scores[:, ::STRIDE], guess, axis=1)[:, guess]
        flat, counts = _up_to(scores, thresholds)
        exact = (counts < m) | (counts > 2 * m + 8 * STRIDE)
        if not exact.any():
            return thresholds, counts, flat
    thresholds[exact] = np.partition(scores[exact], m - 1, axis=1)[:, m - 1]
    flat, counts = _up_to(scores, thresholds)
    return thresholds, counts, flat


def _up_to(scores: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Flat positions of the scores up to their row's threshold, ascending, and their number by row.

    By way of the groups of eight that hold any: below a tenth of hits numpy's flatnonzero branches at each one and
    mispredicts; among chosen groups it does not.
    """
    b, n = scores.shape
    mask = np.zeros(-(-b * n // 8) * 8, dtype=bool)
    np.less_equal(scores, thresholds[:, None], out=mask[: b * n].reshape(b, n))
    groups = mask.view(np.uint64)
    chosen = np.flatnonzero(groups != 0)
    hits = np.flatnonzero(groups[chosen].view(bool))
    flat = (chosen[hits >> 3] << 3) + (hits & 7)
    return flat, np.diff(np.searchsorted(flat, np.arange(b + 1) * n))
