"""Whose a row is: arrays, tables, folders. A row without a person is a bad row like others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelwall.experiment.config.groups import check_persons
from labelwall.teacher.records.inspect import preview, render
from labelwall.teacher.records.persons import MAX_LENGTH, NOBODY, code_of, codes_of, row_ids
from labelwall.teacher.records.sources import Records, ingest_more, open_records, stream_records
from labelwall.wall.datasets.sources import DataConfig, Task, describe
from labelwall.wall.errors import InvalidInput, MissingData
from labelwall.wall.labels.classes import ClassLabels

VECTORS = Task(ClassLabels(("a", "b", "c")), (2,))


def arrays(path: Path, persons: object, ids: list[int] | None = None) -> DataConfig:
    n = len(persons)
    held = {"private_x": np.arange(2.0 * n).reshape(n, 2), "private_y": np.arange(n) % 3}
    if ids is not None:
        held["private_id"] = np.array(ids)
    np.savez(path, **held, private_person=np.array(persons))
    return DataConfig(source="arrays", path=str(path))


def rows_of(records: Records) -> dict[int, int]:
    """How many rows each person has."""
    assert records.persons is not None
    codes, times = np.unique(records.persons, return_counts=True)
    return dict(zip(codes.tolist(), times.tolist(), strict=True))


def in_blocks(config: DataConfig, task: Task, size: int) -> Records:
    blocks = [block for *_, block in stream_records(config, task, size, unit="person")]
    found = blocks[0]
    for block in blocks[1:]:
        found = found.joined(block)
    return found


def test_numbers_and_texts_name_persons(tmp_path: Path) -> None:
    numbered = open_records(arrays(tmp_path / "a.npz", [3, -3, 3]), VECTORS, unit="person")
    assert rows_of(numbered) == {code_of("3"): 2, code_of("-3"): 1}
    named = arrays(tmp_path / "b.npz", ["ann", " ann", "bob", "", "x" * (MAX_LENGTH + 1)])
    assert rows_of(open_records(named, VECTORS, unit="person")) == {
        code_of("ann"): 2,
        code_of("bob"): 1,
    }
    assert codes_of(["", "x" * 257, " ", "x" * 256]).tolist()[:3] == [NOBODY] * 3
    assert code_of("x" * 256) != NOBODY


@pytest.mark.parametrize("size", [1, 2, 100])
def test_blocks_are_the_same_rows(tmp_path: Path, size: int) -> None:
    config = arrays(tmp_path / "a.npz", ["a", "b", "", "a", "c"])
    whole, found = open_records(config, VECTORS, unit="person"), in_blocks(config, VECTORS, size)
    for name in ("inputs", "labels", "ids", "persons"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


def test_a_row_is_one_of_its_persons_whatever_ids_others_have(tmp_path: Path) -> None:
    """Without the second person, all rows of the first are as they were: none is hidden."""
    both = arrays(tmp_path / "a.npz", ["bob", "ann", "ann", "bob"], [7, 7, 8, 7])
    found = open_records(both, VECTORS, unit="person")
    assert rows_of(found) == {code_of("ann"): 2, code_of("bob"): 1}  # bob's second 7 is a repeat
    alone = arrays(tmp_path / "b.npz", ["ann", "ann"], [7, 8])
    ids = open_records(alone, VECTORS, unit="person").ids
    assert set(ids.tolist()) <= set(found.ids.tolist())
    assert ids.tolist() == row_ids(codes_of(["ann", "ann"]), np.array([7, 8])).tolist()


def test_rows_are_as_ever_where_the_unit_is_a_row(tmp_path: Path) -> None:
    config = arrays(tmp_path / "a.npz", ["", "ann", "ann"])
    found = open_records(config, VECTORS)
    assert found.persons is None
    assert found.ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "persons", [np.zeros((2, 1), dtype=int), np.array([1.5, 2.0]), np.zeros(3, dtype=int)]
)
def test_an_array_that_does_not_fit_is_one_line(tmp_path: Path, persons: np.ndarray) -> None:
    config = arrays(tmp_path / "a.npz", [1, 2])
    held = dict(np.load(config.path or ""))
    np.savez(config.path or "", **{**held, "private_person": persons})
    with pytest.raises(InvalidInput, match="private_person"):
        open_records(config, VECTORS, unit="person")
    del held["private_person"]
    np.savez(config.path or "", **held)
    with pytest.raises(InvalidInput, match="private_person"):
        open_records(config, VECTORS, unit="person")


HEADER = "height,weight,who,kind"


def test_a_column_names_persons_and_is_no_feature(tmp_path: Path) -> None:
    files = {
        "private": ["1,2,ann,low", "3,4, ann ,high", "5,6,bob,low", "7,8,,low"],
        "public": ["0,0,x,", "2,20,y,"],
        "test": ["1,2,z,low", "3,4,z,high"],
    }
    for name, lines in files.items():
        (tmp_path / f"{name}.csv").write_text("\n".join([HEADER, *lines]))
    places = {name: str(tmp_path / f"{name}.csv") for name in files}
    config = DataConfig(source="table", label="kind", person="who", **places)
    task = describe(config)
    assert task.input_shape == (2,)
    found = open_records(config, task, unit="person")
    assert rows_of(found) == {code_of("ann"): 2, code_of("bob"): 1}
    assert rows_of(in_blocks(config, task, 3)) == rows_of(found)
    other = DataConfig(source="table", label="kind", person="whom", ignore=["who"], **places)
    with pytest.raises(InvalidInput, match=r"data\.person"):
        open_records(other, task, unit="person")


@pytest.fixture
def photos(tmp_path: Path) -> DataConfig:
    """Class folders of folders of persons; one image lies beside them."""
    for split in ("private", "public", "test"):
        for name in ("cat/ann/1", "cat/ann/2", "cat/3", "dog/ann/1", "dog/bob/1"):
            path = tmp_path / split / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8, 3), 9, dtype=np.uint8)).save(path)
    places = {split: str(tmp_path / split) for split in ("private", "public", "test")}
    return DataConfig(source="folder", image_size=8, person="path", **places)


def test_the_folder_below_the_class_names_a_person(photos: DataConfig) -> None:
    task = describe(photos)
    found = open_records(photos, task, unit="person")
    assert rows_of(found) == {code_of("ann"): 3, code_of("bob"): 1}
    assert rows_of(in_blocks(photos, task, 2)) == rows_of(found)
    shown = preview(photos, unit="person")
    assert "1  rows without a person, or of two" in render(shown)
    assert "rows without a person" not in render(preview(photos))
    more = ingest_more(Path(photos.private or ""), task, None, "person", "path").records
    assert rows_of(more) == rows_of(found)
    with pytest.raises(InvalidInput, match="private_person"):
        ingest_more(Path(photos.private or ""), task, None, "person")


def test_a_file_of_lines_names_persons_and_two_for_a_row_name_nobody(photos: DataConfig) -> None:
    """A row that two persons claim is neither's, so that neither's coming or going moves it."""
    config = DataConfig(**{**vars(photos), "person": "persons.csv"})
    task = describe(config)
    with pytest.raises(MissingData, match=r"persons\.csv"):
        open_records(config, task, unit="person")
    lines = ["path,person", "cat/ann/1.png,a", "cat/ann/1.png,a ", "cat/ann/2.png,b", '"broken']
    lines += ["cat/ann/2.png,c", "dog/ann/1.png,a,b", "dog/bob/1.png,c"]
    (Path(config.private or "") / "persons.csv").write_text("\n".join(lines))
    found = open_records(config, task, unit="person")
    assert rows_of(found) == {code_of("a"): 1, code_of("c"): 1}


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ({}, "`privacy.unit` must be row for the source 'mnist5k'"),
        ({"source": "table"}, "`data.person` must be given with privacy.unit: person"),
        ({"source": "arrays", "person": "who"}, "`data.person` must be empty for arrays"),
    ],
)
def test_a_data_set_that_names_no_persons_is_refused(data: dict, rule: str) -> None:
    config = DataConfig(**data)
    check_persons(config, "row")
    with pytest.raises(InvalidInput, match=rule):
        check_persons(config, "person")


def test_no_id_shows(tmp_path: Path) -> None:
    found = open_records(arrays(tmp_path / "a.npz", ["ann@home"] * 2), VECTORS, unit="person")
    assert "ann" not in repr(found)
    assert str(code_of("ann@home")) not in repr(found)
