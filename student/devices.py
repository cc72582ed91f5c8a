"""What this machine can train on. Asked before anything is spent on labels."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Literal

import torch
import torch.distributed as dist

from ..wall.errors import InvalidInput
from .config import StudentConfig


def gpus() -> int:
    """How many GPUs torch sees; Apple's counts as one."""
    return torch.cuda.device_count() or int(torch.backends.mps.is_available())


def kind(config: StudentConfig) -> Literal["cpu", "gpu"]:
    """What config.accelerator means on this machine."""
    wanted = config.accelerator == "gpu" or (config.accelerator == "auto" and gpus())
    return "gpu" if wanted else "cpu"


def require_devices(config: StudentConfig) -> None:
    """Raises InvalidInput unless this machine has what the configuration names."""
    where = kind(config)
    if where == "gpu" and not gpus():
        rule = "cpu or auto on a machine without a GPU"
        raise InvalidInput("student.accelerator", rule, config.accelerator)
    if config.precision == "16-mixed" and where == "cpu":
        rule = "32-true or bf16-mixed without a GPU"
        raise InvalidInput("student.precision", rule, config.precision)
    most = gpus() if where == "gpu" else os.cpu_count() or 1
    if config.devices > most:
        counted = "GPUs" if where == "gpu" else "processor cores"
        rule = f"at most {most}, the number of this machine's {counted}"
        raise InvalidInput("student.devices", rule, config.devices)
    talks = dist.is_nccl_available if where == "gpu" else dist.is_gloo_available
    if config.devices > 1 and not (dist.is_available() and talks()):
        rule = "1 with this build of torch, whose processes can not talk"
        raise InvalidInput("student.devices", rule, config.devices)
    # As torch's inductor looks for it
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if config.compile and where == "cpu" and shutil.which(compiler) is None:
        raise InvalidInput("student.compile", f"false without the C++ compiler {compiler}", True)
