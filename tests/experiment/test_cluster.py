"""A Ray cluster of two nodes, started as a custodian does it: a worker on each, what is refused,
and a node that dies."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from socket import create_server
from typing import NamedTuple

import pytest

from labelwall.teacher.shards.pools import require_locked
from labelwall.wall.errors import InvalidInput
from tests.experiment import shard_services as services
from tests.experiment import tiny
from tests.make import until
from tests.programs import environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra scale"),
]
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
QUICK = {"RAY_health_check_period_ms": "1000"}  # until a node is taken for dead


class Cluster(NamedTuple):
    """``head``, ``other``: processes whose descendants are the nodes'."""

    address: str
    head: subprocess.Popen[str]
    other: subprocess.Popen[str]


def free_ports(count: int) -> list[int]:
    """As far as can be known."""
    bound = [create_server(("127.0.0.1", 0)) for _ in range(count)]
    numbers = [socket.getsockname()[1] for socket in bound]
    for socket in bound:
        socket.close()
    return numbers


@contextmanager
def node(*options: str) -> Iterator[subprocess.Popen[str]]:
    """`ray start`, in the foreground, with its files in a directory of its own."""
    place = tempfile.mkdtemp(prefix="lw")  # short: a socket's path has 107 characters
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
    command += ["--temp-dir", f"{place}/r", "--object-store-memory", "100000000", *options]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", **TOKEN, **QUICK}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, env=environment(**quiet), **pipe)
    try:
        said = []
        while not said or "Ray runtime started" not in said[-1]:
            said.append(process.stdout.readline())
            assert said[-1], "".join(said)
        yield process
    finally:
        off(process)
        process.stdout.close()
        shutil.rmtree(place, ignore_errors=True)


def off(process: subprocess.Popen[str]) -> None:
    """What a loss of power does to a node."""
    for pid in [process.pid, *services.below(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(services.LONG)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    port, client, board, agent = free_ports(4)
    own = ["--ray-client-server-port", str(client), "--dashboard-port", str(board)]
    own += ["--dashboard-agent-listen-port", str(agent)]
    address = f"127.0.0.1:{port}"
    with (
        node("--head", "--port", str(port), "--include-dashboard", "false", *own) as head,
        node("--address", address) as other,
    ):
        yield Cluster(address, head, other)


def scale(address: str) -> tuple[str, ...]:
    return ("--scale.backend", "ray", "--scale.shards", "2", "--scale.ray_address", address)


def test_a_cluster_is_known_by_its_token(cluster: Cluster) -> None:
    """What Ray itself answers to the question that is asked before it is used."""
    require_locked(cluster.address, {"authorization": f"Bearer {TOKEN['RAY_AUTH_TOKEN']}"})
    with pytest.raises(InvalidInput, match="RAY_AUTH_TOKEN"):
        require_locked(cluster.address, {"authorization": f"Bearer {'0' * 64}"})


def test_a_node_that_dies_in_mid_request_loses_nothing(tmp_path: Path, cluster: Cluster) -> None:
    """One address is all that the configuration says.

    A shard on each node; after a node's death both are on the other one, and the answers are those
    of one piece.
    """
    tiny.write(tmp_path)
    one, ray = tmp_path / "one", tmp_path / "ray"
    keys = services.token(one), services.token(ray)
    with services.in_one_piece(tmp_path, one) as url:
        expected = services.asked(url, keys[0], range(12))
    with services.serving(tmp_path, ray, *scale(cluster.address), **TOKEN) as (process, url):
        assert [len(services.workers(node.pid)) for node in (cluster.head, cluster.other)] == [1, 1]
        found = services.asked(url, keys[1], range(6))
        death = threading.Timer(0.05, lambda: off(cluster.other))
        death.start()
        found += services.asked(url, keys[1], range(6, 12))
        death.join()
        until(lambda: len(services.workers(cluster.head.pid)) == 2)
        found += services.asked(url, keys[1], range(6, 12))
    assert process.returncode == 0
    assert found[:12] == expected
    assert [answers[:2] for answers in found[12:]] == [answers[:2] for answers in found[6:12]]
    until(lambda: not services.workers(cluster.head.pid))
