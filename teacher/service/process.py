"""What the services of one process share: settings, the machine's thread, and callers' limits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ...wall.datasets.sources import Task
from ...wall.progress import Progress, no_progress
from ..noise.entropy import Entropy
from ..private_files import log_failure
from ..shards.config import ScaleConfig
from ..teacher import Teacher
from .config import ServiceConfig
from .limits import MIB, Allowances, OneAtATime, QueueLimits


def nothing() -> None:
    """Load nothing: all is loaded already."""


@dataclass(frozen=True)
class Settings:
    """What all services of one process share.

    Args:
        config: addresses and limits.
        task: the public form of the rows and their labels.
        entropy: the source of sampling bits and noise.
        certified: the plan's epsilon, None where nothing is certified.
        probe: PUBLIC rows of the custodian on which received networks are tested. Without them a
            network runs one row at a time.
        sharded: makes the teacher where the rows are in shards, as set in ``scale``.
        batch_size: queries of one step, gathered from all callers.
        workers, device: as of the Teacher.
        progress: receives progress over private rows, for the custodian only. It is in no reply.
        load: loads what the first step needs, while requests are accepted already.
    """

    config: ServiceConfig
    task: Task
    entropy: Entropy
    certified: float | None
    probe: np.ndarray | None = None
    sharded: Callable[..., Teacher] | None = None
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    batch_size: int = 256
    workers: int = 1
    device: str = "cpu"
    progress: Progress = no_progress
    load: Callable[[], None] = nothing

    @property
    def body_room(self) -> int:
        """Bytes of bodies, and of queued requests, at the same time."""
        return 4 * MIB * self.config.max_body


class Process:
    """Settings, and what all services of one process use together.

    ``report``: records an unexpected failure (its traceback) for the custodian only.
    ``machine``: one thread, which takes the steps of all queues in the order of asking.
    ``limits``: on queued jobs. ``allowances``: what callers may use in a day.
    ``copying``: one copy of a ledger at a time for each caller.
    """

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings, self.report = settings, partial(log_failure, directory, quoting=False)
        self.machine = ThreadPoolExecutor(1, "machine")
        self.limits, self.allowances = QueueLimits(settings.body_room), Allowances()
        self.copying = OneAtATime()
