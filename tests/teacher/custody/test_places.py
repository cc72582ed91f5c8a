"""Where the private side keeps what it keeps."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.custody import places
from labelwall.teacher.custody.groups import PrivacyConfig, RoundConfig
from labelwall.teacher.custody.private_settings import PrivateSide
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.errors import InvalidInput, MissingData
from tests.wall.datasets.small import write_lines, write_splits


def test_budgets_that_are_opened_together_are_all_in_the_sum(tmp_path, monkeypatch):
    read = places.budgets_of

    def slowly(beside: Path) -> dict[str, list[float]]:
        known = read(beside)
        time.sleep(0.02)
        return known

    monkeypatch.setattr(places, "budgets_of", slowly)
    (tmp_path / "rows.npz").touch()
    data = DataConfig(source="arrays", path=str(tmp_path / "rows.npz"))
    sides = [
        PrivateSide(data=data, rounds=[RoundConfig(queries=5)], custodian_dir=str(tmp_path / name))
        for name in "abcdefgh"
    ]
    with ThreadPoolExecutor(len(sides)) as pool:
        list(pool.map(lambda side: places.tell_budgets(side, lambda _: None), sides))
    beside = places.place_of(data)
    assert beside is not None
    assert len(read(beside)) == len(sides)


ROWS = ["1.5,2.5,yes", "3.5,0.5,no"]


@pytest.mark.parametrize(
    ("columns", "settings", "rule"),
    [
        ("a,y", {}, "a table with the column b"),
        ("a,b", {}, "data.label` must be one of a, b"),
        ("b,a,y", {"id": "number"}, "data.id` must be a column of the private rows"),
        ("b,a,y", {"person": "who"}, "data.person` must be a column of the private rows"),
    ],
)
def test_a_private_table_without_a_column_is_refused_before_a_rehearsal(
    tmp_path, columns: str, settings: dict[str, str], rule: str
):
    files = write_splits(tmp_path, ROWS, "a,b,y")
    write_lines(tmp_path, "private.csv", ROWS, columns)
    data = DataConfig(source="table", **files, label="y", **settings)
    with pytest.raises(InvalidInput, match=rule):
        places.require_there(data)
    assert not places.place_of(data).exists()


def test_a_private_table_with_all_columns_in_another_order_is_taken(tmp_path):
    files = write_splits(tmp_path, ROWS, "a,b,y")
    write_lines(tmp_path, "private.csv", ["7,yes,2.5,1.5"], "more,y,b,a")
    places.require_there(DataConfig(source="table", **files, label="y"))


def test_the_directory_lies_beside_own_rows_unless_it_is_named(tmp_path):
    own = DataConfig(source="arrays", path=str(tmp_path / "rows.npz"))
    side = PrivateSide(data=own, rounds=[RoundConfig(queries=5)])
    assert places.beside_rows(side).directory == tmp_path / "rows.npz.custodian"
    assert places.beside_rows(replace(side, custodian_dir="here")).directory == Path("here")
    published = PrivateSide(data=DataConfig(source="mnist"), rounds=side.rounds)
    assert places.beside_rows(published).directory is None


def test_private_rows_of_another_form_are_refused_before_a_rehearsal(tmp_path):
    (tmp_path / "labels.csv").write_text("file,label")
    images = DataConfig(source="folder", private=str(tmp_path / "labels.csv"))
    with pytest.raises(MissingData, match="a folder of images for each class"):
        places.require_there(images)
    rows = {"public_x": np.zeros((4, 8, 8), np.uint8), "test_x": np.ones((4, 8, 8), np.uint8)}
    deep = np.zeros((5, 8, 8), np.uint16)
    np.savez(tmp_path / "a.npz", test_y=np.arange(4), private_x=deep, private_y=[0], **rows)
    with pytest.raises(InvalidInput, match=r"`private_x` must be .*uint16.*white"):
        places.require_there(DataConfig(source="arrays", path=str(tmp_path / "a.npz")))
    for split in ("private", "test"):
        (tmp_path / split).mkdir()
    several = {"private": str(tmp_path / "private"), "test": str(tmp_path / "test")}
    config = DataConfig("folder", labels="attributes", classes=["round", "red"], **several)
    with pytest.raises(MissingData, match=r"data\.private.*metadata\.csv"):
        places.require_there(config)


def test_who_asks_others_names_no_persons_of_its_own():
    data, persons = DataConfig(source="folder", public="u", test="t"), PrivacyConfig(unit="person")
    given = {"data": data, "privacy": persons, "rounds": [RoundConfig(queries=5)]}
    with pytest.raises(InvalidInput, match=r"data\.person"):
        PrivateSide(**given)
    assert PrivateSide(**given, teacher="http://127.0.0.1:1").privacy == persons


def test_public_files_that_tell_which_folder_names_persons_make_another_data_set(tmp_path):
    config = DataConfig("folder", private="p", public="u", test=str(tmp_path), person="path")
    rows = DataConfig("folder", private="p", public="u", test=str(tmp_path))
    before, of_rows = places.identity(config), places.identity(rows)
    (tmp_path / "metadata.csv").write_text("file_name,label\na.png,cat\n")
    assert places.identity(config) != before
    assert places.identity(rows) == of_rows
