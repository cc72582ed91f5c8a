"""Exact search on an accelerator, which stores features, multiplies and selects."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from .cpu import ROW_BITS, ExactIndex
from .devices import ALIGNMENT, MIN_LEFT_ROWS, aligned, product_on
from .int8_matmul import minus_twice

MAX_SCORES = 1 << 24  # of a block
BLOCK_BYTES = 256 << 20  # features of a block
UPLOAD = 1 << 14  # records that are copied to the device together


class DeviceIndex(ExactIndex):
    """The lists, sets and sums of an ``ExactIndex`` over the same records, computed on ``device``.

    The key (squared distance, id rank) is unique, so no kernel's treatment of ties can show.

    The device stores 4 bytes a record, and its features (d up to the next multiple of 8 bytes) if
    all of them fit into ``resident_bytes``, by default half of what is free. If not, each search
    streams them from the host: a refusal would tell the extractor's sender how many records there
    are. Besides, it stores a block of at most MAX_SCORES scores and BLOCK_BYTES of features: 64 and
    256 MiB, up to 2 GiB if all scores of a block are within bounds. The host stores the features,
    too, guesses bounds and selects among hashed candidates.

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
            for first in range(0, len(ids), UPLOAD):
                block = self._upload(first, min(first + UPLOAD, len(ids)))
                self._resident[first : first + len(block)] = block

    def _within(
        self, queries: np.ndarray, bounds: np.ndarray, most: int | None = None
    ) -> list[np.ndarray]:
        """See ExactIndex. Only these keys return to the host."""
        lists = [np.zeros(0, dtype=np.int64)] * len(queries)
        limits = torch.from_numpy(bounds)[:, None].to(self._device)
        for first, scores in self._device_blocks(queries) if len(queries) else ():
            near = scores <= limits
            numbers, columns = near.nonzero(as_tuple=True)  # by query, then by row
            keys = (scores[numbers, columns].long() << ROW_BITS) | (columns + first)
            ends = near.sum(dim=1).cumsum(dim=0).cpu().numpy()
            lists = self._joined(lists, [np.split(keys.cpu().numpy(), ends[:-1])], most)
        return lists

    def _device_blocks(self, queries: np.ndarray) -> Iterator[tuple[int, torch.Tensor]]:
        """(first row, -2 q.x + |x|^2 int32 [q, r]) of each block, by ascending row."""
        left_shape = max(MIN_LEFT_ROWS, aligned(len(queries))), self._width
        left = torch.zeros(left_shape, dtype=torch.int8, device=self._device)
        left[: len(queries), : self.dimensions] = torch.from_numpy(minus_twice(queries))
        fitting = min(MAX_SCORES // len(left), BLOCK_BYTES // self._width)
        size = max(ALIGNMENT, fitting // ALIGNMENT * ALIGNMENT)
        for first in range(0, len(self), size):
            stop = min(first + size, len(self))
            if self._resident is None:
                block = self._upload(first, stop)
            else:
                block = self._resident[first : first + aligned(stop - first)]
            cross = self._device_product(left, block)[: len(queries), : stop - first]
            yield first, cross.add_(self._device_norms[first:stop])

    def _upload(self, first: int, stop: int) -> torch.Tensor:
        """The host's features of some rows, zero-padded both ways to multiples of 8.

        int8 [r, width].
        """
        part = self._features[first:stop]
        shape = aligned(len(part)), self._width
        block = torch.zeros(shape, dtype=torch.int8, device=self._device)
        block[: len(part), : self.dimensions] = torch.from_numpy(part)
        return block


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
