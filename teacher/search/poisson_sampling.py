"""The votes of a Poisson sample of the records."""

import math
from collections.abc import Sequence

import numpy as np

from ..noise.entropy import BITS, Entropy, inclusion_bound
from .index import Ranked
from .loops import compiled

PREFIX_ENTRIES = 1 << 23  # entries of ordered lists in memory together


def sampled_votes(
    index: Ranked,
    labels: np.ndarray,
    queries: np.ndarray,
    *,
    k: int,
    num_classes: int,
    sample_rate: float,
    entropy: Entropy,
    keys: Sequence[str],
    release: str,
) -> np.ndarray:
    """Votes of the min(k, |sample|) nearest of a fresh Poisson sample for each query.

    ``index``: what is sampled: rows, or persons, each by its nearest row.

    Returns int64 [q, num_classes]. ``labels``: integers [n] below num_classes, by row of the index,
    each a vote for that class; or ballots, int64 [n, num_classes], which are added up; ``queries``:
    int8 [q, d]; ``keys``, ``release``: what the draw is for. A record is in a query's sample with
    probability floor(gamma 2^32) / 2^32 <= gamma, independently.

    Sensitivity, for one query, the other records' bits fixed: a record added to the sample moves
    the votes by 0, by e_a (sample smaller than k) or by e_a - e_b (it displaces the k-th); L2
    sqrt(2), L1 2. With ballots, by one or by the difference of two.

    The bits are drawn along the records in order of distance, nearest first, only as far as k hits
    need: the law is that of sampling the whole data set first. A query without k hits keeps its
    bits and continues along a prefix twice as long, until the data set ends.
    """
    length = min(prefix_length(k, sample_rate), len(index))
    votes = np.zeros((len(queries), num_classes), dtype=np.int64)
    hits = np.zeros(len(queries), dtype=np.int64)
    step = max(1, PREFIX_ENTRIES // max(1, length))
    for start in range(0, len(queries), step):
        pending, drawn, width = np.arange(start, min(start + step, len(queries))), 0, length
        while len(pending) and drawn < len(index):
            near = index.prefix(queries[pending], width)[:, drawn:]  # not yet drawn
            # Only a test's tape draws by id. The system's bits are fresh: rows name records as well
            # as ids do, which are in memory for a tape alone.
            ids = index.ids[near] if entropy.unsafe else near
            own = [keys[query] for query in pending.tolist()]
            bits = np.ones(near.shape, dtype=bool)
            if inclusion_bound(sample_rate) < 1 << BITS:
                bits = entropy.inclusion(sample_rate, own, release, ids)
            _first_hits(np.ascontiguousarray(near), bits, labels, k, pending, hits, votes)
            pending, drawn, width = pending[hits[pending] < k], drawn + near.shape[1], 2 * width
    return votes


@compiled
def _first_hits(
    near: np.ndarray,
    bits: np.ndarray,
    labels: np.ndarray,
    k: int,
    queries: np.ndarray,
    hits: np.ndarray,
    votes: np.ndarray,
) -> None:
    """Walk the lists ``near`` (int64 [p, m]) of ``queries`` (int64 [p]) until a query has k hits.

    ``bits``: bool [p, m]. Each hit adds its vote or ballot to ``votes`` and one to ``hits`` (int64
    [q]).
    """
    for place in range(len(near)):
        query = queries[place]
        for column in range(near.shape[1]):
            if hits[query] == k:
                break
            if bits[place, column]:
                hits[query] += 1
                record = near[place, column]
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
    """How many of the counted records are in a fresh Poisson sample: int64 [q, c].

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
