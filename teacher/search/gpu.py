"""The exact index on an accelerator: features, products and selection are there; lists of the nearest come back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from labelwall.teacher.search.cpu import ExactIndex, joined
from labelwall.teacher.search.devices import ALIGNED, LEAST, aligned, product_on
from labelwall.teacher.search.index import WholeIndex
from labelwall.teacher.search.int8_matmul import minus_twice
from labelwall.teacher.search.kernels import Select, Similar
from labelwall.teacher.search.ordered import OrderedIndex, check_features, squared_norms

TOGETHER = 256  # queries searched together
SCORES = (
    1 << 24
)  # looked at together, and entries of the lists of queries that are searched together
FIRST = (
    1 << 14
)  # records of a search's first block: its lists are a bound that spares most of what follows
BLOCK_BYTES = 256 << 20  # of a block's features
RETURNED_BYTES = 256 << 20  # distances brought back at once
ROW_BITS = 32  # of a key: scores are below 2^26 in absolute value, rows below 2^31
NOBODY = torch.iinfo(torch.int64).max  # a key above all others


class DeviceIndex(OrderedIndex):
    """The lists, sets and sums of an ``ExactIndex`` over the same records, computed on ``device``.

    ``features``: int8 [n, d], entries in -63..63, d <= 4000; ``ids``: int64 [n], unique. Records have one order, that of the
    unique key (squared distance, id rank), so that no kernel's way with ties can show.

    On the device lie 4 bytes a record, and its features (d up to the next multiple of 8 bytes) where all of them fit into
    ``room`` bytes, by default half of what is free. Where they do not, each search streams them from the host: a refusal would
    tell whoever sent the extractor how many records there are. Besides, a block of at most SCORES scores and BLOCK_BYTES of
    features: 64 and 256 MiB, up to 2 GiB where all scores of a block enter the lists, and 1 GiB where the device's exact
    product is float32's. On the host: the features as given, which may be a memory-mapped file (copied once where ids do not
    ascend). Hashed sets are found there, by an ExactIndex.

    Raises InvalidInput for any other shape, dtype or entry, and for a device without exact products. n = 0 is allowed.
    """

    def __init__(
        self,
        features: np.ndarray,
        ids: np.ndarray,
        *,
        device: torch.device,
        room: int | None = None,
    ) -> None:
        super().__init__(features, ids)
        self._device, self._product, self._width = (
            device,
            product_on(device),
            aligned(features.shape[1]),
        )
        self._norms = torch.empty(len(ids), dtype=torch.int32, device=device)
        shape = aligned(len(ids)), self._width
        fits = shape[0] * shape[1] <= (_free(device) // 2 if room is None else room)
        resident = torch.zeros(shape, dtype=torch.int8, device=device) if fits else None
        for first in range(0, len(ids), FIRST):
            block = self._uploaded(first, first + FIRST)
            wide = block.to(torch.int32)
            self._norms[first : first + FIRST] = (wide * wide).sum(dim=1, dtype=torch.int32)[
                : len(ids) - first
            ]
            if resident is not None:
                resident[first : first + len(block)] = block
        self._resident = resident
        self._hashed: ExactIndex | None = None

    def similar(
        self, queries: np.ndarray, select: Select, hashing: tuple[int, int, int] | None = None
    ) -> list[Similar]:
        """What ``select`` makes of all records for each of ``queries`` (int8 [q, d]), as row positions; see ExactIndex."""
        check_features("queries", queries, self.dimensions)
        if hashing is not None:
            return [
                self._outward(found)
                for found in self._on_the_host().similar(queries, select, hashing)
            ]
        found: list[Similar] = []
        for start in range(0, len(queries), TOGETHER):
            part = queries[start : start + TOGETHER]
            found += [self._outward(joined(parts)) for parts in self._similar(part, select)]
        return found

    def distances(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Squared distances of each of ``queries`` (int8 [q, d]) to all records, in the order they were given: int32 [n] each."""
        check_features("queries", queries, self.dimensions)
        together = max(1, min(TOGETHER, RETURNED_BYTES // (4 * max(1, len(self)))))
        for start in range(0, len(queries), together):
            part = queries[start : start + together]
            squared = np.empty((len(part), len(self)), dtype=np.int32)
            for first, cross, norms in self._blocks(part):
                squared[:, first : first + len(norms)] = cross.add_(norms).cpu()
            squared += squared_norms(part)[:, None]  # below 2^26
            yield from map(self._as_given, squared)

    def _similar(self, queries: np.ndarray, select: Select) -> list[list[Similar]]:
        """For each query what ``select`` makes of each block, of which only records within its reach come back to it."""
        parts: list[list[Similar]] = [[] for _ in queries]
        lengths = squared_norms(queries).tolist()
        for first, cross, norms in self._blocks(queries):
            least = int(norms.min())
            most = torch.tensor(
                [[select.most(least, length)] for length in lengths],
                dtype=torch.int32,
                device=self._device,
            )
            near = cross <= most
            numbers, columns = near.nonzero(as_tuple=True)  # by query
            ends = near.sum(dim=1).cumsum(dim=0).tolist()
            brought = [
                part.cpu().numpy()
                for part in (columns + first, cross[numbers, columns], norms[columns])
            ]
            for found, length, start, stop in zip(
                parts, lengths, [0, *ends[:-1]], ends, strict=True
            ):
                rows, crossing, own = (part[start:stop] for part in brought)
                similar = select(crossing, own, length)
                found.append(Similar(rows[similar.rows].astype(np.int32), similar.weights))
        return parts

    def _search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        keys = np.empty((len(queries), width), dtype=np.int64)
        together = max(1, min(TOGETHER, SCORES // max(1, width)))
        for start in range(0, len(queries) if width else 0, together):
            part = queries[start : start + together]
            best = torch.empty((len(part), 0), dtype=torch.int64, device=self._device)
            for first, cross, norms in self._blocks(part):
                best = smallest(best, cross.add_(norms), first, width)  # |x - q|^2 - |q|^2
            keys[start : start + together] = best.cpu()
        return keys & ((1 << ROW_BITS) - 1), (keys >> ROW_BITS).astype(np.int32)

    def _blocks(self, queries: np.ndarray) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """(first row, -2 q.x int32 [q, r], |x|^2 int32 [r]) by rising row, from FIRST rows a block to what SCORES allow."""
        left = torch.zeros(
            (max(LEAST, aligned(len(queries))), self._width), dtype=torch.int8, device=self._device
        )
        left[: len(queries), : self.dimensions] = torch.from_numpy(minus_twice(queries))
        most = max(
            ALIGNED, min(SCORES // len(left), BLOCK_BYTES // self._width) // ALIGNED * ALIGNED
        )
        rows, first = FIRST, 0
        while first < len(self):
            rows = min(rows, most)
            stop = min(first + rows, len(self))
            block = (
                self._uploaded(first, stop)
                if self._resident is None
                else self._resident[first : first + aligned(stop - first)]
            )
            yield (
                first,
                self._product(left, block)[: len(queries), : stop - first],
                self._norms[first:stop],
            )
            first, rows = stop, 2 * rows

    def _uploaded(self, first: int, stop: int) -> torch.Tensor:
        """Rows of the host's features with zeros up to multiples of 8 both ways: int8 [r, width]."""
        part = self._features[first:stop]
        block = torch.zeros(
            (aligned(len(part)), self._width), dtype=torch.int8, device=self._device
        )
        block[: len(part), : self.dimensions] = torch.from_numpy(part)
        return block

    def _on_the_host(self) -> ExactIndex:
        """The same records for what is looked up in tables, by rising id; made once."""
        if self._hashed is None:
            self._hashed = ExactIndex(self._features, np.arange(len(self)))
        return self._hashed


def smallest(best: torch.Tensor, scores: torch.Tensor, first: int, m: int) -> torch.Tensor:
    """The ``m`` smallest keys (score << 32 | row) of each query, ascending, of those in ``best`` and of a block's scores.

    ``best``: int64 [q, w], w <= m, of rows before the block's; ``scores``: int32 [q, r] of rows ``first`` to ``first + r - 1``.
    Keys are unique, so that any sort gives these; a row as far as the last of a whole list comes after it.
    """
    if best.shape[1] < m:
        rows = torch.arange(first, first + scores.shape[1], device=scores.device)
        fresh = (scores.long() << ROW_BITS) | rows
    else:
        near = scores < (best[:, -1:] >> ROW_BITS).to(torch.int32)
        queries, columns = near.nonzero(as_tuple=True)
        counts = near.sum(dim=1)
        if not len(queries):
            return best
        places = (
            torch.arange(len(queries), device=scores.device)
            - (counts.cumsum(dim=0) - counts)[queries]
        )
        fresh = torch.full((len(best), int(counts.max())), NOBODY, device=scores.device)
        fresh[queries, places] = (scores[queries, columns].long() << ROW_BITS) | (columns + first)
    return torch.cat([best, fresh], dim=1).sort(dim=1).values[:, :m]


def index_on(device: torch.device, features: np.ndarray, ids: np.ndarray) -> WholeIndex:
    """The index of a device: ExactIndex where that is the processor."""
    return (
        ExactIndex(features, ids)
        if device.type == "cpu"
        else DeviceIndex(features, ids, device=device)
    )


def _free(device: torch.device) -> int:
    """Bytes that are free on an accelerator; on the processor the features are in its memory already, and may be there twice."""
    return 1 << 62 if device.type == "cpu" else int(torch.accelerator.get_memory_info(device)[0])
