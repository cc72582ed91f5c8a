"""Arrays that grow on disk: an interrupted writer leaves a whole number of blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.shards import growing
from labelwall.teacher.shards.growing import Journal, append, finish, journal, read


def block(rows: int, start: int = 0) -> dict[str, np.ndarray]:
    x = np.arange(start, start + rows, dtype=np.int64)
    return {"x": np.stack([x, -x], axis=1).astype(np.float32), "y": x}


def test_blocks_add_up_and_stay_as_npy_files(tmp_path: Path) -> None:
    folder = tmp_path / "grown"
    # The number of rows gains digits, the header keeps its length.
    for start, rows in ((0, 3), (3, 0), (3, 1000), (1003, 99_000)):
        append(folder, block(rows, start), start + rows)
    assert journal(folder) == Journal(100_003, 100_003, False)
    finish(folder)
    assert journal(folder).complete
    for name, expected in block(100_003).items():
        np.testing.assert_array_equal(read(folder, name), expected)
        np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), expected)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_torn_block_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path, block(5), 5)

    def killed(directory: Path, content: Journal) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(growing, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            append(tmp_path, block(7, 1000), 12)
    assert journal(tmp_path) == Journal(5, 5, False)
    append(tmp_path, block(2, 5), 7)
    np.testing.assert_array_equal(read(tmp_path, "y"), np.arange(7))
    assert (tmp_path / "y.npy").stat().st_size == 128 + 7 * 8


def test_what_is_read_is_never_written_back(tmp_path: Path) -> None:
    append(tmp_path, block(5), 5)
    read(tmp_path, "y")[:] = 77
    np.testing.assert_array_equal(read(tmp_path, "y"), np.arange(5))


def test_no_rows_are_an_array_too(tmp_path: Path) -> None:
    append(tmp_path, block(0), 0)
    assert read(tmp_path, "x").shape == (0, 2)
