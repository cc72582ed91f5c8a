"""The contract of a data set, run for all sources."""

from __future__ import annotations

from typing import get_args

import pytest

from labelwall.wall.datasets.published import PUBLISHED
from labelwall.wall.datasets.sources import SOURCES, DataConfig, Labels, Source, describe, published
from labelwall.wall.errors import InvalidInput

OWN = {"folder", "arrays", "table"}


def test_every_name_is_known_once_and_no_other_is() -> None:
    assert get_args(Source) == tuple(SOURCES)
    assert set(SOURCES) == OWN | set(PUBLISHED)
    for unknown in ("imagenet", "", "MNIST", "base"):
        with pytest.raises(InvalidInput, match=r"data\.source"):
            DataConfig(unknown)
    with pytest.raises(InvalidInput, match=r"data\.source"):
        published("folder")


@pytest.mark.parametrize("name", SOURCES)
def test_only_its_own_kinds_of_labels_are_configured(name: str) -> None:
    assert SOURCES[name].kinds
    for kind in get_args(Labels):
        bounds = [0.0, 1.0] if kind == "value" else []
        if kind in SOURCES[name].kinds:
            DataConfig(name, labels=kind, bounds=bounds)
        else:
            with pytest.raises(InvalidInput, match=r"data\.labels"):
                DataConfig(name, labels=kind, bounds=bounds)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_data_set_is_described_without_a_file(name: str) -> None:
    assert set(SOURCES[name].kinds) == set(PUBLISHED[name].names)
    for kind in SOURCES[name].kinds:
        task = describe(DataConfig(name, labels=kind, root="nowhere", download=False))
        assert task.labels.kind == kind
        assert task.labels.names == PUBLISHED[name].names[kind]
        assert len(set(task.labels.names)) == len(task.labels.names)
        assert len(task.input_shape) == 3
    assert SOURCES[name].private_records
    assert not SOURCES[name].takes_names
