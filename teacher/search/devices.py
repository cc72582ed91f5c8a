"""Where the teacher computes: the processor or an accelerator, kernels whose bits can be relied on, and exact products there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from labelwall.teacher.search.int8_matmul import LARGEST, MAX_DIMENSIONS
from labelwall.wall.errors import InvalidInput

ALIGNED, LEAST = (
    8,
    32,
)  # cuBLAS's int8 product takes multiples of 8, and more than 16 rows on the left

DeviceProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def device_of(name: str) -> torch.device:
    """The device of that type. Raises InvalidInput where this machine has none: another one would give other features."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if name != "cpu" and (found is None or found.type != name):
        raise InvalidInput(
            "device", f"cpu{'' if found is None else f' or {found.type}'} on this machine", name
        )
    _one_workspace()
    return torch.device(name)


@contextmanager
def reproducible() -> Iterator[None]:
    """Kernels that give the same bits each time, and float32 that is float32, whatever else this process asked for."""
    _one_workspace()
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    precision = torch.get_float32_matmul_precision()
    flags = {
        "benchmark": False,
        "deterministic": True,
        "allow_tf32": False,
        "fp32_precision": "ieee",
    }
    with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, **flags):
        torch.use_deterministic_algorithms(True)
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _one_workspace() -> None:
    """Of cuBLAS, which reads this once, when it is first used: else its sums may differ from call to call."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def int8_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left[i] . right[j]: int8 [a, d], int8 [b, d] -> int32 [a, b]; a >= 32, b and d multiples of 8."""
    return torch._int_mm(left, right.T)


def float32_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The same integers by float32: every partial sum is an even integer below 2^25 where ``left`` is even (see gemm)."""
    with reproducible():
        return (left.float() @ right.float().T).to(torch.int32)


PRODUCTS: dict[str, DeviceProduct] = {"int8": int8_product, "float32": float32_product}


@lru_cache(maxsize=4)
def product_on(device: torch.device) -> DeviceProduct:
    """The first product that is exact on ``device``: tried at the largest entries, the most dimensions and few of them.

    Raises InvalidInput where none is.
    """
    for product in PRODUCTS.values():
        if all(
            _exact(product, device, rows, dimensions)
            for rows, dimensions in ((LEAST, MAX_DIMENSIONS), (256, ALIGNED))
        ):
            return product
    raise InvalidInput("device", "one with exact products of integers", device.type)


def _exact(product: DeviceProduct, device: torch.device, rows: int, dimensions: int) -> bool:
    entries = (
        torch.arange(4 * rows * dimensions).reshape(4 * rows, dimensions)
        * 2654435761
        % (2 * LARGEST + 1)
        - LARGEST
    )
    entries[0], entries[1] = LARGEST, -LARGEST
    left, right = (-2 * entries[:rows]).to(torch.int8), entries.to(torch.int8)
    try:
        found = product(left.to(device), right.to(device)).cpu()
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    expected = (left.double() @ right.double().T).to(torch.int32)  # integers far below 2^53
    return torch.equal(found, expected)


def aligned(count: int) -> int:
    """``count`` up to the next multiple of 8."""
    return -(-count // ALIGNED) * ALIGNED
