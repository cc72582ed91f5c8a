"""Linear NoisySGD on features (Tramer and Boneh 2021), which benchmarks compare with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from labelwall.teacher.baselines.baseline_settings import LinearNoisySgd

if TYPE_CHECKING:
    import torch

RATES = (4.0, 16.0)  # learning rates
DELTA = 1e-5
CLASSES = 10


class Rows(Protocol):
    """Quantised features int8 [n, d] with labels int64 [n]."""

    @property
    def features(self) -> np.ndarray: ...

    @property
    def labels(self) -> np.ndarray: ...


def train(
    private: Rows, tests: Sequence[Rows], epsilon: float, rate: float, epochs: int, seed: int
) -> dict[str, Any]:
    """One training on unit vectors: accuracy on each test, noise and CPU seconds."""
    import torch

    from labelwall.teacher.baselines.noisy_sgd import train_privately

    rows = len(private.labels)
    config = LinearNoisySgd(
        batch_size=min(256, rows), expected_records=rows, epochs=epochs, learning_rate=rate
    )
    inputs, labels = unit(private.features), torch.from_numpy(private.labels)
    began = time.process_time()
    model = train_privately(
        config, inputs, labels, num_classes=CLASSES, epsilon=epsilon, delta=DELTA, seed=seed
    )
    trained = time.process_time() - began
    right = [float((model.predict(unit(test.features)) == test.labels).mean()) for test in tests]
    predicted = (time.process_time() - began - trained) / sum(len(test.labels) for test in tests)
    noise = {
        "noise": model.noise_multiplier,
        "steps": model.steps,
        "sampling": config.batch_size / config.expected_records,
    }
    return {"right": right, "seconds": trained, "predict": predicted, **noise}


def unit(features: np.ndarray) -> torch.Tensor:
    """float32 [n, d] of unit rows."""
    import torch

    x = torch.from_numpy(features.astype(np.float32))
    return x / x.norm(dim=1, keepdim=True).clamp_min(1)
