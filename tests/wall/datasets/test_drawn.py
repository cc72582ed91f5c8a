"""Public rows that are drawn: what they follow from, how they are read, and what is refused."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.drawn import shapes
from labelwall.wall.datasets.sources import describe, facts, read_public
from labelwall.wall.datasets.tables import encoding, split_rows
from labelwall.wall.errors import InvalidInput
from tests.teacher.records.neighbours import known
from tests.wall.datasets.small import write_lines, write_text_folders

RANGES = {"rent": ["500,00 €", "4.500,00 €"], "since": ["01/02/2001", "31/12/2020"]}
CATEGORIES = {"zone": ["1", "2", "3"]}
HEADER = "rent;since;zone;label"
PRIVATE = ['"1.000,50 €";15/06/2010;2;a', '"99.000,00 €";15/06/2010;9;b', "4.500 €;x;;a"]


def config_of(folder: Path, **settings: Any) -> DataConfig:
    """A table without public rows, whose facts are declared."""
    private = write_lines(folder, "private.csv", PRIVATE, HEADER)
    known: dict[str, Any] = {"ranges": RANGES, "categories": CATEGORIES, "drawn": 300}
    known |= {"private": private, "public": "box", "classes": ["a", "b"]}
    return DataConfig("table", **known | settings)


def test_declared_columns_are_drawn_and_read_as_they_are_written(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    how = {column.name: column.how for column in encoding(config).columns}
    assert how["rent"] == "number, decimal comma, thousands by '.', unit €"
    assert how["since"] == "date like 31/12/2024 with day of the week and season"
    assert how["zone"] == "category"
    rows = read_public(config).inputs[:, :2].astype(np.float64)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=1e-3)
    np.testing.assert_allclose(rows.max(axis=0), 3**0.5, rtol=0.01)  # of a uniform variable
    np.testing.assert_allclose(rows.min(axis=0), -(3**0.5), rtol=0.01)
    assert abs(np.corrcoef(rows.T)[0, 1]) < 0.2
    assert Counter(split_rows(config, "public").columns["zone"]) == dict.fromkeys("123", 100)
    assert "drawn from data.ranges (rent, since) and data.categories (zone)" in facts(config)[1]


def test_a_private_cell_outside_changes_no_other_row(tmp_path: Path) -> None:
    """A number outside is at most the range's width away; a value outside is another one; others
    stay.
    """
    config = config_of(tmp_path)
    before = known(config, "row")
    x = open_records(config, describe(config)).inputs
    middle, half = 2500.0, 4000 / 12**0.5
    np.testing.assert_allclose(x[:, 0], (np.array([1000.5, 8500, 4500]) - middle) / half, 0.01)
    zones = x[:, 7:11] > 0
    assert zones[:2].tolist() == [[False, True, False, False], [False, False, False, True]]
    write_lines(tmp_path, "private.csv", [PRIVATE[0], "€;1;1;b", PRIVATE[2]], HEADER)
    after = known(config, "row")
    assert {n: before[n] == after[n] for n in before} == {0: True, 1: False, 2: True}


def test_drawn_rows_follow_from_the_facts_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    rows = read_public(config).inputs
    write_lines(tmp_path, "private.csv", PRIVATE[1:], HEADER)
    assert read_public(config).inputs.tobytes() == rows.tobytes()
    (tmp_path / "private.csv").unlink()
    assert read_public(config).inputs.tobytes() == rows.tobytes()
    alone = replace(config, ranges={"since": RANGES["since"]}, categories={})
    assert (read_public(alone).inputs[:, 0] == rows[:, 1]).all()  # no column moves another


def test_columns_without_a_declaration_are_those_of_the_test_rows(tmp_path: Path) -> None:
    lines = [f'"{n}00,50 €";0{1 + n % 2}/02/2011;{n % 2};{"ab"[n % 2]}' for n in range(20)]
    test = write_lines(tmp_path, "test.csv", lines, HEADER)
    config = config_of(tmp_path, test=test, ranges={}, categories={}, classes=[])
    found = {column.name: column for column in encoding(config).columns}
    assert found["rent"].how == "number, decimal comma, unit €"
    assert found["zone"].kind == "number"
    drawn = split_rows(config, "public").columns
    assert drawn.keys() == {"rent", "since", "zone"}
    assert Counter(drawn["rent"]) == {f"{n}00,50 €": 15 for n in range(20)}
    rows = read_public(config)
    assert rows.labels is None
    assert rows.test_labels.tolist() == [0, 1] * 10
    pairs = zip(drawn["since"], drawn["zone"], strict=True)
    assert len(set(pairs)) == 4  # of which the test rows have two
    declared = config_of(tmp_path, test=test, ranges={})
    assert [c.kind for c in encoding(declared).columns] == ["number", "date", "category"]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ranges": {}, "categories": {}}, "Give `data.ranges`: without test rows"),
        ({"ranges": {"rent": ["2", "1"]}}, "low < high"),
        ({"ranges": {"rent": ["1", "1"]}}, "low < high"),
        ({"ranges": {"rent": ["1"]}}, "low < high"),
        ({"ranges": {"rent": []}}, "low < high"),
        ({"ranges": {"rent": ["1", "2", "3"]}}, "low < high"),
        ({"ranges": {"rent": ["a", "z"]}}, "low < high"),
        ({"ranges": {"rent": ["nan", "1"]}}, "low < high"),
        ({"ranges": {"rent": ["1", "inf"]}}, "low < high"),
        ({"ranges": {"label": ["1", "2"]}}, "columns of features"),
        ({"ranges": {"zone": ["1", "2"]}}, "of other columns than data.ranges"),
        ({"categories": {"zone": ["a"]}}, "2 to 64 different values"),
        ({"categories": {"zone": ["a", "a "]}}, "2 to 64 different values"),
        ({"categories": {"zone": [str(n) for n in range(65)]}}, "2 to 64 different values"),
        ({"drawn": 3}, "from 100 to 100,000"),
        ({"public": "shapes"}, "`data.public`"),
        ({"public": "public.csv"}, "only `public: box` draws"),
        ({"classes": []}, "`data.classes`"),
    ],
)
def test_bad_facts_are_one_line(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_public(config_of(tmp_path, **changed))
    assert told in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_declared_column_that_no_row_has_is_named(tmp_path: Path) -> None:
    config = config_of(tmp_path, ranges={"rent": ["1", "2"], "rant": ["1", "2"]})
    with pytest.raises(InvalidInput, match="column rant"):
        open_records(config, describe(config))
    test = write_lines(tmp_path, "test.csv", PRIVATE[:2], HEADER)
    with pytest.raises(InvalidInput, match=r"`data.ranges` must be columns.*'rent'\?"):
        read_public(replace(config, test=test))


def test_no_texts_are_drawn(tmp_path: Path) -> None:
    folders = write_text_folders(tmp_path)
    config = DataConfig("table", **folders | {"public": "box"})
    with pytest.raises(InvalidInput, match="public texts: none can be drawn"):
        read_public(config)
    lines = [f'1;"{text} number {n} of many others";a' for n, text in enumerate("abcdefgh" * 5)]
    test = write_lines(tmp_path, "test.csv", lines, "rent;body;label")
    config = config_of(tmp_path, test=test, ranges={}, categories={})
    with pytest.raises(InvalidInput, match=r"texts body.*--data\.ignore '\[body\]'"):
        read_public(config)


@pytest.mark.parametrize("channels", [1, 3])
def test_shapes_follow_from_their_number_alone(channels: int) -> None:
    images = shapes(100, 16, channels)
    shapes.cache_clear()
    assert images.shape == (100, 16, 16, channels)
    assert images.dtype == np.uint8
    assert (shapes(120, 16, channels)[:100] == images).all()
    assert len({image.tobytes() for image in images}) == 100
    assert images.std(axis=(1, 2)).mean() > 20
    assert 80 < images.mean() < 170


def test_shapes_have_the_size_of_the_test_images(image_folders: dict[str, str]) -> None:
    settings: dict[str, Any] = {"image_size": 8, "channels": 1, "drawn": 100}
    config = DataConfig("folder", **image_folders | {"public": "shapes"}, **settings)
    public = read_public(config)
    assert public.inputs.shape == (100, 8, 8, 1)
    assert public.labels is None
    assert len(public.test_labels) == 12
    alone = replace(config, test=None, classes=["cat", "dog"])
    assert (read_public(alone).inputs == public.inputs).all()
    with pytest.raises(InvalidInput, match=r"data\.classes"):
        describe(replace(alone, classes=[]))
