"""A received network as a function of one record.

It sees one fixed, padded batch shape, and a test finds whether a row's slot in it matters.
"""

import numpy as np
import torch

from ...wall.errors import InvalidInput
from ...wall.messages import ExtractorSpec
from ...wall.networks import Backbone, load
from ...wall.preprocessing import Preprocessing
from ...wall.progress import TaskProgress
from ..search.devices import device_of, reproducible


class FixedShapeNetwork:
    """A backbone's float32 features in eval mode, in batches of ``batch_size`` rows on ``device``.

    A float network's rounding depends on the batch's shape, so there is one shape, padded with rows
    of zeros. It may also depend on the slot in the batch, which ``slot_independent`` tests.

    Raises InvalidInput for a device that is absent, or has no deterministic kernels for it.
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
            self._check_kernels()

    def one_at_a_time(self) -> "FixedShapeNetwork":
        """The same network on batches of one row, where no other row can matter."""
        return FixedShapeNetwork(self._spec, 1, self._device.type, self._backbone)

    def features(self, inputs: np.ndarray, progress: TaskProgress | None = None) -> np.ndarray:
        """float32 [n, d] of raw inputs [n, ...]."""
        parts, total = [], len(inputs)
        # At least one batch: for an empty input, padding tells d.
        for start in range(0, max(total, 1), self._batch_size):
            rows = inputs[start : start + self._batch_size]
            parts.append(self._batch(rows)[: len(rows)])
            if progress is not None:
                progress(min(start + self._batch_size, total), total)
        return np.concatenate(parts)

    def slot_independent(self, probe: np.ndarray) -> bool:
        """Whether a row's output keeps every bit if rows are permuted or one is inserted first.

        ``probe``: PUBLIC inputs [p, ...], p >= 1. They are repeated to fill at least two batches,
        so that full and padded batches and every slot are tested.
        """
        rows = np.resize(probe, (2 * self._batch_size + 1, *probe.shape[1:]))
        order = np.random.default_rng(0).permutation(len(rows))  # public, no private draw
        before = self.features(rows)
        permuted = self.features(rows[order])
        inserted = self.features(np.concatenate([rows[-1:], rows]))[1:]
        return _same_bits(permuted, before[order]) and _same_bits(inserted, before)

    def _batch(self, rows: np.ndarray) -> np.ndarray:
        padded = np.zeros((self._batch_size, *self._spec.input_shape), dtype=rows.dtype)
        padded[: len(rows)] = rows
        with torch.inference_mode(), reproducible():
            x = Preprocessing(self._spec.mean, self._spec.std)(padded).to(self._device)
            return self._backbone.features(x).to(torch.float32).cpu().numpy()

    def _check_kernels(self) -> None:
        """Find a kernel that is missing or not deterministic before a private row is processed."""
        dtype = np.uint8 if len(self._spec.input_shape) == 3 else np.float32
        try:
            self._batch(np.zeros((0, *self._spec.input_shape), dtype=dtype))
        except RuntimeError as error:
            rule = f"a network that {self._device.type} computes by deterministic kernels"
            raise InvalidInput("extractor.backbone", rule, self._spec.backbone) from error


def _same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))
