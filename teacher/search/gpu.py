"""Exact search on an accelerator, which stores features, multiplies and selects."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from .cpu import QUERY_BATCH, ROW_BITS, ROW_MASK, SCORE_BYTES, ExactIndex, by_query
from .devices import ALIGNMENT, MIN_LEFT_ROWS, aligned, product_on
from .int8_matmul import minus_twice
from .kernels import Select

MAX_SCORES = 1 << 24  # scores of a block, and entries of the lists of queries searched together
FIRST_BLOCK = 1 << 14  # records of the first block: its lists bound most of what follows
BLOCK_BYTES = 256 << 20  # features of a block
MAX_KEY = torch.iinfo(torch.int64).max  # above the key of any record


class DeviceIndex(ExactIndex):
    """The lists, sets and sums of an ``ExactIndex`` over the same records, computed on ``device``.

    The key (squared distance, id rank) is unique, so no kernel's treatment of ties can show.

    The device stores 4 bytes a record, and its features (d up to the next multiple of 8 bytes) if
    all of them fit into ``resident_bytes``, by default half of what is free. If not, each search
    streams them from the host: a refusal would tell the extractor's sender how many records there
    are. Besides, it stores a block of at most MAX_SCORES scores and BLOCK_BYTES of features: 64 and
    256 MiB, up to 2 GiB if all scores of a block enter the lists, and 1 GiB if the device's exact
    product is float32's.

    The host stores the features as given, which may be a memory-mapped file (copied once if ids do
    not ascend), and selects among hashed candidates.

    Raises InvalidInput as ExactIndex, and for a device without exact products.
    """

    def __init__(
        self,
        features: np.ndarray,
        ids: np.ndarray,
        persons: np.ndarray | None = None,
        *,
        device: torch.device,
        resident_bytes: int | None = None,
    ) -> None:
        super().__init__(features, ids, persons)
        self._device, self._device_product = device, product_on(device)
        self._width = aligned(features.shape[1])
        self._device_norms = torch.from_numpy(self._norms).to(device)
        if resident_bytes is None:
            resident_bytes = _free_bytes(device) // 2
        shape = aligned(len(ids)), self._width
        fits = shape[0] * shape[1] <= resident_bytes
        self._resident: torch.Tensor | None = None
        if fits:
            self._resident = torch.zeros(shape, dtype=torch.int8, device=device)
            for first in range(0, len(ids), FIRST_BLOCK):
                block = self._upload(first, min(first + FIRST_BLOCK, len(ids)))
                self._resident[first : first + len(block)] = block

    def _all_scores(self, queries: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        size = max(1, min(QUERY_BATCH, SCORE_BYTES // (4 * max(1, len(self)))))
        for start in range(0, len(queries), size):
            batch = queries[start : start + size]
            scores = np.empty((len(batch), len(self)), dtype=np.int32)
            for first, cross, norms in self._device_blocks(batch):
                scores[:, first : first + len(norms)] = cross.add_(norms).cpu()
            yield start, scores

    def _near(
        self, queries: np.ndarray, norms: np.ndarray, select: Select
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """See ExactIndex. Only these pairs return to the host."""
        near = []
        for first, cross, own in self._device_blocks(queries):
            bounds = torch.from_numpy(select.max_cross(int(own.min()), norms)).to(self._device)
            numbers, columns = (cross <= bounds[:, None]).nonzero(as_tuple=True)
            rows, terms = columns + first, cross[numbers, columns]
            near.append((numbers.cpu().numpy(), rows.cpu().numpy(), terms.cpu().numpy()))
        return by_query(len(queries), near)

    def _search(self, queries: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        keys = np.empty((len(queries), width), dtype=np.int64)
        batch_size = max(1, min(QUERY_BATCH, MAX_SCORES // max(1, width)))
        for start in range(0, len(queries) if width else 0, batch_size):
            batch = queries[start : start + batch_size]
            best = torch.empty((len(batch), 0), dtype=torch.int64, device=self._device)
            for first, cross, norms in self._device_blocks(batch):
                # |x - q|^2 - |q|^2 = -2 q.x + |x|^2
                best = merge_top_k(best, cross.add_(norms), first, width)
            keys[start : start + batch_size] = best.cpu()
        return keys & ROW_MASK, (keys >> ROW_BITS).astype(np.int32)

    def _device_blocks(
        self, queries: np.ndarray
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """(first row, -2 q.x int32 [q, r], |x|^2 int32 [r]) of each block, by ascending row.

        Blocks double from FIRST_BLOCK rows to what MAX_SCORES and BLOCK_BYTES allow.
        """
        left_shape = max(MIN_LEFT_ROWS, aligned(len(queries))), self._width
        left = torch.zeros(left_shape, dtype=torch.int8, device=self._device)
        left[: len(queries), : self.dimensions] = torch.from_numpy(minus_twice(queries))
        fitting = min(MAX_SCORES // len(left), BLOCK_BYTES // self._width)
        max_rows = max(ALIGNMENT, fitting // ALIGNMENT * ALIGNMENT)
        rows, first = FIRST_BLOCK, 0
        while first < len(self):
            rows = min(rows, max_rows)
            stop = min(first + rows, len(self))
            if self._resident is None:
                block = self._upload(first, stop)
            else:
                block = self._resident[first : first + aligned(stop - first)]
            cross = self._device_product(left, block)[: len(queries), : stop - first]
            yield first, cross, self._device_norms[first:stop]
            first, rows = stop, 2 * rows

    def _upload(self, first: int, stop: int) -> torch.Tensor:
        """The host's features of some rows, zero-padded both ways to multiples of 8.

        int8 [r, width].
        """
        part = self._features[first:stop]
        shape = aligned(len(part)), self._width
        block = torch.zeros(shape, dtype=torch.int8, device=self._device)
        block[: len(part), : self.dimensions] = torch.from_numpy(part)
        return block


def merge_top_k(best: torch.Tensor, scores: torch.Tensor, first: int, m: int) -> torch.Tensor:
    """The ``m`` smallest keys (score << 32 | row) of each query in ``best`` and a block, ascending.

    ``best``: int64 [q, w], w <= m, of rows before the block's; ``scores``: int32 [q, r] of rows
    ``first`` to ``first + r - 1``. Keys are unique, so any sort gives the same list. A row whose
    score equals that of a full list's last entry comes after it.
    """
    if best.shape[1] < m:
        rows = torch.arange(first, first + scores.shape[1], device=scores.device)
        added = (scores.long() << ROW_BITS) | rows
    else:
        near = scores < (best[:, -1:] >> ROW_BITS).to(torch.int32)
        queries, columns = near.nonzero(as_tuple=True)
        counts = near.sum(dim=1)
        if not len(queries):
            return best
        starts = counts.cumsum(dim=0) - counts
        places = torch.arange(len(queries), device=scores.device) - starts[queries]
        added = torch.full((len(best), int(counts.max())), MAX_KEY, device=scores.device)
        added[queries, places] = (scores[queries, columns].long() << ROW_BITS) | (columns + first)
    return torch.cat([best, added], dim=1).sort(dim=1).values[:, :m]


def index_on(
    device: torch.device,
    features: np.ndarray,
    ids: np.ndarray,
    persons: np.ndarray | None = None,
) -> ExactIndex:
    """The index of a device: ExactIndex for the processor, DeviceIndex for any other."""
    if device.type == "cpu":
        return ExactIndex(features, ids, persons)
    return DeviceIndex(features, ids, persons, device=device)


def _free_bytes(device: torch.device) -> int:
    """Free memory of an accelerator; of the processor, enough for a second copy of any features."""
    return 1 << 62 if device.type == "cpu" else int(torch.accelerator.get_memory_info(device)[0])
