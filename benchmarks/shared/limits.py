"""Measured limits of a device: its fastest product of large resident matrices, fastest copy."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labelwall.teacher.search.accelerators import PRODUCTS

# Of square matrices; the fastest size counts.
SIZES = {"cpu": (512, 1024, 2048), "elsewhere": (4096, 8192, 16384)}
COPIED_BYTES = 256 << 20
TRIALS = 15


@dataclass(frozen=True)
class Limits:
    """``operations``: int8 multiplications and additions a second.

    ``bytes``: read and written by a copy a second.
    """

    operations: float
    bytes: float

    def least(self, queries: int, records: int, dimensions: int) -> tuple[float, str]:
        """Lower bound of a batch's seconds, and what limits it.

        "products": all products once. "memory": the records' features read once.
        """
        multiplying = 2 * queries * records * dimensions / self.operations
        reading = records * dimensions / self.bytes
        return max((multiplying, "products"), (reading, "memory"))


def limits_of(device: torch.device) -> Limits:
    """The best of some trials."""
    rates = [
        _product_rate(device, size)
        for size in SIZES["cpu" if device.type == "cpu" else "elsewhere"]
    ]
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Limits(max(rates), 2 * COPIED_BYTES / _seconds(lambda: target.copy_(source), device))


def _product_rate(device: torch.device, size: int) -> float:
    matrix = (
        (torch.arange(size * size, device=device) % 127 - 63).to(torch.int8).reshape(size, size)
    )
    rates = []
    for product in PRODUCTS.values():
        try:
            seconds = _seconds(lambda product=product: product(matrix, matrix), device)
            rates.append(2 * size**3 / seconds)
        except (AttributeError, NotImplementedError, RuntimeError):
            continue  # torch's int8 product is private, and not available everywhere
    return max(rates)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The fastest of TRIALS runs after a warm-up; waits for an accelerator."""
    best = float("inf")
    for _ in range(TRIALS + 1):
        start = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best
