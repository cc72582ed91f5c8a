"""Whose a row is: arrays, tables, folders. A row without a person is a bad row like others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall.experiment.config.config import Config
from labelwall.teacher.custody.groups import PrivacyConfig, RoundConfig
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.teacher.records.inspect import preview
from labelwall.teacher.records.persons import MAX_LENGTH, NOBODY, code_of, codes_of, row_ids
from labelwall.teacher.records.private_records import ingest_more, open_records
from labelwall.wall.datasets.data_config import DataConfig, Task
from labelwall.wall.datasets.sources import describe
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.label_kinds import ClassLabels
from tests.wall.datasets.small import HEADER, write_arrays, write_splits, write_tables

VECTORS = Task(ClassLabels(("a", "b", "c")), (2,))


def read(path, persons, ids=None):
    arrays = {"private_person": np.array(persons)}
    n = len(arrays["private_person"])
    arrays |= {"private_x": np.arange(2.0 * n).reshape(n, 2), "private_y": np.arange(n) % 3}
    arrays |= {} if ids is None else {"private_id": np.array(ids)}
    config = write_arrays(path / "a.npz", **arrays)
    return open_records(config, VECTORS, unit="person")


def rows_of(records):
    """How many rows each person has."""
    codes, times = np.unique(records.persons, return_counts=True)
    return dict(zip(codes.tolist(), times.tolist(), strict=True))


def test_numbers_and_texts_name_persons(tmp_path):
    assert rows_of(read(tmp_path, [3, -3, 3])) == {code_of("3"): 2, code_of("-3"): 1}
    named = read(tmp_path, ["ann@home", " ann@home", "bob", "", "x" * (MAX_LENGTH + 1)])
    assert rows_of(named) == {code_of("ann@home"): 2, code_of("bob"): 1}
    assert code_of("7.0") == code_of("7") != code_of("07")
    assert code_of("e\u0301") == code_of("\u00e9")
    assert codes_of(["", "x" * 257, " ", "x" * 256]).tolist()[:3] == [NOBODY] * 3
    assert code_of("x" * 256) != NOBODY
    assert "ann" not in repr(named)
    assert str(code_of("ann@home")) not in repr(named)


def test_a_row_is_one_of_its_persons_whatever_ids_others_have(tmp_path):
    both = read(tmp_path, ["bob", "ann", "ann", "bob"], [7, 7, 8, 7])
    assert rows_of(both) == {code_of("ann"): 2, code_of("bob"): 1}  # bob's second 7 is a repeat
    ids = row_ids(codes_of(["bob", "ann", "ann"]), np.array([7, 7, 8])).tolist()
    assert both.ids.tolist() == ids
    plain = open_records(DataConfig("arrays", path=str(tmp_path / "a.npz")), VECTORS)
    assert plain.persons is None
    assert plain.ids.tolist() == [7, 8]  # where the unit is a row


@pytest.mark.parametrize(
    "persons", [np.zeros((6, 1), dtype=int), np.ones(6), np.zeros(5, dtype=int), None]
)
def test_an_array_that_does_not_fit_is_one_line(tmp_path, persons):
    config = write_arrays(tmp_path / "a.npz", private_person=persons)
    with pytest.raises(InvalidInput, match="private_person") as caught:
        open_records(config, describe(config), unit="person")
    assert "\n" not in str(caught.value)


def test_a_column_names_persons_and_is_no_feature(tmp_path):
    settings = write_tables(tmp_path)
    lines = {
        "private": ["1,2,low,ann", "3,4,high, ann ", "5,6,low,bob", "7,8,low,"],
        "public": ["0,0,,x", "2,20,,y"],
        "test": ["1,2,low,z", "3,4,high,z"],
    }
    write_splits(tmp_path, lines, f"{HEADER},who")
    config = DataConfig(**settings, person="who")
    task = describe(config)
    assert task.input_shape == (2,)
    records = open_records(config, task, unit="person")
    assert rows_of(records) == {code_of("ann"): 2, code_of("bob"): 1}
    other = DataConfig(**settings, person="whom", ignore=["who"])
    with pytest.raises(InvalidInput, match=r"data\.person"):
        open_records(other, task, unit="person")


@pytest.fixture
def photos(tmp_path):
    """Class folders of folders of persons; one image lies beside them."""
    for split in ("private", "public", "test"):
        for name in ("cat/ann/1", "cat/ann/2", "cat/3", "dog/ann/1", "dog/bob/1"):
            path = tmp_path / split / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 9, dtype=np.uint8)).save(path)
    places = {split: str(tmp_path / split) for split in ("private", "public", "test")}
    return DataConfig(source="folder", image_size=8, person="path", **places)


def test_the_folder_below_the_class_names_a_person(photos):
    task = describe(photos)
    records = open_records(photos, task, unit="person")
    assert rows_of(records) == {code_of("ann"): 3, code_of("bob"): 1}
    assert "1  rows without a person, or of two" in preview(photos, unit="person")
    assert "rows without a person" not in preview(photos)
    more = ingest_more(Path(photos.private or ""), photos, task, unit="person").records
    assert rows_of(more) == rows_of(records)
    with pytest.raises(InvalidInput, match="private_person"):
        ingest_more(Path(photos.private or ""), replace(photos, person=""), task, unit="person")


def test_lines_name_persons_and_two_for_a_row_name_nobody(photos):
    """A row that two persons claim is neither's, so that neither's coming or going moves it."""
    config = DataConfig(**{**vars(photos), "person": "who"})
    task = describe(config)
    with pytest.raises(MissingData, match=r"metadata\.csv"):
        open_records(config, task, unit="person")
    lines = ["path,who", "cat/ann/1.png,a", "cat/ann/1.png,a ", "cat/ann/2.png,b", '"broken']
    lines += ["cat/ann/2.png,c", "dog/ann/1.png,a,b", "dog/bob/1.png,c"]
    (Path(config.private or "") / "metadata.csv").write_text("\n".join(lines))
    records = open_records(config, task, unit="person")
    assert rows_of(records) == {code_of("a"): 1, code_of("c"): 1}


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ({}, "`privacy.unit` must be row for the source 'mnist5k'"),
        ({"source": "table"}, "Give `data.person`: privacy.unit is person."),
        (
            {"source": "arrays", "person": "who"},
            "Leave out `data.person`: arrays have persons in private_person.",
        ),
    ],
)
def test_a_data_set_that_names_no_persons_is_refused(data, rule):
    settings = {"data": DataConfig(**data), "rounds": [RoundConfig(queries=1)]}
    Config(**settings)
    with pytest.raises(InvalidInput, match=rule):
        Config(**settings, mechanism=ReverseKnn(), privacy=PrivacyConfig("person"))
