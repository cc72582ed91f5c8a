"""A connection to Ray: to the custodian's cluster, or to one of this process's own. Its doors are locked, or it is not used."""

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

from labelwall.teacher.shards.config import ScaleConfig
from labelwall.wall.errors import InvalidInput, MissingData

KNOCK = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # what any node may ask a cluster's head, without content
PATIENCE = 10.0  # seconds until a head must have answered
PREFIX, LOCK = (
    "lw-ray-",
    "lock",
)  # of our own cluster's directories: short, since a socket's path has 107 characters


def connected(config: ScaleConfig) -> Any:
    """Ray, connected. Raises MissingData without the extra, InvalidInput for a cluster that can not be had or lets everybody in.

    Whoever reaches a Ray cluster without a token runs code in it, next to the private rows. So a token is needed in any case. Our
    own cluster lives as long as this process, has no dashboard, sends nothing about its use, and keeps its files (sockets, logs,
    spilled objects) where this user alone can look.
    """
    mode = os.environ.get("RAY_AUTH_MODE", "token" if config.ray_address is None else None)
    if mode != "token":
        raise InvalidInput(
            "RAY_AUTH_MODE", "token in the environment, with the cluster's RAY_AUTH_TOKEN", mode
        )
    os.environ.update(RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0")
    if config.ray_address is None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault(
            "RAY_worker_niceness", "0"
        )  # Ray's 15 is for workers beside more urgent work; here they are the work
    try:
        import ray
    except ImportError as error:
        raise MissingData(
            'Ray is not installed. Install it with: pip install "labelwall[scale]"'
        ) from error
    if ray.is_initialized():
        return ray
    start = partial(ray.init, log_to_driver=False, logging_level=logging.ERROR)
    if config.ray_address is None:
        start(address="local", include_dashboard=False, _temp_dir=f"{_place(ray)}/ray")
        return ray
    require_locked(config.ray_address, _own_token())
    try:
        start(address=config.ray_address)
    except (
        RuntimeError,
        OSError,
        ValueError,
    ) as error:  # another version of Ray or Python, no node on this machine
        why = " ".join(str(error).split())
        raise InvalidInput(
            "scale.ray_address", "a cluster that this machine belongs to", config.ray_address, why
        ) from error
    return ray


def working_nodes(ray: Any) -> list[str]:
    """Names of the nodes that are there, in order; without those that were started with no CPUs, where there are others."""
    alive = {
        node["NodeID"]: node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]
    }
    return sorted(name for name, count in alive.items() if count > 0) or sorted(alive)


def _own_token() -> dict[str, str]:
    """The header with the token that Ray finds: in the environment, or in a file. Raises InvalidInput where there is none."""
    from ray import _raylet  # compiled: its names are unknown to type checkers

    loader: Any = vars(_raylet)["AuthenticationTokenLoader"].instance()
    found: dict[str, str] = loader.get_token_for_http_header() if loader.has_token() else {}
    if not found:
        raise InvalidInput("RAY_AUTH_TOKEN", "the cluster's token, in the environment", None)
    return found


def require_locked(address: str, token: Mapping[str, str]) -> None:
    """Raises InvalidInput unless a cluster's head answers to a header with this ``token``, and to nobody without one.

    Ray itself says nothing where it is sent a token that it did not ask for.
    """
    import grpc

    refused = grpc.StatusCode.UNAUTHENTICATED
    stranger, known = _knock(address, {}), _knock(address, token)
    if stranger == grpc.StatusCode.OK:
        raise InvalidInput(
            "scale.ray_address",
            "a cluster that asks for a token: `ray start` with RAY_AUTH_MODE=token",
            address,
        )
    if stranger != refused:
        cure = "With TLS, RAY_USE_TLS and its files are needed here, too."
        raise InvalidInput(
            "scale.ray_address",
            "HOST:PORT of the head of a Ray cluster that can be reached",
            address,
            cure,
        )
    if known == refused:
        raise InvalidInput("RAY_AUTH_TOKEN", "the cluster's token", "another one")


def _knock(address: str, headers: Mapping[str, str]) -> Any:
    """How a cluster's head answers a question with these headers: a gRPC status."""
    import grpc

    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        channel = grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(*map(_pem, ("CA_CERT", "SERVER_KEY", "SERVER_CERT"))),
        )
    else:
        channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
    with channel:
        try:
            channel.unary_unary(KNOCK)(
                b"", timeout=PATIENCE, metadata=[(k.lower(), v) for k, v in headers.items()]
            )
        except grpc.RpcError as error:
            return error.code()  # type: ignore[attr-defined]
    return grpc.StatusCode.OK


def _pem(name: str) -> bytes:
    path = os.environ.get(f"RAY_TLS_{name}", "")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"RAY_TLS_{name}", "a readable PEM file with RAY_USE_TLS", path
        ) from error


def _place(owner: Any) -> str:
    """A directory for Ray's files, mode 0700, that goes with ``owner``. Those of processes that were killed go now: records may
    lie there."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            with left.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
        except OSError:  # in use, or another user's
            continue
    private = tempfile.mkdtemp(prefix=PREFIX)
    held = os.open(f"{private}/part", os.O_CREAT | os.O_WRONLY, 0o600)  # closed with this process
    fcntl.flock(held, fcntl.LOCK_EX)
    os.rename(
        f"{private}/part", f"{private}/{LOCK}"
    )  # before this, nobody takes the directory for an abandoned one
    weakref.finalize(owner, shutil.rmtree, private, ignore_errors=True)
    return private
