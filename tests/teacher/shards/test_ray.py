"""Shards in Ray workers: the same bytes as in one piece, also while workers are killed. One small cluster for all tests."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.sharded_teacher import ShardedTeacher
from labelwall.teacher.shards import clusters, pools
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.shards.growing import Journal, append
from labelwall.teacher.shards.pools import RayPool, WorkersLost
from labelwall.teacher.shards.worker import ROWS, ShardFailed
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import MissingData, TeacherFailed
from labelwall.wall.messages import Queries
from tests.teacher.shards import tiny

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra scale")
SCALE = ScaleConfig(backend="ray", shards=2)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """The product's own start, once, which sets the environment before it imports Ray; it is left as it was found."""
    before = dict(os.environ)
    try:
        ray = clusters.connected(SCALE)
        yield
    finally:
        ray.shutdown()
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


def over_ray(directory: Path, name: str) -> tuple[ShardedTeacher, RayPool]:
    made = tiny.teacher(directory, name, tiny.records(), SCALE)
    made.use_extractor(tiny.RAW)
    assert isinstance(made, ShardedTeacher)
    pool = made._shards._pool
    assert isinstance(pool, RayPool)
    return made, pool


def local(directory: Path, name: str) -> Teacher:
    made = tiny.teacher(directory, name, tiny.records(), ScaleConfig())
    made.use_extractor(tiny.RAW)
    return made


def pid(pool: RayPool, shard: int) -> int:
    import ray

    return ray.get(pool.actors[shard].do.remote(own_pid))


def own_pid(shard: object) -> int:
    return os.getpid()


def death_in_mid_request(shard: object) -> str:
    """Kills its worker, but for the second time, as a file tells."""
    mark = Path(shard._directory) / "died"  # type: ignore[attr-defined]
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def failing(shard: object) -> int:
    raise RuntimeError("about a record")


def until_lost(pool: RayPool) -> None:
    """Ends where nobody answers any more: killing a worker takes its time. Fails after a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            pool.ask([nothing, nothing])
        except WorkersLost:
            return
    pytest.fail("the workers still answer")


def nothing(shard: object) -> str:
    return "nothing"


def test_workers_answer_as_one_piece_does_and_a_death_changes_nothing(tmp_path: Path) -> None:
    """A worker dies between two calls, and one in the middle of a request; they start again from their shards' files. What fails
    in a worker is a constant outside. Without workers a batch fails whole, and stays charged."""
    whole, (made, pool) = (
        local(tmp_path / "local", "private_knn"),
        over_ray(tmp_path / "ray", "private_knn"),
    )
    first, second = (Queries(tiny.queries(30, seed)) for seed in (1, 2))
    assert str(made.answer(first)) == str(whole.answer(first))
    before = pid(pool, 0)
    os.kill(before, signal.SIGKILL)
    answers, expected = made.answer(second), whole.answer(second)
    np.testing.assert_array_equal(answers.labels, expected.labels)
    assert (
        answers.receipt == expected.receipt
    )  # the ledger's head with it: nothing was charged twice
    assert pid(pool, 0) != before
    assert pool.ask([nothing, death_in_mid_request]) == ["nothing", "done"]
    with pytest.raises(ShardFailed) as caught:
        pool.ask([nothing, failing])
    assert (
        str(caught.value) == "a shard of the private rows failed."
    )  # one line, without Ray's traceback
    assert "about a record" in (tmp_path / "ray" / "shards-2" / "0001" / "errors.log").read_text()
    spent, results = dict(made._ledger.state.spent), len(made._ledger.state.results)
    pool.close()
    until_lost(pool)
    with pytest.raises(TeacherFailed):
        made.answer(Queries(tiny.queries(5, 3)))
    assert made._ledger.state.spent[0, "screen"] == spent[0, "screen"] + 5
    assert len(made._ledger.state.results) == results


def test_the_own_cluster_is_closed_to_others() -> None:
    """A token for whoever connects; sockets, logs and spilled objects where this user alone can look."""
    import ray

    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) >= 64
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    private = session.parents[1]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_workers_that_see_something_else_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program, as on a node with another version; other files, as on one without the shared directory."""
    folder = tmp_path / "0000"
    append(folder / ROWS, {"ids": np.arange(3)}, 3)
    for name, found, part in (
        ("program", "another", "same labelwall"),
        ("journal", Journal(7, 7), "same directory"),
    ):
        monkeypatch.setattr(pools, name, lambda *_, found=found: found)
        with pytest.raises(MissingData, match=part):
            RayPool([folder], SCALE)
        monkeypatch.undo()


@pytest.mark.slow
def test_twenty_random_kills_lose_nothing(tmp_path: Path) -> None:
    """Workers die at any moment of 40 calls: every answer and the ledger's head are those of one piece in peace."""
    whole, (made, pool) = (
        local(tmp_path / "local", "private_knn"),
        over_ray(tmp_path / "ray", "private_knn"),
    )
    rng, stop, kills = np.random.default_rng(0), threading.Event(), [0]

    def killer() -> None:
        while kills[0] < 20 and not stop.is_set():
            time.sleep(rng.uniform(0.05, 1.0))
            os.kill(pid(pool, int(rng.integers(2))), signal.SIGKILL)
            kills[0] += 1

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        calls = 0
        while calls < 40 or kills[0] < 20:
            made._index._recent._rows.clear()  # type: ignore[attr-defined]
            asked = Queries(tiny.queries(10, 100 + calls))
            assert str(made.answer(asked)) == str(whole.answer(asked))
            calls += 1
            assert calls < 10_000
    finally:
        stop.set()
        thread.join()
    assert kills[0] == 20
    assert made._ledger.state.head == whole._ledger.state.head
    pool.close()


def test_workers_on_another_node_than_meant_are_started_anew_and_then_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker is meant for a node that is not there: it is started once more for each pause, the second one once."""
    real = clusters.working_nodes
    monkeypatch.setattr(pools, "working_nodes", lambda ray: ["a" * 56, *real(ray)])
    monkeypatch.setattr(pools, "PAUSES", (0.0, 0.0))
    looked, strays = [], RayPool._strays
    monkeypatch.setattr(
        RayPool, "_strays", lambda self, wished: looked.append(strays(self, wished)) or looked[-1]
    )
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    pool = RayPool(folders, SCALE)
    try:
        assert looked == [[0], [0]]
        assert len(set(pool.ask([pools._node] * 2))) == 1  # both answer, on the node that there is
    finally:
        pool.close()
