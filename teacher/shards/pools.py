"""Pools that run tasks on all shards: this process, or a Ray worker for each shard.

Tasks (worker.py) and results are the same.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...wall.errors import InvalidInput, LabelwallError, MissingData
from .clusters import connect, working_nodes
from .config import ScaleConfig
from .growing import journal
from .worker import ROWS, Shard, ShardFailed, View, program

if TYPE_CHECKING:
    from ray.actor import ActorHandle

TRIES = 20  # of one task, each in a worker that Ray restarted
# Seconds before misplaced workers are restarted. After the last pause they stay where they are.
PAUSES = (0.2, 1.0, 3.0)


class Pool(ABC):
    """The workers of ``size`` shards."""

    size: int

    def ask(self, name: str, *arguments: object) -> list[Any]:
        """The results of one task with the same arguments, one for each shard."""
        return self.ask_each(name, [arguments] * self.size)

    @abstractmethod
    def ask_each(self, name: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """The results of one task. Raises if one shard fails: no result is partial.

        ``arguments``: of each shard.
        """


class LocalPool(Pool):
    """All shards in this process, one after the other; a search uses all of its threads."""

    def __init__(self, directories: Sequence[Path], device: str = "cpu") -> None:
        self._shards = [Shard(str(directory), device=device) for directory in directories]
        self.size = len(self._shards)

    def ask_each(self, name: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        pairs = zip(self._shards, arguments, strict=True)
        return [shard.do(name, *own) for shard, own in pairs]


class WorkersLost(LabelwallError):
    """A constant text: the cause is in the custodian's own files."""

    def __init__(self) -> None:
        super().__init__(
            "the Ray workers are gone and do not come back. "
            "See whether the cluster runs, then start this again."
        )


class RayPool(Pool):
    """An actor for each shard, distributed over the nodes in turn.

    Ray restarts an actor that dies, on another node if its own is gone. The actor then repeats its
    task, so tasks must be repeatable.

    Raises as ``connect``; InvalidInput if Ray has fewer GPUs than the workers share, for which it
    would wait forever; MissingData for a node whose program or shard files differ from this
    process's.
    """

    def __init__(
        self, directories: Sequence[Path], config: ScaleConfig, device: str = "cpu"
    ) -> None:
        ray = connect(config)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.size = len(directories)
        gpus = 0.0 if device == "cpu" else config.gpus
        available = ray.cluster_resources().get("GPU", 0)
        if gpus * len(directories) > available:
            rule = f"at most {available} over `scale.shards`"
            raise InvalidInput("scale.gpus", rule, config.gpus)
        actor, nodes = ray.remote(Shard), working_nodes(ray)
        # No CPUs: any number of shards may share a machine.
        options = {"num_cpus": 0, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": TRIES}
        planned = [nodes[number % len(nodes)] for number in range(len(directories))]

        def start(number: int) -> ActorHandle[Shard]:
            # Soft: on another node if this one is gone. With GPUs, wherever one is free.
            node = NodeAffinitySchedulingStrategy(planned[number], soft=True)
            placed = actor.options(scheduling_strategy="SPREAD" if gpus else node, **options)
            return placed.remote(str(directories[number].absolute()), config.threads, device)

        self.actors: list[ActorHandle[Shard]] = [
            start(number) for number in range(len(directories))
        ]
        try:
            self._check_workers(directories)
            for pause in () if gpus else PAUSES:
                if not (misplaced := self._misplaced(planned)):
                    break
                time.sleep(pause)
                for number in misplaced:
                    ray.kill(self.actors[number])
                    self.actors[number] = start(number)
                self._check_workers(directories)
        except BaseException:
            self.close()
            raise

    def _misplaced(self, planned: Sequence[str]) -> list[int]:
        """Workers on another node than planned: Ray misplaces them while it learns of new nodes."""
        nodes = zip(self.ask("node"), planned, strict=True)
        return [number for number, (node, own) in enumerate(nodes) if node != own]

    def _check_workers(self, directories: Sequence[Path]) -> None:
        """Raise MissingData unless all workers start and see this process's program and files."""
        here = [View(program(), journal(directory / ROWS)) for directory in directories]
        cure = "The guide says what a cluster's nodes need."
        try:
            there = self.ask("view")
        except (WorkersLost, ShardFailed) as error:
            text = "labelwall's workers do not start on the Ray cluster."
            raise MissingData(f"{text} {cure}") from error
        if any(seen.program != own.program for seen, own in zip(there, here, strict=True)):
            text = "every node of the Ray cluster must have the same labelwall. Found another one."
            raise MissingData(f"{text} {cure}")
        if there != here:
            text = "`custodian_dir` must be the same directory on every node of the Ray cluster."
            raise MissingData(f"{text} {cure}")

    def ask_each(self, name: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """See Pool. Raises ShardFailed for a task that failed, WorkersLost without workers.

        Arguments that several workers get are stored once in shared memory. Arrays there, and those
        of the results here, are read-only views of it, not copies.
        """
        import ray

        pairs = zip(self.actors, arguments, strict=True)
        try:
            stored = {id(own): [ray.put(one) for one in own] for own in arguments}
            results: list[Any] = ray.get(
                [worker.do.remote(name, *stored[id(own)]) for worker, own in pairs]
            )
        except ShardFailed:
            raise ShardFailed from None  # Ray's exception has a traceback in its text
        except ray.exceptions.RayError as error:
            raise WorkersLost from error
        return results

    def close(self) -> None:
        """Stop the workers. Our own cluster ends with this process."""
        import ray

        for worker in self.actors:
            ray.kill(worker)
