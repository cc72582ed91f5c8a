"""Ten classes of vectors where a benchmark expects images' features."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

CHUNK = 1000
# In the order of their imports.
ACCURACY = (
    "image_features",
    "kept",
    "figure_numbers",
    "figures",
    "linear_sgd",
    "ind_knn_choice",
    "ind_knn_accuracy",
)


def clusters(n: int, seed: int, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """float32 [n, 16] around ten centres, labels int64 [n]."""
    centres = np.random.default_rng(0).normal(size=(10, 16))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, n)
    return (centres[labels] + noise * rng.normal(size=(n, 16))).astype(np.float32), labels


def write(folder: Path, test_rows: int) -> None:
    """One chunk of each split; 1,000 private rows."""
    for split, rows, seed in (("test", test_rows, 1), ("train", CHUNK, 2)):
        x, y = clusters(rows, seed)
        np.savez(folder / f"{split}_000.npz", features=x, labels=y)


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """The benchmark's command; torch's threads as they were."""
    import torch

    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *options])
    threads = torch.get_num_threads()
    try:
        module.main()
    finally:
        torch.set_num_threads(threads)
