"""`labelwall serve` with Ray workers, whole: the same answers as over one piece, deaths, the end,
and another start."""

import os
import signal
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from tests import ledgers
from tests.experiment import shard_services as services
from tests.experiment import tiny
from tests.make import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra scale"),
]
RAY = ("--scale.backend", "ray", "--scale.shards", "2")


def entries(store: Path) -> list[tuple[str, str]]:
    """The ledger but for its first entry, which names the data set."""
    return ledgers.entries(store / "ledger.sqlite")[1:]


def test_a_service_over_ray_answers_as_one_piece_through_deaths_and_starts(tmp_path):
    """Workers die between and during requests; the service stops, leaves no process behind, and
    goes on over the same shards when it is started again, then without Ray.
    """
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
