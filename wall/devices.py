"""Accelerators: finding one, and kernels that give the same bits again."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from .errors import InvalidInput


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


class Reproducible:
    """While someone is inside, kernels are deterministic and float32 is IEEE, whatever the process
    has set.

    Torch keeps these settings for the whole process, so threads share them: the first one sets
    them, and the last one to leave restores what was there before.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._former = threading.Lock(), 0, ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._former.enter_context(_settings())
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._former.close()


reproducible = Reproducible()


@contextmanager
def _settings() -> Iterator[None]:
    _fix_cublas_workspace()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    precision = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn
    flags = {"benchmark": False, "allow_tf32": False, "fp32_precision": "ieee"}
    with cudnn.flags(enabled=cudnn.enabled, deterministic=True, **flags):
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
