"""Cached features as the npz file of the source `arrays`.

The split, and a centre that knows public rows alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labelwall.teacher.records.sources import open_records
from labelwall.wall.datasets.sources import DataConfig, describe, read_public


def chunks(folder: Path, private: np.ndarray) -> np.ndarray:
    """Two chunks of 3 test rows each, two of private ones; returns the test rows."""
    rng = np.random.default_rng(0)
    test = rng.normal(size=(6, 4)) + 5
    for number in range(2):
        part = slice(3 * number, 3 * number + 3)
        np.savez(
            folder / f"test_00{number}.npz", features=test[part], labels=np.arange(6)[part] % 2
        )
        np.savez(
            folder / f"train_00{number}.npz", features=private[part], labels=np.array([1, 1, 0])
        )
    return test


def test_rows_become_arrays(load, tmp_path: Path) -> None:
    (image_features,) = load("image_features")
    private = np.random.default_rng(1).normal(size=(6, 4)) - 40
    test = chunks(tmp_path, private)
    image_features.to_arrays(tmp_path, tmp_path / "rows.npz")
    data = DataConfig("arrays", path=str(tmp_path / "rows.npz"))
    public, records = read_public(data), open_records(data, describe(data))
    center = test[:3].mean(axis=0)
    for found, rows in (
        (public.inputs, test[:3]),
        (public.test_inputs, test[3:]),
        (records.inputs, private),
    ):
        moved = rows - center
        np.testing.assert_allclose(
            found, 2 * moved / np.linalg.norm(moved, axis=1, keepdims=True), rtol=1e-5
        )
    assert public.labels is not None
    assert [*public.labels, *public.test_labels] == [0, 1, 0, 1, 0, 1]
    assert records.labels.tolist() == [1, 1, 0, 1, 1, 0]


def test_a_published_data_set_is_read_in_its_own_order(load) -> None:
    (features,) = load("image_features")
    images, data = features.of_published("mnist5k", Path()), DataConfig("mnist5k")
    public, records = read_public(data), open_records(data, describe(data))
    assert images.rows == {
        "test": len(public.labels) + len(public.test_labels),
        "train": len(records.labels),
    }
    pixels, labels = images.read("test", slice(len(public.labels) - 2, len(public.labels) + 2))
    assert np.array_equal(pixels, np.concatenate([public.inputs[-2:], public.test_inputs[:2]]))
    assert np.array_equal(labels, np.concatenate([public.labels[-2:], public.test_labels[:2]]))
    pixels, labels = images.read("train", slice(1, 4))
    assert np.array_equal(pixels, records.inputs[1:4])
    assert np.array_equal(labels, records.labels[1:4])


def test_whitened_public_rows_have_no_main_direction(load, tmp_path: Path) -> None:
    """Rows of one far longer axis.

    After whitening their quantised covariance is a multiple of the identity.
    """
    (features,) = load("image_features")
    rng = np.random.default_rng(0)
    rows = (
        rng.normal(size=(800, 3))
        @ np.diag([50.0, 1.0, 0.1])
        @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
        + 7
    )
    np.savez(tmp_path / "test_000.npz", features=rows, labels=np.zeros(800, dtype=np.int64))
    scaling = features.public_scaling(tmp_path, 800, whiten=3)
    (found, finite), uneven = (
        scaling.applied(rows),
        features.public_scaling(tmp_path, 800).applied(rows)[0],
    )
    assert finite.all()
    lengths = np.linalg.norm(found.astype(float), axis=1)
    assert np.abs(lengths / scaling.scale - 1).max() < 0.05
    assert np.linalg.cond(np.cov(found.T.astype(float))) < 1.3
    assert np.linalg.cond(np.cov(uneven.T.astype(float))) > 100
