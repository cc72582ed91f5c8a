"""NoisySGD with Opacus: end to end (Abadi et al. 2016) and linear (Tramer and Boneh 2021).

A baseline for comparisons: its Gaussian noise is torch's floating point noise from a seeded
generator, so its epsilon is that of the idealised algorithm and its models are not for release.
Batches are Poisson samples at a public rate; the number of steps and the noise follow from public
settings alone.
"""

import warnings
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .baseline_settings import LinearNoisySgd, NoisySgd

PREDICTION_BATCH = 1000  # rows
MAX_PHYSICAL_BATCH = 256  # records whose gradients are in memory at once; parts of a Poisson batch


@dataclass(frozen=True)
class PrivateModel:
    """A trained network, its epsilon by the PRV accountant, and its noise: sigma over clip."""

    network: nn.Module = field(repr=False)
    epsilon: float
    noise_multiplier: float
    steps: int
    claim = "Opacus' PRV accountant's, for ideal noise and one record added or removed"

    def probabilities(self, inputs: torch.Tensor) -> np.ndarray:
        """Probabilities of the classes of float32 [n, ...] inputs: float64 [n, classes]."""
        with torch.no_grad():
            parts = [self.network(rows) for rows in inputs.split(PREDICTION_BATCH)]
        return torch.cat(parts).double().softmax(dim=1).numpy()

    def predict(self, inputs: torch.Tensor) -> np.ndarray:
        """Classes of the inputs: int64 [n]."""
        return self.probabilities(inputs).argmax(axis=1)


def train_privately(
    config: NoisySgd | LinearNoisySgd,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    num_classes: int,
    epsilon: float,
    delta: float,
    seed: int,
) -> PrivateModel:
    """Train on PRIVATE ``inputs`` and int64 [n] ``labels``, (epsilon, delta)-DP by record.

    ``inputs``: float32 [n, c, h, w] or [n, d], standardised by public statistics. Each record is in
    each batch with probability batch_size / expected_records, its gradient is clipped, and Gaussian
    noise is added to the sum, also where a batch has no records.
    """
    rate = config.batch_size / config.expected_records
    steps = round(config.epochs / rate)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Opacus warns of hooks, Renyi orders and its noise, which this module's docstring covers.
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.optimizers import DPOptimizer

        multiplier, spent = calibrate(epsilon, delta, rate, steps)
        torch.manual_seed(seed)
        network: nn.Module
        if isinstance(config, LinearNoisySgd):
            network = nn.Linear(inputs.shape[1], num_classes)
        else:
            network = tanh_cnn(inputs.shape[1:], num_classes)
        wrapped = GradSampleModule(network)
        optimizer = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=config.learning_rate, momentum=0.9),
            noise_multiplier=multiplier,
            max_grad_norm=config.clip,
            expected_batch_size=config.batch_size,
        )
        for _ in range(steps):
            batch = torch.nonzero(torch.rand(len(labels)) < rate).squeeze(1)
            parts = batch.split(MAX_PHYSICAL_BATCH)
            for number, rows in enumerate(parts):
                optimizer.signal_skip_step(do_skip=number < len(parts) - 1)
                if len(rows):
                    F.cross_entropy(wrapped(inputs[rows]), labels[rows]).backward()
                else:
                    for parameter in wrapped.parameters():
                        parameter.grad_sample = torch.zeros(0, *parameter.shape)
                optimizer.step()
                optimizer.zero_grad()
        wrapped.to_standard_module()
    return PrivateModel(network.eval(), spent, multiplier, steps)


@cache  # all learning rates share the noise
def calibrate(epsilon: float, delta: float, rate: float, steps: int) -> tuple[float, float]:
    """(multiplier, epsilon) of the least noise whose PRV epsilon is at most ``epsilon``."""
    from opacus.accountants import PRVAccountant
    from opacus.accountants.utils import get_noise_multiplier

    multiplier = float(
        get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=rate,
            steps=steps,
            accountant="prv",
            epsilon_tolerance=epsilon / 100,
        )
    )
    accountant = PRVAccountant()
    accountant.history = [(multiplier, rate, steps)]
    return multiplier, float(accountant.get_epsilon(delta))


def tanh_cnn(shape: torch.Size | tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions with tanh, which bounds activations and so gradients.

    Papernot et al. 2021, Table 1.
    """
    layers = [nn.Conv2d(shape[0], 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)]
    layers += [nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten()]
    body = nn.Sequential(*layers)
    with torch.no_grad():
        flat = body(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body, nn.Linear(flat, 32), nn.Tanh(), nn.Linear(32, num_classes))
