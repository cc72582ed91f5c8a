"""A received network as a function of one record: one fixed padded batch shape, and a test that the slot does not matter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from labelwall.teacher.search.devices import device_of, reproducible
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.networks.architectures import Backbone, load, preprocess

Progress = Callable[[int, int], None]


class FixedShapeNetwork:
    """``features(inputs)`` of a backbone in eval mode, float32, always on batches of ``batch_size`` rows, on one ``device``.

    A float network's rounding depends on the batch's shape, so there is one shape, padded with rows of zeros; it may also
    depend on the slot in the batch, so ``slot_independent`` tests that on public rows, on the device.

    Raises InvalidInput where the device is not there, or has no deterministic kernels for the network.
    """

    def __init__(
        self,
        spec: ExtractorSpec,
        batch_size: int,
        device: str = "cpu",
        backbone: Backbone | None = None,
    ) -> None:
        self._spec, self._batch_size, self._device = spec, batch_size, device_of(device)
        self._backbone = (load(spec) if backbone is None else backbone).to(self._device)
        if device != "cpu":
            self._tried()

    def one_at_a_time(self) -> FixedShapeNetwork:
        """The same network on batches of one row: no company, no slot."""
        return FixedShapeNetwork(self._spec, 1, self._device.type, self._backbone)

    def features(self, inputs: np.ndarray, progress: Progress | None = None) -> np.ndarray:
        """float32 [n, d] of raw inputs [n, ...]."""
        parts, total = [], len(inputs)
        for start in range(
            0, max(total, 1), self._batch_size
        ):  # an empty input still learns d from a batch of padding
            rows = inputs[start : start + self._batch_size]
            parts.append(self._batch(rows)[: len(rows)])
            if progress is not None:
                progress(min(start + self._batch_size, total), total)
        return np.concatenate(parts)

    def slot_independent(self, probe: np.ndarray) -> bool:
        """Whether no bit of a row's output changes when rows are permuted, or one is inserted before all others.

        ``probe``: PUBLIC inputs [p, ...], p >= 1; they are repeated to fill at least two batches, so that full and padded
        batches and every slot are tried.
        """
        rows = np.resize(probe, (2 * self._batch_size + 1, *probe.shape[1:]))
        order = np.random.default_rng(0).permutation(
            len(rows)
        )  # a public choice of a test, not a draw
        before = self.features(rows)
        permuted, inserted = (
            self.features(rows[order]),
            self.features(np.concatenate([rows[-1:], rows]))[1:],
        )
        return _same_bits(permuted, before[order]) and _same_bits(inserted, before)

    def _batch(self, rows: np.ndarray) -> np.ndarray:
        padded = np.zeros((self._batch_size, *self._spec.input_shape), dtype=rows.dtype)
        padded[: len(rows)] = rows
        with torch.inference_mode(), reproducible():
            x = preprocess(padded, self._spec.mean, self._spec.std).to(self._device)
            return self._backbone.features(x).to(torch.float32).cpu().numpy()

    def _tried(self) -> None:
        """One batch of padding: a kernel that is missing, or is not deterministic, is met before a private row is."""
        image = len(self._spec.input_shape) == 3
        try:
            self._batch(
                np.zeros((0, *self._spec.input_shape), dtype=np.uint8 if image else np.float32)
            )
        except RuntimeError as error:
            rule = f"a network that {self._device.type} computes by deterministic kernels"
            raise InvalidInput("extractor.backbone", rule, self._spec.backbone) from error


def _same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))
