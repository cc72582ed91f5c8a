"""Cached features as the npz file of the source `arrays`: the split, and a centre that knows public rows alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from teacher.records import open_records
from wall.sources import DataConfig, describe, read_public

ROOT = Path(__file__).parents[2]


def chunks(folder: Path, private: np.ndarray) -> np.ndarray:
    """Two chunks of 3 test rows each, two of private ones; returns the test rows."""
    rng = np.random.default_rng(0)
    test = rng.normal(size=(6, 4)) + 5
    for number in range(2):
        part = slice(3 * number, 3 * number + 3)
        np.savez(folder / f"test_00{number}.npz", features=test[part], labels=np.arange(6)[part] % 2)
        np.savez(folder / f"train_00{number}.npz", features=private[part], labels=np.array([1, 1, 0]))
    return test


def test_rows_become_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import image_features

    private = np.random.default_rng(1).normal(size=(6, 4)) - 40
    test = chunks(tmp_path, private)
    image_features.to_arrays(tmp_path, tmp_path / "rows.npz")
    del sys.modules["image_features"]
    data = DataConfig("arrays", path=str(tmp_path / "rows.npz"))
    public, records = read_public(data), open_records(data, describe(data))
    center = test[:3].mean(axis=0)
    for found, rows in ((public.inputs, test[:3]), (public.test_inputs, test[3:]), (records.inputs, private)):
        moved = rows - center
        np.testing.assert_allclose(found, 2 * moved / np.linalg.norm(moved, axis=1, keepdims=True), rtol=1e-5)
    assert public.labels is not None
    assert [*public.labels, *public.test_labels] == [0, 1, 0, 1, 0, 1]
    assert records.labels.tolist() == [1, 1, 0, 1, 1, 0]
