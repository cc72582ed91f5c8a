"""Shards in Ray workers give the same bytes as one process, also while workers are killed.

All tests share one small cluster.
"""

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.shards import pools
from labelwall.teacher.shards.config import ScaleConfig
from labelwall.teacher.shards.pools import RayPool, WorkersLost
from labelwall.teacher.shards.shards import ShardedRows
from labelwall.teacher.shards.worker import ROWS, Journal, ShardFailed, append
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import MissingData, TeacherFailed
from labelwall.wall.messages import Queries
from tests.teacher.shards import tiny

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra scale")
SCALE = ScaleConfig(backend="ray", shards=2)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
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


def over_ray(directory: Path, name: str) -> tuple[Teacher, RayPool]:
    teacher = tiny.teacher(directory, name, tiny.records(), SCALE)
    teacher.use_extractor(tiny.RAW)
    assert isinstance(teacher._rows, ShardedRows)
    pool = teacher._rows._shards._pool
    assert isinstance(pool, RayPool)
    return teacher, pool


def pid(pool: RayPool, shard: int) -> int:
    import ray

    return ray.get(pool.actors[shard].do.remote("total", tiny.RAW.sha256(), own_pid))


# Counts, which a worker takes from a mechanism.


def own_pid(index: object, labels: object) -> int:
    return os.getpid()


def nothing(index: object, labels: object) -> str:
    return "nothing"


def failing(index: object, labels: object) -> int:
    raise RuntimeError("about a record")


@dataclass(frozen=True)
class DeathInMidTask:
    """Kills the worker at the first call; a file records that."""

    mark: Path

    def __call__(self, index: object, labels: object) -> str:
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"


def counted(pool: RayPool, *counts: object) -> list[object]:
    return pool.ask_each("total", [(tiny.RAW.sha256(), count) for count in counts])


def until_lost(pool: RayPool) -> None:
    """Wait until no worker answers, as a kill takes time. Fails after a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            pool.ask("view")
        except WorkersLost:
            return
    pytest.fail("the workers still answer")


def test_workers_answer_as_one_piece_does_and_a_death_changes_nothing(tmp_path: Path) -> None:
    """One worker dies between two calls, one during a task; both resume from their files.

    A failure in a worker is a constant outside. Without workers a batch fails as a whole, and stays
    charged.
    """
    whole = tiny.ready(tmp_path / "local", "private_knn", tiny.records())
    teacher, pool = over_ray(tmp_path / "ray", "private_knn")
    first, second = (Queries(tiny.queries(30, seed)) for seed in (1, 2))
    assert str(teacher.answer(first)) == str(whole.answer(first))
    before = pid(pool, 0)
    os.kill(before, signal.SIGKILL)
    answers, expected = teacher.answer(second), whole.answer(second)
    np.testing.assert_array_equal(answers.labels, expected.labels)
    # Receipts contain the ledger's head: nothing was charged twice.
    assert answers.receipt == expected.receipt
    assert pid(pool, 0) != before
    assert counted(pool, nothing, DeathInMidTask(tmp_path / "died")) == ["nothing", "done"]
    with pytest.raises(ShardFailed) as caught:
        counted(pool, nothing, failing)
    # One line, without Ray's traceback.
    assert str(caught.value) == "a shard of the private rows failed."
    assert "about a record" in (tmp_path / "ray" / "shards-2" / "0001" / "errors.log").read_text()
    spent, results = dict(teacher._ledger.state.spent), len(teacher._ledger.state.results)
    pool.close()
    until_lost(pool)
    with pytest.raises(TeacherFailed):
        teacher.answer(Queries(tiny.queries(5, 3)))
    assert teacher._ledger.state.spent[0, "screen"] == spent[0, "screen"] + 5
    assert len(teacher._ledger.state.results) == results


@dataclass(frozen=True, eq=False)
class Copied:
    """Which of a count's arrays a worker may write to or owns; and an array as large."""

    queries: np.ndarray

    def __call__(self, index: object, labels: object) -> tuple[bool, bool, np.ndarray]:
        flags = self.queries.flags
        return flags.owndata, flags.writeable, self.queries + 1


def test_arrays_of_tasks_and_results_are_views_of_shared_memory(tmp_path: Path) -> None:
    _, pool = over_ray(tmp_path, "private_knn")
    queries = np.zeros((256, 1024), dtype=np.int8)
    for owned, writeable, result in pool.ask("total", tiny.RAW.sha256(), Copied(queries)):
        assert not owned
        assert not writeable
        assert not result.flags.owndata
        assert not result.flags.writeable
        np.testing.assert_array_equal(result, queries + 1)
    pool.close()


def test_our_own_cluster_is_closed_to_others() -> None:
    """It requires a token, and only this user can read its sockets, logs and spilled objects."""
    import ray

    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) >= 64
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    private = session.parents[1]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_workers_that_see_something_else_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.slow
def test_twenty_random_kills_lose_nothing(tmp_path: Path) -> None:
    """Workers die at random in 40 calls: answers and ledger equal those of one process."""
    whole = tiny.ready(tmp_path / "local", "private_knn", tiny.records())
    teacher, pool = over_ray(tmp_path / "ray", "private_knn")
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
            teacher._index._recent._rows.clear()
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
