"""A received network as a function of one record.

The processor computes each row alone. An accelerator sees one fixed, padded batch shape, and a test
on noise finds whether a row's slot in it matters.
"""

from collections.abc import Callable
from functools import cached_property, lru_cache, partial

import numpy as np
import onnxruntime
import torch
from joblib import Parallel, delayed
from torch import nn

from ..devices import device_of, reproducible
from ..errors import InvalidInput
from ..messages import ExtractorSpec, blank_inputs
from ..networks import Backbone, build, load_network, to_onnx
from ..preprocessing import Preprocessing

BATCH = 64  # rows that an accelerator sees together
KEPT = 8  # networks


class _OfRows(nn.Module):
    """float32 features [n, d] of raw inputs [n, ...], in eval mode."""

    def __init__(self, spec: ExtractorSpec, network: Backbone) -> None:
        super().__init__()
        self.preprocessing = Preprocessing(spec.mean, spec.std)
        self.network = network
        self.eval().requires_grad_(False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.network.features(self.preprocessing(rows)).to(torch.float32)


class Network:
    """A backbone's features in eval mode, computed on ``device``.

    On the processor one row at a time: of images by ONNX Runtime, in any thread; by torch of
    vectors, whose networks are small, and if there is no form in ONNX. Which one follows from
    the network alone. On an accelerator by torch's deterministic kernels in full float32, in
    batches of one shape, padded with rows of zeros, since rounding depends on the shape; one row at
    a time if a row's slot in the batch changes a bit of its features.

    Raises InvalidInput for a device that is absent, or has no deterministic kernels for it.
    """

    def __init__(self, spec: ExtractorSpec, device: str) -> None:
        self._spec, self._device, self._size = spec, device_of(device), 1
        self._has_session = device == "cpu" and len(spec.input_shape) == 3
        self._module = _OfRows(spec, load_network(spec)).to(self._device)
        if device != "cpu":
            # Fresh weights, too: a caller could choose some that behave on known rows
            with torch.random.fork_rng(devices=[]):
                shape, classes = spec.input_shape, spec.num_classes
                fresh = build(spec.backbone, input_shape=shape, num_classes=classes)
            modules = _OfRows(spec, fresh).to(self._device), self._module
            self._size = BATCH  # for the tests
            self._size = BATCH if all(map(self._slot_independent, modules)) else 1
        else:
            self._by_torch(self._module, self._zeros(1))  # fails here if mean and std do not fit

    @property
    def threads(self) -> bool:
        """Whether several threads may compute at the same time."""
        return self._session is not None

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession | None:
        """For images on the processor. It takes seconds, so it is built when rows are computed."""
        return session_of(self._module, self._zeros(1)) if self._has_session else None

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """float32 [n, d] of raw inputs [n, ...]."""
        return self._features(self._module, inputs)

    def _features(self, module: nn.Module, inputs: np.ndarray) -> np.ndarray:
        parts = []
        for start in range(0, max(len(inputs), 1), self._size):  # without rows, padding tells d
            rows = inputs[start : start + self._size]
            padded = self._zeros(self._size)
            padded[: len(rows)] = rows
            parts.append(self._batch(module, padded)[: len(rows)])
        return np.concatenate(parts)

    def _batch(self, module: nn.Module, rows: np.ndarray) -> np.ndarray:
        if self._session is not None:
            return self._session.run(None, {"inputs": rows})[0]
        return self._by_torch(module, rows)

    def _by_torch(self, module: nn.Module, rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode(), reproducible():
            return module(torch.from_numpy(rows).to(self._device)).cpu().numpy()

    def _zeros(self, count: int) -> np.ndarray:
        return blank_inputs(self._spec.input_shape, count)

    def _slot_independent(self, module: nn.Module) -> bool:
        """Whether a row's output keeps every bit if rows are permuted or one is inserted first.

        More than two batches of noise: full and padded batches and every slot are tested.
        """
        rng = np.random.default_rng(0)  # noqa: TID251 - fixed rows: no release has to do with them
        rows = self._zeros(2 * BATCH + 1)
        rows[:] = 255 * rng.random(rows.shape) if rows.ndim == 4 else rng.normal(size=rows.shape)
        order = rng.permutation(len(rows))
        try:
            before = self._features(module, rows)
            permuted = self._features(module, rows[order])
            inserted = self._features(module, np.concatenate([rows[-1:], rows]))[1:]
        except RuntimeError as error:
            rule = f"a network that {self._device.type} computes by deterministic kernels"
            raise InvalidInput("extractor.backbone", rule, self._spec.backbone) from error
        return _same_bits(permuted, before[order]) and _same_bits(inserted, before)


def _same_bits(left: np.ndarray, right: np.ndarray) -> bool:
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))


def session_of(module: nn.Module, row: np.ndarray) -> onnxruntime.InferenceSession | None:
    """The module for one row, on the caller's thread alone; None if it has no form in ONNX."""
    try:
        graph = to_onnx(module, torch.from_numpy(row), "features").model_proto.SerializeToString()
    except torch.onnx.OnnxExporterError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # else sums depend on the number of threads
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def by_session(
    module: nn.Module, row: np.ndarray, workers: int
) -> Callable[[np.ndarray], np.ndarray] | None:
    """A function that gives the module's outputs for rows like ``row`` [1, ...], each by itself.

    ``workers``: threads. None if the module has no form in ONNX.
    """
    session = session_of(module, row.copy())  # whatever its strides
    if session is None:
        return None
    run = partial(session.run, None)

    def compute(rows: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(rows)
        each = ({"inputs": rows[n : n + 1]} for n in range(len(rows)))
        with Parallel(n_jobs=workers, prefer="threads", batch_size=8) as threads:
            return np.concatenate([found for (found,) in threads(delayed(run)(x) for x in each)])

    return compute


@lru_cache(maxsize=KEPT)
def network_of(spec: ExtractorSpec, device: str) -> Network:
    """The network of a spec without axes, center, scale and landmarks. The last ones are kept."""
    return Network(spec, device)
