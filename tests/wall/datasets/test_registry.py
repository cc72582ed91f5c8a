"""The contract of a data set, run for all of the registry."""

from __future__ import annotations

from typing import get_args

import pytest

from labelwall.wall.datasets.base import DataSet, Labels, Published
from labelwall.wall.datasets.registry import DATA_SETS, data_set, published
from labelwall.wall.datasets.sources import DataConfig, Source, describe
from labelwall.wall.errors import InvalidInput

PUBLISHED = [found for found in DATA_SETS if isinstance(found, Published)]


def test_every_name_is_known_once_and_no_other_is() -> None:
    names = [found.name for found in DATA_SETS]
    assert len(set(names)) == len(names)
    assert [data_set(name) for name in names] == list(DATA_SETS)
    assert get_args(Source) == tuple(names)
    for unknown in ("imagenet", "", "MNIST", "base"):
        with pytest.raises(InvalidInput, match=r"data\.source"):
            data_set(unknown)
    with pytest.raises(InvalidInput, match=r"data\.source"):
        published("folder")


@pytest.mark.parametrize("found", DATA_SETS, ids=lambda found: found.name)
def test_only_its_own_kinds_of_labels_are_configured(found: DataSet) -> None:
    assert found.kinds
    for kind in get_args(Labels):
        bounds = [0.0, 1.0] if kind == "value" else []
        if kind in found.kinds:
            DataConfig(found.name, labels=kind, bounds=bounds)
        else:
            with pytest.raises(InvalidInput, match=r"data\.labels"):
                DataConfig(found.name, labels=kind, bounds=bounds)


@pytest.mark.parametrize("found", PUBLISHED, ids=lambda found: found.name)
def test_a_published_data_set_is_described_without_a_file(found: Published) -> None:
    for kind in found.kinds:
        task = describe(DataConfig(found.name, labels=kind, root="nowhere", download=False))
        assert task.labels.kind == kind
        assert task.labels.names == found.names[kind]
        assert len(set(task.labels.names)) == len(task.labels.names)
        assert len(task.input_shape) == 3
    assert found.private_records
    assert found.licence
    assert not found.takes_names
