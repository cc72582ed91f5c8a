"""What this machine trains on: its devices, and several trainings at a time, each in a process of
its own.
"""

import logging
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from joblib import Parallel, delayed
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy

from ..wall.errors import InvalidInput
from .batches import Pool
from .objectives import OBJECTIVES
from .student_config import StudentConfig

Result = TypeVar("Result")
Task = Callable[[], Result]
SECRETS = "LABELWALL_"  # environment variables that begin so are the caller's, such as its key
LOOK = 0.2  # seconds between two looks whether the parent is there
LONG = 3_000_000  # numbers that a training reads; a shorter one ends before its process has begun


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
    if config.devices > 1:
        _require_processes(config.devices)


def _require_processes(devices: int) -> None:
    """Raises InvalidInput unless a process can begin, which reads the caller's script again."""
    with no_secrets():
        first = get_context("spawn").Process(target=int)
        first.start()
    first.join()
    if first.exitcode:
        rule = '1 unless a script calls this under `if __name__ == "__main__":`'
        cure = "The process of each device reads the script again."
        raise InvalidInput("student.devices", rule, devices, cure)


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


def process_count(workers: int, config: StudentConfig, pool: Pool) -> int:
    """How many trainings of ``config`` on ``pool`` run at a time, each in a process of its own.

    At most ``workers``. It is 1, in this process, where a training takes no longer than starting a
    process, is on a GPU, whose memory it may fill, or has several processes of its own.
    """
    rows = config.batch_labelled + OBJECTIVES[config.objective].unlabelled * config.batch_unlabelled
    long = pool.inputs.ndim == 4 and config.steps * rows * pool.inputs[0].size >= LONG
    return workers if long and kind(config) == "cpu" and config.devices == 1 else 1


def parallel(
    processes: int, tasks: Iterable[Task[Result]], ordered: bool = True
) -> Generator[Result]:
    """What the ``tasks`` return, in order, so many of them at a time.

    Each has its share of this process's threads. With several processes the first tasks begin at
    once, otherwise each when it is asked for, in this process. All processes end with this one, and
    when what is returned is closed. Not ``ordered``: what returns first comes first.
    """
    threads = max(1, torch.get_num_threads() // processes)
    run = partial(_in_process, threads, os.getpid(), Path.cwd())
    form = "generator" if ordered else "generator_unordered"
    pool = Parallel(processes, backend="loky", return_as=form, max_nbytes=None)
    with no_secrets():
        return pool(delayed(run)(task) for task in tasks)


@contextmanager
def no_secrets() -> Iterator[None]:
    """Processes that are started meanwhile do not inherit the caller's SECRETS."""
    secrets = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(SECRETS)}
    try:
        yield
    finally:
        os.environ |= secrets


def _in_process(count: int, parent: int, folder: Path, task: Task[Result]) -> Result:
    if os.getpid() != parent:
        os.chdir(folder)  # a process of an earlier call is still where that one was
        _end_with(parent)
    torch.set_num_threads(count)
    return task()


@cache
def _end_with(parent: int) -> None:
    """Let this process end when its ``parent`` has ended, and hear no Ctrl-C, as that one does."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=watch, daemon=True).start()
