"""What this machine trains on: its devices, each in a process of its own."""

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy

from ..wall.errors import InvalidInput
from .config import StudentConfig

SECRETS = "LABELWALL_"  # environment variables that begin so are the caller's, such as its key


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


class SpawnedDevices(DDPStrategy):
    """Lightning's data parallelism, by processes that begin with an empty memory.

    Not by starting the command line again, which would open the teacher in each, nor by forks,
    which would have its records. They find each other by a file in the empty folder ``meeting`` and
    talk on the loopback interface, so that no port is open to another machine. Each normalises its
    own rows in a batch norm, whose statistics are the first one's.
    """

    def __init__(self, meeting: Path) -> None:
        super().__init__(start_method="spawn", cluster_environment=LightningEnvironment())
        self._meeting = meeting / "store"

    def setup_distributed(self) -> None:
        hide_remarks()
        self.set_world_ranks()
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", loopback)
        dist.init_process_group(
            self._get_process_group_backend(),
            store=dist.FileStore(str(self._meeting), self.world_size),
            rank=self.global_rank,
            world_size=self.world_size,
        )
        super().setup_distributed()


def hide_remarks() -> None:
    """Hide Lightning's remarks, such as on loaders without workers."""
    warnings.simplefilter("ignore")
    for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def no_secrets() -> Iterator[None]:
    """Processes that are started meanwhile do not inherit the caller's SECRETS."""
    secrets = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(SECRETS)}
    try:
        yield
    finally:
        os.environ |= secrets
