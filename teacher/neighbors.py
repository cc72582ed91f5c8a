"""Exact search among quantised features, and the votes of a Poisson sample of the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from teacher.gemm import LARGEST, MAX_DIMENSIONS, choose_product, minus_twice
from teacher.privacy.noise import Entropy, inclusion_bound
from wall.errors import InvalidInput

SCORE_BYTES = 256 << 20  # one block of int32 scores
STRIDE = 16  # a first guess of a query's threshold looks at every 16th record
SHIFT, RANK = np.int64(32), np.int64((1 << 32) - 1)


class ExactIndex:
    """The records in exact order of (squared distance, id), for any batch size, thread count and company of records.

    ``features``: int8 [n, d], entries in -63..63, d <= 4000; ``ids``: int64 [n], unique. Squared distances are integers
    below 2^26 and sorted through one int64 key, distance << 32 | rank of the id: a total order, which an added record
    enters without reordering the others. Memory beyond the features: under 1 GiB for up to 2^26 records.

    Raises InvalidInput for any other shape, dtype or entry. n = 0 is allowed.
    """

    def __init__(self, features: np.ndarray, ids: np.ndarray, *, product: str | None = None, threads: int | None = None) -> None:
        _check_features("features", features)
        if ids.dtype != np.int64 or ids.shape != features.shape[:1]:
            raise InvalidInput("ids", "int64, one for each row of `features`", f"{ids.dtype} {list(ids.shape)}")
        order = np.argsort(ids, kind="stable")
        if (np.diff(ids[order]) == 0).any():
            raise InvalidInput("ids", "unique", "duplicates")
        self._features, self.ids = np.ascontiguousarray(features), ids
        self._order, self._rank = order, np.empty_like(order)  # rank -> row, row -> rank
        self._rank[order] = np.arange(len(ids))
        self._norms = _squared_norms(self._features)
        self._product, self._threads = choose_product(product), threads
        self._recent: tuple[int, dict[bytes, np.ndarray]] = (0, {})

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return "ExactIndex()"

    def prefix(self, queries: np.ndarray, m: int) -> np.ndarray:
        """Row positions of the min(m, n) nearest records: int64 [q, min(m, n)], by (squared distance, id).

        ``queries``: int8 [q, d], entries in -63..63. The last call's lists are kept, so that the two releases of a query
        search once.
        """
        _check_features("queries", queries, self._features.shape[1])
        width = min(m, len(self))
        found = np.empty((len(queries), width), dtype=np.int64)
        rows = [row.tobytes() for row in queries]
        kept_width, kept = self._recent
        if kept_width == width and all(row in kept for row in rows):
            for i, row in enumerate(rows):
                found[i] = kept[row]
            return found
        self._search(queries, found)
        self._recent = width, dict(zip(rows, found, strict=True))
        return found

    def _search(self, queries: np.ndarray, found: np.ndarray) -> None:
        """Fill ``found`` by blocks of queries whose int32 scores fit SCORE_BYTES."""
        block = max(1, min(len(queries), SCORE_BYTES // (4 * max(1, len(self)))))
        scores = np.empty((block, len(self)), dtype=np.int32)  # one buffer: fresh pages cost as much as a selection
        with ThreadPoolExecutor(self._threads or _default_threads()) as pool:
            for start in range(0, len(queries), block):
                part = queries[start : start + block]
                cross = scores[: len(part)]
                self._product(minus_twice(part), self._features, cross)
                norms = _squared_norms(part)
                bounds = np.linspace(0, len(part), 1 + min(len(part), pool._max_workers), dtype=int)
                work = [(cross[a:b], norms[a:b], found[start + a : start + b]) for a, b in pairwise(bounds.tolist())]
                list(pool.map(lambda arguments: self._select(*arguments), work))

    def _select(self, cross: np.ndarray, query_norms: np.ndarray, found: np.ndarray) -> None:
        """``cross``: int32 [b, n] of -2 q.x, used up; ``query_norms``: int32 [b]; ``found``: int64 [b, m], filled in."""
        m = found.shape[1]
        for scores, norm, nearest in zip(cross, query_norms, found, strict=True):
            scores += self._norms  # |x - q|^2 - |q|^2
            rows = survivors(scores, m)
            keys = (scores[rows] + norm).astype(np.int64) << SHIFT | self._rank[rows]
            keys.sort()
            nearest[:] = self._order[keys[:m] & RANK]


def survivors(scores: np.ndarray, m: int) -> np.ndarray:
    """Rows that hold the m smallest of ``scores`` (int32 [n], m <= n) with all ties of the m-th: int64 [>= m], ascending.

    A threshold guessed from every 16th record, a little too high, usually leaves somewhat more than m rows in one pass.
    The result is exact either way: with too few or far too many rows the m-th score itself is the threshold.
    """
    n = len(scores)
    guess = m / STRIDE + 3 * math.sqrt(m / STRIDE) + 3
    sample = scores[::STRIDE]
    if guess < len(sample):
        threshold = np.partition(sample, int(guess))[int(guess)]
        rows = np.flatnonzero(scores <= threshold)
        if m <= len(rows) <= 2 * m + 8 * STRIDE:
            return rows
    if m >= n or m == 0:
        return np.arange(n if m else 0)
    return np.flatnonzero(scores <= np.partition(scores, m - 1)[m - 1])


def sampled_votes(
    index: ExactIndex,
    labels: np.ndarray,
    queries: np.ndarray,
    *,
    k: int,
    num_classes: int,
    sampling_probability: float,
    entropy: Entropy,
    keys: Sequence[str],
    release: str,
) -> np.ndarray:
    """Votes of the min(k, |sample|) nearest of a fresh Poisson sample for each query: int64 [q, num_classes].

    ``labels``: int64 [n] in 0..num_classes-1, by row of the index; ``queries``: int8 [q, d]; ``keys``, ``release``: what the
    draw is for. A record is in a query's sample with probability floor(gamma 2^32) / 2^32 <= gamma, independently.

    Sensitivity, for one query, the other records' bits fixed: a record added to the sample moves the votes by 0, by e_a
    (sample smaller than k) or by e_a - e_b (it displaces the k-th); L2 sqrt(2), L1 2.

    The bits are drawn along the records in order of distance, nearest first, only as far as k hits need: the law is that
    of sampling the whole data set first. A query without k hits keeps its bits and goes on along a prefix twice as long,
    until the data set ends.
    """
    votes = np.zeros((len(queries), num_classes), dtype=np.int64)
    hits = np.zeros(len(queries), dtype=np.int64)
    certain = inclusion_bound(sampling_probability) == 1 << 32
    todo, done = np.arange(len(queries)), 0
    length = k if certain else math.ceil((k + 4 * math.sqrt(k) + 8) / sampling_probability)  # misses k hits about once in 10^5
    while len(todo) and done < len(index):
        rows = index.prefix(queries[todo], length)[:, done:]  # [len(todo), new]
        included = np.ones(rows.shape, dtype=bool)
        if not certain:
            included = entropy.inclusion(sampling_probability, [keys[i] for i in todo.tolist()], release, index.ids[rows])
        rank = hits[todo, None] + np.cumsum(included, axis=1)  # a hit votes while it is one of the first k
        query, column = np.nonzero(included & (rank <= k))
        np.add.at(votes, (todo[query], labels[rows[query, column]]), 1)
        hits[todo] = rank[:, -1]
        todo, done, length = todo[hits[todo] < k], done + rows.shape[1], 2 * length
    return votes


def _default_threads() -> int:
    import torch

    return torch.get_num_threads()


def _squared_norms(features: np.ndarray) -> np.ndarray:
    """int32 [n]; at most 4000 * 63^2. In blocks, so that no wide copy of all rows exists."""
    norms = np.empty(len(features), dtype=np.int32)
    for start in range(0, len(features), 4096):
        wide = features[start : start + 4096].astype(np.int32)
        norms[start : start + 4096] = np.einsum("ij,ij->i", wide, wide)
    return norms


def _check_features(name: str, features: np.ndarray, dimensions: int | None = None) -> None:
    """Raises InvalidInput unless int8 [n, d] with 1 <= d <= 4000 (or d as given) and entries in -63..63."""
    if features.dtype != np.int8 or features.ndim != 2 or not 0 < features.shape[1] <= MAX_DIMENSIONS:
        rule = f"int8 [n, d] with d in 1..{MAX_DIMENSIONS}"
        raise InvalidInput(name, rule, f"{features.dtype} {list(features.shape)}")
    if dimensions is not None and features.shape[1] != dimensions:
        raise InvalidInput(name, f"rows of {dimensions} dimensions, as the records are", features.shape[1])
    if features.size and (features.min() < -LARGEST or features.max() > LARGEST):
        raise InvalidInput(name, f"integers in -{LARGEST}..{LARGEST}", "a larger one")
