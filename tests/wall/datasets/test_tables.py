"""Tables of numbers, folders of npy files and vectors of any width: the same rows however stored;
one line for what does not fit; the private side's rows judged one by one.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.records.sources import open_records, stream_records
from labelwall.wall.datasets.sources import DataConfig, describe, read_public
from labelwall.wall.datasets.tables import read_table, texts
from labelwall.wall.errors import InvalidInput, LabelwallError, MissingData

HEADER = "größe,weight,price_class"
PRIVATE = ["1,10,low", "2,20,high", "3,30,low"]
PUBLIC = ["0,0,", "2,20,", "4,40,high"]
TEST = ["1,10,low", "3,10,high"]


def write(folder: Path, name: str, lines: list[str], header: str = HEADER) -> str:
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, object]:
    """DataConfig's arguments for three CSV files."""
    named = {"private": PRIVATE, "public": PUBLIC, "test": TEST}
    files = {name: write(tmp_path, f"{name}.csv", lines) for name, lines in named.items()}
    return {"source": "table", "label": "price_class", **files}


def test_columns_are_features_scaled_by_public_rows(tables: dict) -> None:
    config = DataConfig(**tables)
    task, public = describe(config), read_public(config)
    assert (task.labels.names, task.input_shape) == (("high", "low"), (2,))
    root = np.sqrt(1.5)
    np.testing.assert_allclose(public.inputs, [[-root, -root], [0, 0], [root, root]], rtol=1e-6)
    assert public.labels is None  # two public rows have none
    assert public.test_labels.tolist() == [1, 0]
    records = open_records(config, task)
    np.testing.assert_allclose(records.inputs[:, 0], [-root / 2, 0, root / 2], atol=1e-6)
    assert records.labels.tolist() == [1, 0, 1]
    assert records.ids.tolist() == [0, 1, 2]


def test_the_public_side_opens_no_private_file(tables: dict, opened) -> None:
    with opened() as paths:
        read_public(DataConfig(**tables))
    assert tables["public"] in paths
    assert tables["private"] not in paths


@pytest.mark.parametrize(
    "bad", ["x,10,low", ",10,low", "1,inf,low", "1,10,unknown", "1,10,", "1,10", "1,2,3,low", '"']
)
def test_a_bad_private_row_is_left_out_and_hides_no_other(tables: dict, bad: str) -> None:
    path = Path(str(tables["private"]))
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:2], bad, *lines[2:]]), encoding="utf-8")
    config = DataConfig(**tables)
    assert open_records(config, describe(config)).labels.tolist() == [1, 0, 1]


def test_one_file_with_a_split_column(tmp_path: Path, tables: dict) -> None:
    lines = [f"{line},private" for line in PRIVATE] + [f"{line},public" for line in PUBLIC]
    lines += [f"{line},test" for line in TEST] + ["x,,none,private", "broken"]
    one = write(tmp_path, "all.csv", lines, HEADER + ",part")
    config = DataConfig(source="table", path=one, label="price_class", split="part")
    apart = DataConfig(**tables)
    np.testing.assert_array_equal(read_public(config).inputs, read_public(apart).inputs)
    found, wanted = open_records(config, describe(config)), open_records(apart, describe(apart))
    np.testing.assert_array_equal(found.inputs, wanted.inputs)
    np.testing.assert_array_equal(found.labels, wanted.labels)


def test_blocks_are_the_same_records(tables: dict) -> None:
    config = DataConfig(**tables)
    task = describe(config)
    blocks = list(stream_records(config, task, 2, 1))
    assert [(done, total) for done, total, _ in blocks] == [(3, 3)]
    np.testing.assert_array_equal(blocks[0][2].ids, [1, 2])


def test_ids_of_a_column_are_no_feature(tmp_path: Path, tables: dict) -> None:
    lines = ["1,10,low,a", "2,20,high,b", "3,30,low,a"]
    tables["private"] = write(tmp_path, "ids.csv", lines, HEADER + ",record_id")
    config = DataConfig(**tables)
    records = open_records(config, describe(config))
    assert len(records.ids) == 2  # one id is one record
    assert records.inputs.shape[1] == 2


def test_values_instead_of_classes(tmp_path: Path) -> None:
    files = {
        name: write(tmp_path, f"{name}.csv", ["1,2.5", "2,3.5"], "x,price")
        for name in ("private", "public", "test")
    }
    config = DataConfig(source="table", label="price", labels="value", bounds=[0.0, 10.0], **files)
    assert read_public(config).test_labels.tolist() == [2.5, 3.5]
    assert len(open_records(config, describe(config)).labels) == 2


def test_numbers_as_classes_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    lines = [f"{x},{x}" for x in (10, 9, 2)]
    files = {
        n: write(tmp_path, f"{n}.tsv", lines, "x,label") for n in ("private", "public", "test")
    }
    assert describe(DataConfig(source="table", **files)).labels.names == ("2", "9", "10")


MISTAKES = {
    "no label column": ({"label": "colour"}, {}, "`data.label` must be one of größe"),
    "text": ({}, {"public": ["1,heavy,low", "2,3,low"]}, "'heavy' in row 1, column weight"),
    "an empty cell": ({}, {"public": ["1,2,low", ",3,low"]}, "'' in row 2, column größe"),
    "not finite": ({}, {"test": ["nan,3,low", "1,2,high"]}, "'nan' in row 1, column größe"),
    "one class": ({}, {"test": ["1,2,low"]}, "at least 2 classes"),
    "an unlabelled test row": ({}, {"test": [*TEST, "1,2,"]}, "rows with a known label"),
    "no rows": ({}, {"public": []}, "`data.public`"),
    "no such file": ({"public": "nowhere.csv"}, {}, "`data.public` must be an existing"),
    "another format": ({"public": __file__}, {}, "a file that ends in .csv"),
    "nothing ignored by that name": ({"ignore": ["größe", "weight"]}, {}, "columns of numbers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name: str, tables: dict, tmp_path: Path) -> None:
    change, files, expected = MISTAKES[name]
    written = {key: write(tmp_path, f"{key}2.csv", lines) for key, lines in files.items()}
    config = DataConfig(**tables | written | change)
    with pytest.raises(LabelwallError, match=expected) as found:
        read_public(config)
    assert len(str(found.value).splitlines()) == 1


def test_a_private_table_of_other_columns_says_nothing_of_rows(
    tmp_path: Path, tables: dict
) -> None:
    tables["private"] = write(tmp_path, "other.csv", ["1,low"], "größe,price_class")
    config = DataConfig(**tables)
    with pytest.raises(InvalidInput, match="the column weight"):
        open_records(config, describe(config))


def test_parquet_has_numbers_and_vectors(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rng, files = np.random.default_rng(0), {}
    for name in ("private", "public", "test"):
        vectors = rng.normal(size=(8, 3)).astype(np.float16)
        columns = {"size": np.arange(8), "embedding": vectors.tolist(), "label": [0, 1] * 4}
        files[name] = str(tmp_path / f"{name}.parquet")
        parquet.write_table(pyarrow.table(columns), files[name])
    config = DataConfig(source="table", **files)
    assert describe(config).input_shape == (4,)
    assert read_public(config).labels is not None
    assert len(open_records(config, describe(config)).ids) == 8
    broken = pyarrow.table({"size": [1, 2], "embedding": [[1.0, 2.0], [1.0, 2.0, 3.0]]})
    parquet.write_table(broken.append_column("label", [[0, 1]]), files["private"])
    assert len(open_records(config, describe(config)).ids) == 1  # the public width decides


def test_a_damaged_parquet_file_and_a_missing_library(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(InvalidInput, match="readable parquet"):
        read_table("data.public", path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingData, match=r"labelwall\[tables\]"):
        read_table("data.public", path)


def test_a_folder_of_hugging_faces_datasets(tmp_path: Path, monkeypatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingData, match="pip install datasets"):
        read_table("data.public", tmp_path)

    class Saved:
        def with_format(self, kind: str) -> dict:
            assert kind == "arrow"
            return self

        def __getitem__(self, rows: slice) -> object:
            return pyarrow.table({"x": [1.5, None], "label": ["a", None]})[rows]

    library = types.SimpleNamespace(load_from_disk=lambda folder: Saved())
    monkeypatch.setitem(sys.modules, "datasets", library)
    table = read_table("data.public", tmp_path)
    assert texts(table.columns["label"]).tolist() == ["a", ""]
    assert table.columns["x"][0] == 1.5


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "private_x": rng.normal(size=(5, 3)),
        "private_y": np.array([0, 1, 0, 1, 1]),
        "public_x": rng.normal(size=(4, 3)),
        "test_x": rng.normal(size=(4, 3)),
        "test_y": np.array([0, 1, 0, 1]),
    }


def test_a_folder_of_npy_files_is_an_npz_file(tmp_path: Path, arrays: dict, opened) -> None:
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.savez(tmp_path / "all.npz", **arrays)
    folder = DataConfig(source="arrays", path=str(tmp_path))
    file = DataConfig(source="arrays", path=str(tmp_path / "all.npz"))
    with opened() as paths:
        public = read_public(folder)
    assert not [path for path in paths if "private_x" in str(path)]
    np.testing.assert_array_equal(public.inputs, read_public(file).inputs)
    task = describe(file)
    np.testing.assert_array_equal(
        open_records(folder, task).inputs, open_records(file, task).inputs
    )
    blocks = list(stream_records(folder, task, 2))
    assert [len(records.ids) for _, _, records in blocks] == [2, 2, 1]
    (tmp_path / "test_x.npy").unlink()
    with pytest.raises(InvalidInput, match=r"a folder with test_x\.npy"):
        read_public(folder)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", ">f8"])
def test_vectors_of_any_width_are_read(tmp_path: Path, arrays: dict, dtype: str) -> None:
    wide = {n: (a * 10).astype(dtype) if n.endswith("_x") else a for n, a in arrays.items()}
    np.savez(tmp_path / "a.npz", **wide)
    config = DataConfig(source="arrays", path=str(tmp_path / "a.npz"))
    assert read_public(config).inputs.dtype == np.float32
    records = open_records(config, describe(config))
    np.testing.assert_array_equal(records.inputs, wide["private_x"].astype(np.float32))
