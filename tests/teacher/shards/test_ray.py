"""Shards in Ray workers give the same bytes as one process, also while workers are killed."""

import os
import signal
import stat
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.shards import pools
from labelwall.teacher.shards.pools import RayPool
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.teacher.shards.shards import ShardedRows
from labelwall.teacher.shards.worker import ROWS, Journal, ShardFailed, append
from labelwall.wall.errors import InvalidInput, LabelwallError, MissingData, TeacherFailed
from labelwall.wall.messages import Queries
from tests.make import until
from tests.teacher.shards import tiny

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra scale")
SCALE = ScaleConfig(backend="ray", shards=2)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Our own cluster, started once. ``connect`` sets the environment, which is restored."""
    before = dict(os.environ)
    try:
        ray = pools.connect(SCALE)
        yield
    finally:
        ray.shutdown()
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


def over_ray(directory, name):
    teacher = tiny.teacher(directory, name, tiny.records(), SCALE)
    teacher.use_extractor(tiny.RAW)
    assert isinstance(teacher._rows, ShardedRows)
    pool = teacher._rows._pool
    assert isinstance(pool, RayPool)
    return teacher, pool


def counted(pool, *counts):
    """Each worker's result of a count, which it takes from a mechanism."""
    return pool.ask_each("total", [(tiny.RAW.sha256(), count) for count in counts])


def pids(pool):
    return counted(pool, *[lambda *_: os.getpid()] * 2)


def until_lost(pool):
    """Wait until no worker answers, as a kill takes time."""

    def lost():
        try:
            pool.ask("view")
        except LabelwallError:
            return True

    until(lost, 60)


def test_workers_answer_as_one_piece_does_and_a_death_changes_nothing(tmp_path):
    """One worker dies between two calls, one during a task; both resume from their files."""
    whole = tiny.ready(tmp_path / "local", "private_knn", tiny.records())
    teacher, pool = over_ray(tmp_path / "ray", "private_knn")
    first, second = (Queries(tiny.queries(30, seed)) for seed in (1, 2))
    assert str(teacher.answer(first)) == str(whole.answer(first))
    before = pids(pool)[0]
    os.kill(before, signal.SIGKILL)
    answers, expected = teacher.answer(second), whole.answer(second)
    np.testing.assert_array_equal(answers.labels, expected.labels)
    # Receipts contain the ledger's head: nothing was charged twice.
    assert answers.receipt == expected.receipt
    assert pids(pool)[0] != before
    mark = tmp_path / "died"

    def dies(*_):
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    assert counted(pool, lambda *_: "nothing", dies) == ["nothing", "done"]
    with pytest.raises(ShardFailed) as caught:
        counted(pool, lambda *_: "nothing", lambda *_: {}["about a record"])
    # One line, without Ray's traceback.
    assert str(caught.value) == "a shard of the private rows failed."
    assert "about a record" in (tmp_path / "ray" / "shards-2" / "0001" / "errors.log").read_text()
    spent, results = dict(teacher._ledger.state.spent), len(teacher._ledger.state.results)
    pool.close()
    until_lost(pool)
    with pytest.raises(TeacherFailed):
        teacher.answer(Queries(tiny.queries(5, 3)))
    assert teacher._ledger.state.spent == spent  # records are counted before a charge
    assert len(teacher._ledger.state.results) == results


def test_our_own_cluster_is_closed_to_others():
    """It requires a token, and only this user can read its sockets, logs and spilled objects."""
    import ray

    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) >= 64
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    private = session.parents[1]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_workers_that_see_something_else_are_refused(tmp_path, monkeypatch):
    """Another program, as on a node of another version; other files, without a shared directory."""
    folder = tmp_path / "0000"
    append(folder / ROWS, {"ids": np.arange(3)}, 3)
    program = "program", "another", "same labelwall"
    files = "journal", Journal(7, 7), "same directory"
    for name, other, part in (program, files):
        monkeypatch.setattr(pools, name, lambda *_, other=other: other)
        with pytest.raises(MissingData, match=part):
            RayPool([folder], SCALE)
        monkeypatch.undo()


def test_what_a_cluster_lacks_is_refused_and_not_waited_for(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match=r"`scale\.gpus` must be"):
        RayPool([tmp_path] * 3, replace(SCALE, gpus=16.0), "cuda")
    monkeypatch.setattr(pools, "CPU_SHARE", 10_000)
    monkeypatch.setattr(pools, "TIMEOUT", 0.5)
    with pytest.raises(MissingData, match="no CPU left"):
        RayPool([tmp_path], SCALE)


@pytest.mark.slow
def test_twenty_random_kills_lose_nothing(tmp_path):
    """Workers die at random in 40 calls: answers and ledger equal those of one process."""
    whole = tiny.ready(tmp_path / "local", "private_knn", tiny.records())
    teacher, pool = over_ray(tmp_path / "ray", "private_knn")
    rng, stop, kills = np.random.default_rng(0), threading.Event(), [0]

    def killer():
        while kills[0] < 20 and not stop.is_set():
            time.sleep(rng.uniform(0.05, 1.0))
            os.kill(pids(pool)[rng.integers(2)], signal.SIGKILL)
            kills[0] += 1

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        calls = 0
        while calls < 40 or kills[0] < 20:
            teacher._index._recent[1].clear()
            asked = Queries(tiny.queries(10, 100 + calls))
            assert str(teacher.answer(asked)) == str(whole.answer(asked))
            calls += 1
            assert calls < 10_000
    finally:
        stop.set()
        thread.join()
    assert kills[0] == 20
    assert teacher._ledger.state.head == whole._ledger.state.head
    pool.close()
