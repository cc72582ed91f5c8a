"""Every index under test: the processor's products, and the device index on each present device."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.noise.entropy import Entropy
from labelwall.teacher.search.accelerators import DeviceIndex
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.index import Index
from labelwall.teacher.search.int8_matmul import float32_product, int8_product
from labelwall.teacher.search.kernels import Product

PRODUCTS: dict[str, Product] = {"int8": int8_product, "float32": float32_product}

_accelerator = torch.accelerator.current_accelerator(check_available=True)
PRESENT = ["cpu", *([_accelerator.type] if _accelerator else [])]
DEVICES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(name not in PRESENT, reason=f"this machine has no {name} device"),
    )
    for name in dict.fromkeys([*PRESENT, "cuda"])
]
WAYS: dict[str, Callable[..., ExactIndex]] = {
    **{name: partial(ExactIndex, product=product) for name, product in PRODUCTS.items()},
    **{f"on {name}": partial(DeviceIndex, device=torch.device(name)) for name in PRESENT},
    **{
        f"streamed to {name}": partial(DeviceIndex, device=torch.device(name), resident_bytes=0)
        for name in PRESENT
    },
}
ABSENT = pytest.mark.skip(reason="this machine has no cuda device")
everywhere = pytest.mark.parametrize(
    "index_of",
    [
        *(pytest.param(make, id=name) for name, make in WAYS.items()),
        *(
            pytest.param(None, id=f"{way} cuda", marks=ABSENT)
            for way in ("on", "streamed to")
            if "cuda" not in PRESENT
        ),
    ],
)


def int_features(seed: int, n: int, d: int, low: int = -63, high: int = 63) -> np.ndarray:
    return np.random.default_rng(seed).integers(low, high + 1, (n, d)).astype(np.int8)


def brute_force(features: np.ndarray, queries: np.ndarray, m: int) -> np.ndarray:
    """Rows by (squared distance, row), from differences in int64: int64 [q, min(m, n)]."""
    squared = ((features.astype(np.int64) - queries.astype(np.int64)[:, None]) ** 2).sum(axis=2)
    return np.argsort(squared, axis=1, kind="stable")[:, :m]


def sampled(
    index: Index,
    labels: np.ndarray,
    queries: np.ndarray,
    k: int,
    gamma: float,
    entropy: Entropy,
    release: str = "screen",
) -> np.ndarray:
    """Votes for four classes of the k nearest of a sample; the keys are q0, q1, ..."""
    keys = [f"q{number}" for number in range(len(queries))]
    return Voters(index, labels, 4, queries).votes(k, gamma, keys, release, entropy)
