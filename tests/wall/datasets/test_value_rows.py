"""Rows with a value: arrays on both sides, what is refused and what is dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.records.inspect import preview
from labelwall.teacher.records.sources import open_records
from labelwall.wall.datasets.sources import DataConfig, describe, read_public
from labelwall.wall.errors import InvalidInput
from labelwall.wall.labels.values import STEPS, ValueLabels


def write(folder: Path, **changed: np.ndarray) -> DataConfig:
    rng = np.random.default_rng(0)
    arrays = {
        f"{name}_x": rng.normal(size=(6, 2)).astype(np.float32)
        for name in ("private", "public", "test")
    }
    arrays |= {
        f"{name}_y": np.array([-3.0, 0.0, 1.25, 5.0, 10.0, 12.0])
        for name in ("private", "public", "test")
    }
    np.savez(folder / "data.npz", **(arrays | changed))
    return DataConfig("arrays", labels="value", bounds=[0.0, 10.0], path=str(folder / "data.npz"))


def test_private_values_are_clipped_and_public_ones_are_as_they_are(tmp_path: Path) -> None:
    config = write(tmp_path, private_y=np.array([-3.0, 0.0, np.nan, 5.0, np.inf, 12.0]))
    task, public = describe(config), read_public(config)
    assert task.labels == ValueLabels(0.0, 10.0)
    assert public.test_labels.tolist() == [-3.0, 0.0, 1.25, 5.0, 10.0, 12.0]
    records = open_records(config, task)
    assert records.labels.tolist() == [0, 0, STEPS // 2, STEPS]
    assert records.ids.tolist() == [0, 1, 3, 5]
    shown = preview(config)
    assert dict(shown.bad)["labels outside the public classes, or values that are not finite"] == 2
    assert dict(shown.by_class) == {
        f"{i} to {i + 1}": {0: 2, 4: 1, 5: 0, 9: 1}.get(i, 0) for i in range(10)
    }


def test_whole_numbers_are_values_too(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        private_y=np.array([0, 5, 10, 2, 3, 4]),
        test_y=np.array([1, 2, 3, 4, 5, 6], dtype=np.uint8),
    )
    assert open_records(config, describe(config)).labels[:3].tolist() == [0, STEPS // 2, STEPS]
    assert read_public(config).test_labels.dtype == np.float64


@pytest.mark.parametrize(
    "values",
    [np.zeros((6, 1)), np.zeros(5), np.array(list("abcdef"))],
    ids=["wide", "short", "text"],
)
def test_private_arrays_that_are_no_values_are_refused_without_their_count(
    tmp_path: Path, values: np.ndarray
) -> None:
    config = write(tmp_path, private_y=values)
    task = describe(config)
    with pytest.raises(InvalidInput, match="private_y") as refused:
        open_records(config, task)
    assert not {"5", "6"} & set(str(refused.value).replace("float64", ""))
