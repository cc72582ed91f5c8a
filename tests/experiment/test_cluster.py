"""Services over shards by Ray, through deaths and starts: on one machine, and on two nodes."""

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
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from socket import create_server
from typing import NamedTuple

import httpx
import pytest

from labelwall.experiment.config.options import parse
from labelwall.teacher.custody.opening import custody
from labelwall.teacher.custody.serving import app_of
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.service.keys import Keys
from labelwall.teacher.service.service_config import ServiceConfig
from labelwall.teacher.shards.pools import require_locked
from labelwall.wall.console import Console
from labelwall.wall.errors import InvalidInput
from tests import ledgers
from tests.experiment import shard_services as services
from tests.experiment import tiny
from tests.make import until
from tests.programs import environment
from tests.seeded_noise import SeededNoise
from tests.teacher.service.tiny import Made, served

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra scale")
RAY = ("--scale.backend", "ray", "--scale.shards", "2")
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
    return (*RAY, "--scale.ray_address", address)


@pytest.mark.slow
@needs_ray
def test_a_cluster_is_known_by_its_token(cluster: Cluster) -> None:
    """What Ray itself answers to the question that is asked before it is used."""
    require_locked(cluster.address, {"authorization": f"Bearer {TOKEN['RAY_AUTH_TOKEN']}"})
    with pytest.raises(InvalidInput, match="RAY_AUTH_TOKEN"):
        require_locked(cluster.address, {"authorization": f"Bearer {'0' * 64}"})


@pytest.mark.slow
@needs_ray
def test_a_node_that_dies_in_mid_request_loses_nothing(tmp_path: Path, cluster: Cluster) -> None:
    """A shard on each node, then both on the other one: the answers are those of one piece."""
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


def entries(store: Path) -> list[tuple[str, str]]:
    """The ledger but for its first entry, which names the data set."""
    return ledgers.entries(store / "ledger.sqlite")[1:]


@pytest.mark.slow
@needs_ray
def test_a_service_over_ray_answers_as_one_piece_through_deaths_and_starts(tmp_path):
    """Workers die between and during requests; no process stays behind; then without Ray."""
    tiny.write(tmp_path)
    one, ray = tmp_path / "one", tmp_path / "ray"
    keys = services.token(one), services.token(ray)
    with services.in_one_piece(tmp_path, one) as url:
        expected = services.asked(url, keys[0], range(12))
    with services.serving(tmp_path, ray, *RAY) as (process, url):
        found = services.asked(url, keys[1], range(3))
        first = services.workers(process.pid)
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        killer = threading.Timer(0.05, lambda: os.kill(first[1], signal.SIGKILL))
        killer.start()
        found += services.asked(url, keys[1], range(3, 8))
        killer.join()
        until(lambda: len({*services.workers(process.pid)} - {*first}) == 2)
        started = set(services.below(process.pid))
        written = services.rows_of(ray)
    assert process.returncode == 0
    until(lambda: services.gone(started), 30)
    with services.serving(tmp_path, ray, "--scale.shards", "2") as (_, url):
        again = services.asked(url, keys[1], range(8))
        found += services.asked(url, keys[1], range(8, 12))
    assert found == expected
    # known: nothing is charged twice
    assert not any(sum(charged.values()) for _, _, charged, *_ in again)
    assert entries(ray) == entries(one)
    assert services.rows_of(ray) == written  # nothing was taken in again
    assert len(audit(ray / "ledger.sqlite").problems) == 1  # the tape


def test_a_service_says_where_the_rows_are_and_how_far_they_are_read(tmp_path, monkeypatch) -> None:
    """On the page, in public figures; progress in percent, on the custodian's terminal alone."""
    tiny.write(tmp_path)
    args, heard, store = ["--config", "config.yaml", "--scale.shards", "3"], [], tmp_path / "store"
    side = replace(parse(args, "serve")[0].private_side(), custodian_dir=str(store))
    monkeypatch.setattr(Console, "progress", lambda self, *now: heard.append(now))
    opened, keys = custody(side, unsafe=True), Keys(store)
    noise, progress = SeededNoise(1), Console().progress
    app = app_of(side, ServiceConfig(port=0), opened, keys, noise, progress=progress)
    assert heard == [("taking in private rows (percent)", 100, 100)]
    token = keys.add("carol", "custodian")
    with served(Made(app, opened, {})) as url:
        page = httpx.get(url, auth=("", token), trust_env=False, timeout=60)
        assert "in 3 shards, backend local" in page.text
    assert len(heard) == 1
