"""Pools that run tasks (worker.py) on all shards: this process, or a Ray worker for each shard.

Ray is the custodian's cluster, or one that this process starts.
"""

import fcntl
import logging
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...wall.errors import InvalidInput, LabelwallError, MissingData, extra
from .scale_config import ScaleConfig
from .worker import FAILED, ROWS, Shard, ShardFailed, journal, program

TRIES = 20  # of one task, each in a worker that Ray restarted
CPU_SHARE = 0.001  # that Ray counts for a worker, so that any number of them share a machine
CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # an empty request to a cluster's head
TIMEOUT = 10.0  # seconds for the answer of a cluster's head
PREFIX = "lw-ray-"  # of our own clusters' directories: short, as a socket's path has 107 characters
LOCK = "lock"  # a file in them, locked while its process lives
# A constant text: the cause is in the custodian's own files.
LOST = (
    "the Ray workers are gone and do not come back. "
    "See whether the cluster runs, then start this again."
)


class ShardPool:
    """All shards in this process, one after the other; a search uses all of its threads."""

    def __init__(self, directories: Sequence[Path], device: str = "cpu") -> None:
        self.workers: list[Any] = [Shard(str(each), device=device) for each in directories]
        self.size = len(directories)

    def ask(self, name: str, *arguments: object) -> list[Any]:
        """The results of one task with the same arguments, one for each shard."""
        return self.ask_each(name, [arguments] * self.size)

    def ask_each(self, name: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """The results of one task with each shard's ``arguments``, if no shard fails."""
        pairs = zip(self.workers, arguments, strict=True)
        return [shard.do(name, *own) for shard, own in pairs]


class RayPool(ShardPool):
    """An actor for each shard, spread over the nodes.

    Ray restarts an actor that dies, on another node if its own is gone. The actor then repeats its
    task, so tasks must be repeatable.

    Raises as ``connect``; InvalidInput if Ray has fewer GPUs than the workers share, for which it
    would wait forever; MissingData without a CPU on any node, and for a node whose program or shard
    files differ from this process's.
    """

    def __init__(
        self, directories: Sequence[Path], config: ScaleConfig, device: str = "cpu"
    ) -> None:
        ray = connect(config)
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.workers, self.size = [], len(directories)
        gpus = 0.0 if device == "cpu" else config.gpus
        available = ray.cluster_resources().get("GPU", 0)
        if gpus * self.size > available:
            rule = f"at most {available} over `scale.shards`"
            raise InvalidInput("scale.gpus", rule, config.gpus)
        actor = ray.remote(num_cpus=CPU_SHARE, num_gpus=gpus)(Shard)
        restarts = {"max_restarts": -1, "max_task_retries": TRIES}
        bundle = {"CPU": CPU_SHARE, **({"GPU": gpus} if gpus else {})}
        self._places = placement_group([bundle] * self.size, strategy="SPREAD")
        try:
            if not self._places.wait(TIMEOUT):
                raise MissingData("the Ray cluster has no CPU left for labelwall's workers.")
            for number, directory in enumerate(directories):
                place = PlacementGroupSchedulingStrategy(self._places, number)
                placed = actor.options(scheduling_strategy=place, **restarts)
                rows = str(directory.absolute())
                self.workers.append(placed.remote(rows, config.threads, device))
            self._check_workers(directories)
        except BaseException:
            self.close()
            raise

    def _check_workers(self, directories: Sequence[Path]) -> None:
        here = [(program(), journal(directory / ROWS)) for directory in directories]
        cure = "The guide says what a cluster's nodes need."
        try:
            there = self.ask("view")
        except LabelwallError as error:
            text = "labelwall's workers do not start on the Ray cluster."
            raise MissingData(f"{text} {cure}") from error
        if any(code != program() for code, _ in there):
            text = "every node of the Ray cluster must have the same labelwall. Found another one."
            raise MissingData(f"{text} {cure}")
        if there != here:
            text = "`custodian_dir` must be the same directory on every node of the Ray cluster."
            raise MissingData(f"{text} {cure}")

    def ask_each(self, name: str, arguments: Sequence[tuple[object, ...]]) -> list[Any]:
        """Raises ShardFailed for a task that failed, LabelwallError without workers.

        Arguments that several workers get are stored once in shared memory. Arrays there, and those
        of the results here, are read-only views of it, not copies.
        """
        import ray

        pairs = zip(self.workers, arguments, strict=True)
        try:
            stored = {id(own): [ray.put(one) for one in own] for own in arguments}
            results: list[Any] = ray.get(
                [worker.do.remote(name, *stored[id(own)]) for worker, own in pairs]
            )
        except ShardFailed:
            raise ShardFailed(FAILED) from None  # Ray's exception has a traceback in its text
        except ray.exceptions.RayError as error:
            raise LabelwallError(LOST) from error
        return results

    def close(self) -> None:
        """Stop the workers. Our own cluster ends with this process."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for worker in self.workers:
            ray.kill(worker)
        remove_placement_group(self._places)


def connect(config: ScaleConfig) -> Any:
    """Connect to Ray and return its module.

    Anyone who reaches a Ray cluster without a token can run code in it, next to the private rows,
    so a token is always required. Our own cluster lives as long as this process, has no dashboard,
    reports no usage, and stores its files (sockets, logs, spilled objects) in a directory that only
    this user can read.

    Raises MissingData without the extra, InvalidInput for a cluster that cannot be reached or is
    open to everybody.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token" if config.ray_address is None else None)
    if mode != "token":
        rule = "token in the environment, with the cluster's RAY_AUTH_TOKEN"
        raise InvalidInput("RAY_AUTH_MODE", rule, mode)
    os.environ.update(RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0")
    if config.ray_address is None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Ray's 15 is for workers beside more urgent work.
        os.environ.setdefault("RAY_worker_niceness", "0")
    with extra("scale", "shards on a cluster"):
        import ray
    if ray.is_initialized():
        return ray
    start = partial(ray.init, log_to_driver=False, logging_level=logging.ERROR)
    if config.ray_address is None:
        start(address="local", include_dashboard=False, _temp_dir=f"{_private_directory(ray)}/ray")
        return ray
    require_locked(config.ray_address, _own_token())
    try:
        start(address=config.ray_address)
    except (RuntimeError, OSError, ValueError) as error:
        # Another version of Ray or Python, or no node on this machine.
        rule, why = "a cluster that this machine belongs to", " ".join(str(error).split())
        raise InvalidInput("scale.ray_address", rule, config.ray_address, why) from error
    return ray


def _own_token() -> dict[str, str]:
    """The header with the token that Ray finds in the environment or in a file.

    Raises InvalidInput if there is none.
    """
    from ray import _raylet  # compiled: its names are unknown to type checkers

    loader: Any = vars(_raylet)["AuthenticationTokenLoader"].instance()
    header: dict[str, str] = loader.get_token_for_http_header() if loader.has_token() else {}
    if not header:
        raise InvalidInput("RAY_AUTH_TOKEN", "the cluster's token, in the environment", None)
    return header


def require_locked(address: str, token: Mapping[str, str]) -> None:
    """Raise InvalidInput unless a cluster's head requires a token and accepts this one.

    ``token``: the header that carries it. Ray itself does not report a token that it did not ask
    for.
    """
    import grpc

    refused = grpc.StatusCode.UNAUTHENTICATED
    without, with_token = _check_alive(address, {}), _check_alive(address, token)
    if without == grpc.StatusCode.OK:
        rule = "a cluster that asks for a token: `ray start` with RAY_AUTH_MODE=token"
        raise InvalidInput("scale.ray_address", rule, address)
    if without != refused:
        rule = "HOST:PORT of the head of a Ray cluster that can be reached"
        cure = "With TLS, RAY_USE_TLS and its files are needed here, too."
        raise InvalidInput("scale.ray_address", rule, address, cure)
    if with_token == refused:
        raise InvalidInput("RAY_AUTH_TOKEN", "the cluster's token", "another one")


def _check_alive(address: str, headers: Mapping[str, str]) -> Any:
    """The gRPC status of the head's answer to a request with these headers."""
    import grpc

    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        files = map(_pem, ("CA_CERT", "SERVER_KEY", "SERVER_CERT"))
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*files))
    else:
        channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
    metadata = [(name.lower(), value) for name, value in headers.items()]
    with channel:
        try:
            channel.unary_unary(CHECK_ALIVE)(b"", timeout=TIMEOUT, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()  # type: ignore[attr-defined]
    return grpc.StatusCode.OK


def _pem(name: str) -> bytes:
    path = os.environ.get(f"RAY_TLS_{name}", "")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        rule = "a readable PEM file with RAY_USE_TLS"
        raise InvalidInput(f"RAY_TLS_{name}", rule, path) from error


def _private_directory(owner: Any) -> str:
    """A new directory for Ray's files, mode 0700, deleted together with ``owner``.

    Directories of killed processes are deleted first: they may contain records.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            with path.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:  # in use, or another user's
            continue
    private = tempfile.mkdtemp(prefix=PREFIX)
    part = f"{private}/part"
    descriptor = os.open(part, os.O_CREAT | os.O_WRONLY, 0o600)  # closed with this process
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Renamed once locked, so that no process takes the directory for an abandoned one.
    os.rename(part, f"{private}/{LOCK}")
    weakref.finalize(owner, shutil.rmtree, private, ignore_errors=True)
    return private
