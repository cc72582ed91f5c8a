"""Devices: finding one, running reproducible kernels on it, and its exact integer products."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from ...wall.errors import InvalidInput
from .int8_matmul import LARGEST, MAX_DIMENSIONS

# cuBLAS's int8 product takes multiples of 8, and more than 16 rows on the left.
ALIGNMENT = 8
MIN_LEFT_ROWS = 32

DeviceProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def device_of(name: str) -> torch.device:
    """The device of the type ``name``.

    Raises InvalidInput if this machine has none: a substitute would compute other features.
    """
    present = torch.accelerator.current_accelerator(check_available=True)
    if name != "cpu" and (present is None or present.type != name):
        rule = f"cpu{'' if present is None else f' or {present.type}'} on this machine"
        raise InvalidInput("device", rule, name)
    _fix_cublas_workspace()
    return torch.device(name)


@contextmanager
def reproducible() -> Iterator[None]:
    """Inside, kernels are deterministic and float32 is IEEE, whatever the process has set.

    The former settings are restored at the end.
    """
    _fix_cublas_workspace()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
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
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


def _fix_cublas_workspace() -> None:
    """Make cuBLAS's sums the same in each call. It reads the variable once, at its first use."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def int8_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left[i] . right[j]: int8 [a, d], int8 [b, d] -> int32 [a, b].

    a >= 32; b and d are multiples of 8.
    """
    return torch._int_mm(left, right.T)


def float32_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The same integers by a float32 product.

    Exact for an even ``left``: every partial sum is an even integer below 2^25 (see int8_matmul).
    """
    with reproducible():
        return (left.float() @ right.float().T).to(torch.int32)


PRODUCTS: dict[str, DeviceProduct] = {"int8": int8_product, "float32": float32_product}


@lru_cache(maxsize=4)
def product_on(device: torch.device) -> DeviceProduct:
    """The first product that is exact on ``device``.

    Each is tested at the largest entries, with the most dimensions and with few of them. Raises
    InvalidInput if none is exact.
    """
    sizes = (MIN_LEFT_ROWS, MAX_DIMENSIONS), (256, ALIGNMENT)
    for product in PRODUCTS.values():
        if all(_is_exact(product, device, rows, dimensions) for rows, dimensions in sizes):
            return product
    raise InvalidInput("device", "one with exact products of integers", device.type)


def _is_exact(product: DeviceProduct, device: torch.device, rows: int, dimensions: int) -> bool:
    entries = torch.arange(4 * rows * dimensions).reshape(4 * rows, dimensions)
    entries = entries * 2654435761 % (2 * LARGEST + 1) - LARGEST
    entries[0] = LARGEST
    entries[1] = -LARGEST
    left, right = (-2 * entries[:rows]).to(torch.int8), entries.to(torch.int8)
    try:
        products = product(left.to(device), right.to(device)).cpu()
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    expected = (left.double() @ right.double().T).to(torch.int32)  # integers far below 2^53
    return torch.equal(products, expected)


def aligned(count: int) -> int:
    """``count`` rounded up to a multiple of 8."""
    return -(-count // ALIGNMENT) * ALIGNMENT
