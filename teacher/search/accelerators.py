"""Accelerators: exact products of integers, and exact search by them."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch

from ...wall.devices import reproducible
from ...wall.errors import InvalidInput
from .cpu import ROW_BITS, ExactIndex
from .int8_matmul import is_exact
from .kernels import Product, minus_twice

# cuBLAS's int8 product takes multiples of 8, and more than 16 rows on the left.
ALIGNMENT = 8
MIN_LEFT_ROWS = 32
MAX_SCORES = 1 << 24  # of a block
BLOCK_BYTES = 256 << 20  # features of a block
UPLOAD = 1 << 14  # records that are copied to the device together

DeviceProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def int8_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left[i] . right[j]: int8 [a, d], int8 [b, d] -> int32 [a, b].

    a >= 32; b and d are multiples of 8.
    """
    return torch._int_mm(left, right.T)


def float32_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of int8 rows by a float32 product.

    Exact for an even ``left``: every partial sum is an even integer below 2^25 (see int8_matmul).
    """
    with reproducible():
        return (left.float() @ right.float().T).to(torch.int32)


PRODUCTS: dict[str, DeviceProduct] = {"int8": int8_product, "float32": float32_product}


def on_arrays(product: DeviceProduct, device: torch.device) -> Product:
    """A product of tensors on ``device`` as one of arrays."""

    def multiply(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
        factors = (torch.from_numpy(factor).to(device) for factor in (left, right))
        out[:] = product(*factors).cpu().numpy()

    return multiply


@lru_cache(maxsize=4)
def product_on(device: torch.device) -> DeviceProduct:
    """The first product that is exact on ``device``, with the most dimensions and with few of them.

    Raises InvalidInput if none is.
    """
    for product in PRODUCTS.values():
        computed = on_arrays(product, device)
        if is_exact(computed, MIN_LEFT_ROWS) and is_exact(computed, 256, ALIGNMENT):
            return product
    raise InvalidInput("device", "one with exact products of integers", device.type)


def aligned(count: int) -> int:
    """``count`` rounded up to a multiple of 8."""
    return -(-count // ALIGNMENT) * ALIGNMENT


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
        if resident_bytes is None:  # the processor has room for a second copy of any features
            on_cpu = device.type == "cpu"
            free = 1 << 62 if on_cpu else torch.accelerator.get_memory_info(device)[0]
            resident_bytes = free // 2
        shape = aligned(len(ids)), self._width
        self._resident: torch.Tensor | None = None
        if shape[0] * shape[1] <= resident_bytes:
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
            within = scores <= limits
            numbers, columns = within.nonzero(as_tuple=True)  # by query, then by row
            keys = (scores[numbers, columns].long() << ROW_BITS) | (columns + first)
            ends = within.sum(dim=1).cumsum(dim=0).cpu().numpy()
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
        """Features of some rows, zero-padded both ways to multiples of 8: int8 [r, width]."""
        features = self.features[first:stop]
        shape = aligned(len(features)), self._width
        block = torch.zeros(shape, dtype=torch.int8, device=self._device)
        block[: len(features), : self.dimensions] = torch.from_numpy(features)
        return block


def index_on(
    device: torch.device,
    features: np.ndarray,
    ids: np.ndarray,
    persons: np.ndarray | None = None,
) -> ExactIndex:
    if device.type == "cpu":
        return ExactIndex(features, ids, persons)
    return DeviceIndex(features, ids, persons, device=device)
