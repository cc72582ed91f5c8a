"""A shard's files: growing them and changing its rows may be interrupted anywhere."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.records.private_records import Records
from labelwall.teacher.shards import worker

NAMED = np.array([2, 5, 9, 20])  # all ids that were added or removed


def records(ids):
    x = np.array(ids, dtype=np.int64)
    return Records(x[:, None].astype(np.float32), x % 3, x)


def shard(folder):
    worker.append(folder / worker.ROWS, worker.columns_of(records(list(range(8)))), 8)
    worker.finish(folder / worker.ROWS)
    worker.append(folder / "features-0", {"features": np.zeros((8, 1), dtype=np.int8)}, 8)
    return worker.Shard(str(folder))


@pytest.mark.parametrize("added", [[], [5, 20]], ids=["removed", "replaced"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(4))
def test_a_change_that_was_killed_and_repeated_is_made_once(
    tmp_path, monkeypatch, step, after, added
):
    steps = 0

    def killing(real):
        def call(*args, **kwargs):
            nonlocal steps
            steps += 1
            if steps == step + 1 and not after:
                raise KeyboardInterrupt
            done = real(*args, **kwargs)
            if steps == step + 1:
                raise KeyboardInterrupt
            return done

        return call

    before = shard(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killing(shutil.rmtree))
        patched.setattr(Path, "rename", killing(Path.rename))  # journals are replaced, not renamed
        with pytest.raises(KeyboardInterrupt):
            before.amend(NAMED, records(added))
    worker.Shard(str(tmp_path)).amend(NAMED, records(added))
    expected = [0, 1, 3, 4, 6, 7, *added]
    assert worker.journal(tmp_path / worker.ROWS).complete
    assert worker.read(tmp_path / worker.ROWS, "ids").tolist() == expected
    np.testing.assert_array_equal(worker.read(tmp_path / worker.ROWS, "inputs")[:, 0], expected)
    # Nothing of a removed record is left.
    assert {path.name for path in tmp_path.iterdir()} == {worker.ROWS}


def block(rows, start=0):
    x = np.arange(start, start + rows, dtype=np.int64)
    return {"x": np.stack([x, -x], axis=1).astype(np.float32), "y": x}


def test_blocks_add_up_and_stay_as_npy_files(tmp_path):
    folder = tmp_path / "grown"
    # The number of rows gains digits, the header keeps its length.
    for start, rows in ((0, 3), (3, 0), (3, 1000), (1003, 99_000)):
        worker.append(folder, block(rows, start), start + rows)
    assert worker.journal(folder) == worker.Journal(100_003, 100_003, False)
    worker.finish(folder)
    assert worker.journal(folder).complete
    for name, expected in block(100_003).items():
        np.testing.assert_array_equal(worker.read(folder, name), expected)
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), expected)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_torn_block_is_written_over(tmp_path, monkeypatch):
    worker.append(tmp_path, block(5), 5)

    def killed(directory, content):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker, "write_file", killed)
        with pytest.raises(KeyboardInterrupt):
            worker.append(tmp_path, block(7, 1000), 12)
    assert worker.journal(tmp_path) == worker.Journal(5, 5, False)
    worker.append(tmp_path, block(2, 5), 7)
    np.testing.assert_array_equal(worker.read(tmp_path, "y"), np.arange(7))
    worker.read(tmp_path, "y")[:] = 77  # never written back
    assert (tmp_path / "y.npy").stat().st_size == 128 + 7 * 8
    np.testing.assert_array_equal(worker.read(tmp_path, "y"), np.arange(7))
