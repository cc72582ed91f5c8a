"""Poisson samples of the records: how far lists are drawn along, and the votes of the hits."""

import math
from collections.abc import Sequence

import numpy as np

from ..noise.entropy import BITS, Entropy, inclusion_bound
from .loops import compiled

PREFIX_ENTRIES = 1 << 23  # entries of ordered lists in memory together


@compiled
def first_hits(
    lists: np.ndarray,
    bits: np.ndarray,
    labels: np.ndarray,
    k: int,
    queries: np.ndarray,
    hits: np.ndarray,
    votes: np.ndarray,
) -> None:
    """Walk the ``lists`` (int64 [p, m]) of ``queries`` (int64 [p]) until a query has k hits.

    ``bits``: bool [p, m]. Each hit adds its vote or ballot to ``votes`` and one to ``hits`` (int64
    [q]).
    """
    if len(lists) != len(queries) or lists.shape != bits.shape:
        raise ValueError("a list and its bits for each query")  # compiled code checks no index
    for number in range(len(lists)):
        query = queries[number]
        for column in range(lists.shape[1]):
            if hits[query] == k:
                break
            if bits[number, column]:
                hits[query] += 1
                record = lists[number, column]
                if labels.ndim == 1:
                    votes[query, labels[record]] += 1
                else:
                    votes[query] += labels[record]


def thinned(
    counts: np.ndarray,
    sample_rate: float,
    keys: Sequence[str],
    release: str,
    entropy: Entropy,
) -> np.ndarray:
    """Numbers of the counted records that are in a fresh Poisson sample: int64 [q, c].

    ``counts``: int64 [q, c], of the records that vote for each class; ``keys``, ``release``: what
    the draw is for. Every record has one bit of probability floor(gamma 2^32) / 2^32 <= gamma.
    Bits are independent of the records and alike, so it does not matter which record has which:
    they are numbered within their class.

    Sensitivity, for one query: a record that is counted and sampled adds e_a; any other nothing.
    """
    if inclusion_bound(sample_rate) == 1 << BITS:
        return counts.copy()
    votes = np.zeros_like(counts)
    step = max(1, PREFIX_ENTRIES // max(1, len(counts)))
    for label, own in enumerate(counts.T):
        for first in range(0, int(own.max(initial=0)), step):
            places = np.arange(first, min(first + step, int(own.max())))
            ids = np.broadcast_to((label << BITS) + places, (len(own), len(places)))
            bits = entropy.inclusion(sample_rate, keys, release, ids)
            votes[:, label] += (bits & (places < own[:, None])).sum(axis=1)
    return votes


def prefix_length(k: int, sample_rate: float) -> int:
    """The number of nearest records whose bits are drawn first.

    Fewer than k of them are in the sample for about one in 10^5 queries.
    """
    if sample_rate == 1:
        return k
    return math.ceil((k + 4 * math.sqrt(k) + 8) / sample_rate)
