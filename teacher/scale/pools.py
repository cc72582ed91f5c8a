"""Who does a shard's work: this process, or a Ray worker for each shard. What is asked and what comes back are the same."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from teacher.scale.config import ScaleConfig
from teacher.scale.worker import Request, Shard
from wall.errors import InvalidInput, MissingData

if TYPE_CHECKING:
    from ray.actor import ActorHandle

TRIES = 20  # of one request, each in a worker that Ray started anew
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


class RayPool:
    """An actor for each shard. One that dies is started again by Ray and does its request once more: requests may be repeated.

    Raises InvalidInput where Ray has fewer GPUs than the workers are to share: it would wait for more without end.
    """

    def __init__(self, directories: Sequence[Path], config: ScaleConfig, device: str = "cpu") -> None:
        ray = connected(config)
        gpus = 0.0 if device == "cpu" else config.gpus
        if gpus * len(directories) > (held := ray.cluster_resources().get("GPU", 0)):
            raise InvalidInput("scale.gpus", f"at most {held} over `scale.shards`", config.gpus)
        actor = ray.remote(Shard)
        options = {
            "num_cpus": 0,
            "num_gpus": gpus,
            "max_restarts": -1,
            "max_task_retries": TRIES,
        }  # as many shards on a machine as one likes
        self.actors: list[ActorHandle[Shard]] = [
            actor.options(**options).remote(str(directory.absolute()), config.threads, device) for directory in directories
        ]

    def ask(self, requests: Sequence[Request[T]]) -> list[T]:
        import ray

        pending = [worker.do.remote(request) for worker, request in zip(self.actors, requests, strict=True)]
        results: list[T] = ray.get(pending)
        return results

    def close(self) -> None:
        """End the workers; a cluster of our own ends with this process."""
        import ray

        for worker in self.actors:
            ray.kill(worker)


def connected(config: ScaleConfig) -> Any:
    """Ray, connected. Raises MissingData without the extra, InvalidInput for a cluster that lets everybody in.

    Whoever reaches a Ray cluster without a token runs code in it, next to the private rows. So a token is needed in any case. Our
    own cluster lives as long as this process, has no dashboard, sends nothing about its use, and keeps its files (sockets, logs,
    spilled objects) where this user alone can look.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token" if config.ray_address is None else None)
    if mode != "token":
        raise InvalidInput("RAY_AUTH_MODE", "token in the environment, with the cluster's RAY_AUTH_TOKEN", mode)
    os.environ.update(RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0")
    if config.ray_address is None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault(
            "RAY_worker_niceness", "0"
        )  # Ray's 15 is for workers beside more urgent work; here they are the work
    try:
        import ray
    except ImportError as error:
        raise MissingData('Ray is not installed. Install it with: pip install "labelwall[scale]"') from error
    if ray.is_initialized():
        return ray
    if config.ray_address is not None:
        ray.init(address=config.ray_address, log_to_driver=False, logging_level=logging.ERROR)
        return ray
    private = tempfile.mkdtemp(prefix="lw")  # 0700, and short: a socket's path has 107 characters
    weakref.finalize(ray, shutil.rmtree, private, ignore_errors=True)
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=f"{private}/ray",
    )
    return ray
