"""Who does a shard's work: this process, or a Ray worker for each shard. What is asked and what comes back are the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from labelwall.teacher.shards.clusters import connected, working_nodes
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.shards.growing import journal
from labelwall.teacher.shards.worker import ROWS, Request, Shard, ShardFailed, Sight, program
from labelwall.wall.errors import InvalidInput, LabelwallError, MissingData

if TYPE_CHECKING:
    from ray.actor import ActorHandle

TRIES = 20  # of one request, each in a worker that Ray started anew
PAUSES = (
    0.2,
    1.0,
    3.0,
)  # seconds before workers that Ray put on another node are started anew; then they stay there
T = TypeVar("T")


class Pool(Protocol):
    """Workers of all shards."""

    def ask(self, requests: Sequence[Request[T]]) -> list[T]:
        """The results of one request a shard, all of them. Raises where one can not be had: there are no partial results."""
        ...


class LocalPool:
    """All shards in this process, one after the other; a search uses all of its threads."""

    def __init__(self, directories: Sequence[Path], device: str = "cpu") -> None:
        self._shards = [Shard(str(directory), device=device) for directory in directories]

    def ask(self, requests: Sequence[Request[T]]) -> list[T]:
        return [shard.do(request) for shard, request in zip(self._shards, requests, strict=True)]


class WorkersLost(LabelwallError):
    """A constant: why stands in the custodian's own files."""

    def __init__(self) -> None:
        super().__init__(
            "the Ray workers are gone and do not come back. See whether the cluster runs, then start this again."
        )


class RayPool:
    """An actor for each shard, in turns on the nodes that there are. One that dies is started again by Ray, on another node where
    its own is gone, and does its request once more: requests may be repeated.

    Raises as ``connected``; InvalidInput where Ray has fewer GPUs than the workers are to share: it would wait without
    end; MissingData for a node on which the program or the shards' files are not those of this process.
    """

    def __init__(
        self, directories: Sequence[Path], config: ScaleConfig, device: str = "cpu"
    ) -> None:
        ray = connected(config)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        gpus = 0.0 if device == "cpu" else config.gpus
        if gpus * len(directories) > (held := ray.cluster_resources().get("GPU", 0)):
            raise InvalidInput("scale.gpus", f"at most {held} over `scale.shards`", config.gpus)
        actor, nodes = ray.remote(Shard), working_nodes(ray)
        options = {"num_cpus": 0, "num_gpus": gpus}  # as many shards on a machine as one likes
        options |= {"max_restarts": -1, "max_task_retries": TRIES}
        wished = [nodes[number % len(nodes)] for number in range(len(directories))]

        def start(number: int) -> ActorHandle[Shard]:
            place = NodeAffinitySchedulingStrategy(
                wished[number], soft=True
            )  # elsewhere, once that node is gone
            made = actor.options(
                scheduling_strategy="SPREAD" if gpus else place, **options
            )  # a GPU is where one is free
            return made.remote(str(directories[number].absolute()), config.threads, device)

        self.actors: list[ActorHandle[Shard]] = [
            start(number) for number in range(len(directories))
        ]
        try:
            self._look(directories)
            for pause in () if gpus else PAUSES:
                if not (strays := self._strays(wished)):
                    break
                time.sleep(pause)
                for number in strays:
                    ray.kill(self.actors[number])
                    self.actors[number] = start(number)
                self._look(directories)
        except BaseException:
            self.close()
            raise

    def _strays(self, wished: Sequence[str]) -> list[int]:
        """Workers that are on another node than they were meant for: a node that has just heard of the others keeps them."""
        return [
            number
            for number, (is_on, node) in enumerate(
                zip(self.ask([_node] * len(wished)), wished, strict=True)
            )
            if is_on != node
        ]

    def _look(self, directories: Sequence[Path]) -> None:
        """See that all workers start, and what they see."""
        here = [Sight(program(), journal(directory / ROWS)) for directory in directories]
        cure = "The guide says what a cluster's nodes need."
        try:
            there = self.ask([Shard.look] * len(directories))
        except (WorkersLost, ShardFailed) as error:
            raise MissingData(
                f"labelwall's workers do not start on the Ray cluster. {cure}"
            ) from error
        if any(seen.program != own.program for seen, own in zip(there, here, strict=True)):
            raise MissingData(
                f"every node of the Ray cluster must have the same labelwall. Found another one. {cure}"
            )
        if there != here:
            raise MissingData(
                f"`custodian_dir` must be the same directory on every node of the Ray cluster. {cure}"
            )

    def ask(self, requests: Sequence[Request[T]]) -> list[T]:
        """Raises ShardFailed for a request that failed, WorkersLost where nobody is left to do it."""
        import ray

        try:
            pending = [
                worker.do.remote(request)
                for worker, request in zip(self.actors, requests, strict=True)
            ]
            results: list[T] = ray.get(pending)
        except ShardFailed:
            raise ShardFailed from None  # Ray's own has a traceback in its text
        except ray.exceptions.RayError as error:
            raise WorkersLost from error
        return results

    def close(self) -> None:
        """End the workers; a cluster of our own ends with this process."""
        import ray

        for worker in self.actors:
            ray.kill(worker)


def _node(shard: Shard) -> str:
    """Where a worker is."""
    import ray

    name: str = ray.get_runtime_context().get_node_id()
    return name
