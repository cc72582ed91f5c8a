"""How shards are put together in the process that answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.records.sources import Records
from labelwall.teacher.shards import shards
from labelwall.wall.guarantee import UNITS, Unit
from tests.teacher.shards import tiny


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("merged", [1, 10, 64, 1 << 20])
def test_shards_are_merged_by_ranges_of_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged: int, unit: Unit
) -> None:
    """Ids, labels and persons are those of a sort of all rows, whatever is merged together."""
    monkeypatch.setattr(shards, "MERGED_ROWS", merged)
    records = tiny.records(200, unit=unit)
    index = tiny.index_of(tmp_path / "d", records, 5, unit)
    records = records.take(3 + np.argsort(records.ids[3:]))
    np.testing.assert_array_equal(index.ids, records.ids)
    np.testing.assert_array_equal(index.labels, records.labels)
    assert (index.persons is None) == (records.persons is None)
    if index.persons is not None:
        np.testing.assert_array_equal(index.persons, records.persons)


@pytest.mark.parametrize(
    ("largest", "dtype"),
    [(255, np.uint8), (256, np.uint16), (65_535, np.uint16), (65_536, np.int64)],
)
def test_labels_are_as_narrow_as_they_fit(tmp_path: Path, largest: int, dtype: type) -> None:
    records = tiny.records(50)
    labels = np.where(np.arange(50) % 2, largest, 0)
    index = tiny.index_of(tmp_path / "d", Records(records.inputs, labels, records.ids), 3)
    assert index.labels.dtype == dtype
    assert set(index.labels.tolist()) == {0, largest}
