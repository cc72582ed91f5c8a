"""Connections to Ray: to the custodian's cluster, or to one that this process starts.

A cluster that does not authenticate by a token is refused.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ...wall.errors import InvalidInput, MissingData
from .config import ScaleConfig

CHECK_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # an empty request to a cluster's head
TIMEOUT = 10.0  # seconds for the head's answer
PREFIX = "lw-ray-"  # of our own clusters' directories: short, as a socket's path has 107 characters
LOCK = "lock"  # a file in them, locked while its process lives


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
    try:
        import ray
    except ImportError as error:
        text = 'Ray is not installed. Install it with: pip install "labelwall[scale]"'
        raise MissingData(text) from error
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


def working_nodes(ray: Any) -> list[str]:
    """Ids of the nodes that are alive, in order: those with CPUs, or all if none has any."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    with_cpus = [node for node in alive if node["Resources"].get("CPU", 0) > 0]
    return sorted(node["NodeID"] for node in with_cpus or alive)


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
