"""Tables: columns, splits and labels; one line for what does not fit."""

import sys
import types
from dataclasses import replace

import numpy as np
import pytest

from labelwall.teacher.records.inspect import preview
from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.columns import texts
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import describe, facts, read_public
from labelwall.wall.datasets.tables import column_names, read_table
from labelwall.wall.errors import InvalidInput, LabelwallError, MissingData
from tests.wall.datasets.small import HEADER, LINES, write_lines, write_splits, write_tables


def test_columns_are_features_scaled_by_public_rows(tmp_path):
    config = DataConfig(**write_tables(tmp_path))
    task, public = describe(config), read_public(config)
    assert (task.labels.names, task.input_shape) == (("high", "low"), (2,))
    root = np.sqrt(1.5)
    np.testing.assert_allclose(public.inputs, [[-root, -root], [0, 0], [root, root]], rtol=1e-6)
    assert public.labels is not None
    assert (public.labels < 0).sum() == 2  # public rows without one
    assert public.test_labels.tolist() == [1, 0]
    records = open_records(config, task)
    np.testing.assert_allclose(records.inputs[:, 0], [-root / 2, 0, root / 2], atol=1e-6)
    assert records.labels.tolist() == [1, 0, 1]
    assert records.ids.tolist() == [0, 1, 2]


def test_one_file_with_a_split_column(tmp_path):
    lines = [f"{line},{split}" for split, own in LINES.items() for line in own]
    one = write_lines(tmp_path, "all.csv", [*lines, "x,,none,private", "broken"], HEADER + ",part")
    apart = DataConfig(**write_tables(tmp_path))
    config = DataConfig(source="table", path=one, label="price_class", split="part")
    np.testing.assert_array_equal(read_public(config).inputs, read_public(apart).inputs)
    records, same = open_records(config, describe(config)), open_records(apart, describe(apart))
    np.testing.assert_array_equal(records.inputs, same.inputs)
    np.testing.assert_array_equal(records.labels, same.labels)


def test_ids_of_a_column_are_no_feature(tmp_path):
    config = DataConfig(**write_tables(tmp_path))
    lines = ["1,10,low,a", "2,20,high,b", "3,30,low,a"]
    write_lines(tmp_path, "private.csv", lines, HEADER + ",record_id")
    records = open_records(config, describe(config))
    assert len(records.ids) == 2  # one id is one record
    assert records.inputs.shape[1] == 2


@pytest.mark.parametrize(
    ("suffix", "settings", "names"),
    [
        ("csv", {"labels": "value", "bounds": [0.0, 20.0]}, ("value",)),
        ("tsv", {}, ("2", "9", "10")),  # numbers as classes are in the order of numbers
    ],
)
def test_a_column_of_numbers_is_values_or_classes(tmp_path, suffix, settings, names):
    files = write_splits(tmp_path, [f"{x},{x}" for x in (10, 9, 2)], "x,label", suffix)
    config = DataConfig(source="table", **files, **settings)
    assert describe(config).labels.names == names
    assert read_public(config).test_labels.tolist() == ([10.0, 9.0, 2.0] if settings else [2, 1, 0])
    assert len(open_records(config, describe(config)).labels) == 3


def test_test_rows_without_a_label_are_left_out_and_said(tmp_path):
    config = DataConfig(**write_tables(tmp_path))
    before = read_public(config)
    write_splits(tmp_path, {"test": [*LINES["test"], "1,2,", "3,4, "]})
    public = read_public(config)
    np.testing.assert_array_equal(public.test_inputs, before.test_inputs)
    np.testing.assert_array_equal(public.test_labels, before.test_labels)
    assert "data.test: 2 rows without a label are left out" in facts(config)


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["-1", "1"], {}),
        (["none", "mild", "severe"], {}),
        (["?", "na"], {"classes": ["?", "na"]}),
        (["-1", "2"], {"labels": "value", "bounds": [-5.0, 5.0]}),
    ],
    ids=["signs", "a word for nothing", "declared", "values"],
)
def test_labels_that_look_like_none_stay(tmp_path, names, settings):
    """Test rows name the classes; an empty label alone is none."""
    rows = [f"{n},{names[n % len(names)]}" for n in range(60)]
    files = write_splits(tmp_path, [*rows, "7,"], "x,label", "csv")
    public = read_public(config := DataConfig(source="table", **files, **settings))
    assert len(public.test_labels) == 60
    assert len(set(public.test_labels.tolist())) == len(names)
    assert "data.test: 1 rows without a label are left out" in facts(config)


def test_numbers_with_a_decimal_comma_are_measured_and_whole_ones_may_be(tmp_path):
    def config(form: str) -> DataConfig:
        rows = [f"{n % 7};{form.format(n)}" for n in range(40)]
        return DataConfig(source="table", **write_splits(tmp_path, rows, "x;label", "csv"))

    with pytest.raises(InvalidInput, match="not of numbers that are measured"):
        describe(config("{},5 kg"))
    assert describe(config("type {}.5 or so")).labels.num_labels == 40
    assert any("40 classes by number" in line for line in facts(config("{}")))


@pytest.mark.parametrize("image", [b"\x89PNG", {"bytes": b"\x89PNG", "path": "1.png"}])
def test_images_in_a_table_are_refused(tmp_path, image):
    """They were read as texts."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    files = {name: str(tmp_path / f"{name}.parquet") for name in ("private", "public", "test")}
    for path in files.values():
        parquet.write_table(pyarrow.table({"image": [image] * 4, "label": [0, 1] * 2}), path)
    config = DataConfig(source="table", **files)
    with pytest.raises(InvalidInput, match=r"bytes or structures.* Found 'image'. Write images to"):
        read_public(config)
    with pytest.raises(InvalidInput, match="a table with rows and columns of features"):
        read_public(replace(config, ignore=["image"]))


MISTAKES = {
    "no label column": ({"label": "colour"}, {}, "`data.label` must be one of größe"),
    "one class": ({}, {"test": ["1,2,low"]}, "at least 2 classes"),
    "measured numbers": ({}, {"test": [f"1,2,{n}.5" for n in range(21)]}, "--data.labels value"),
    "no label of a test row": (
        {"classes": ["low", "high"]},
        {"test": ["1,2,", "3,4,none"]},
        "rows with a known label",
    ),
    "a label that is no class": (
        {"classes": ["low", "high"]},
        {"test": [*LINES["test"], "1,2,medium"]},
        "rows with a known label in the column price_class. Found 'medium'",
    ),
    "no rows": ({}, {"public": []}, "`data.public`"),
    "no such file": ({"public": "nowhere.csv"}, {}, r"existing file \(.csv, .tsv, .txt, .parquet,"),
    "another format": ({"public": __file__}, {}, r"a file \(.csv, .tsv"),
    "nothing ignored by that name": ({"ignore": ["größe", "weight"]}, {}, "columns of features"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name, tmp_path):
    change, files, expected = MISTAKES[name]
    tables = write_tables(tmp_path)
    write_splits(tmp_path, files)
    with pytest.raises(LabelwallError, match=expected) as caught:
        read_public(DataConfig(**tables | change))
    assert len(str(caught.value).splitlines()) == 1


def test_a_private_table_of_other_columns_says_nothing_of_rows(tmp_path):
    config = DataConfig(**write_tables(tmp_path))
    write_lines(tmp_path, "private.csv", ["1,low"], "größe,price_class")
    with pytest.raises(InvalidInput, match="the column weight"):
        open_records(config, describe(config))


def test_parquet_has_numbers_and_vectors(tmp_path):
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
    records = open_records(config, describe(config))
    assert len(records.ids) == 2  # the public width decides what is a vector; another is missing
    assert (records.inputs[0, 1:] == 0).all()


def test_words_gaps_and_unreadable_cells_lose_no_row(tmp_path):
    tables = write_tables(tmp_path)
    lines = ["1,2,low,red", "2,,high,blue", ",3,low,red", "nan,?,low,", "4,5,high,red"]
    write_splits(tmp_path, lines * 5, HEADER + ",colour")
    config = DataConfig(**tables)
    task, public = describe(config), read_public(config)
    assert task.input_shape == (2 + 2 + 4,)  # two columns with gaps; red, blue, none, another one
    records = open_records(config, task)
    np.testing.assert_array_equal(records.inputs, public.inputs)
    assert len(records.ids) == 25


def test_a_damaged_parquet_file_and_a_missing_library(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(InvalidInput, match="readable parquet"):
        read_table("data.public", path)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingData, match=r"labelwall\[tables\]"):
        read_table("data.public", path)


def test_a_folder_of_hugging_faces_datasets(tmp_path, monkeypatch):
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


NOTES = ['1,"a note\nof two lines",x', '2,"one line",y', '"3","and\n\nthree",x', "4,plain,y,odd"]


def test_public_records_may_have_line_breaks_and_what_is_left_out_is_counted(tmp_path):
    """A private record is one line: a quote of one must not hide the next one."""
    files = write_splits(tmp_path, 9 * NOTES, "n,note,label")
    config = DataConfig(source="table", **files, keep=["n", "note"])
    assert len(read_public(config).inputs) == len(read_public(config).test_inputs) == 27
    assert len(open_records(config, describe(config)).ids) == 9
    said = "\n".join(facts(config))
    for split in ("data.public", "data.test"):
        assert f"{split}: 9 of 36 records are left out" in said
    shown = preview(config)
    assert "lines with another number of cells than the header: 45" in shown


def test_classes_that_public_labels_miss_or_that_differ_by_case_are_named(tmp_path):
    lines = {"private": ["1,good"], "public": ["1,good", "2,bad"], "test": ["1,0", "2,1", "4,1"]}
    files = write_splits(tmp_path, lines, "n,label")
    config = DataConfig(source="table", **files)
    assert "data.public: none of 2 labels is one of these classes, as 'good'" in facts(config)
    files["test"] = write_lines(tmp_path, "test.csv", ["1,good", "2,Good", "3,bad"], "n,label")
    assert "these classes differ by their case alone: Good, good" in facts(
        DataConfig(source="table", **files)
    )


def test_a_label_that_is_not_there_shows_the_last_column_first(tmp_path):
    header = ",".join([*(f"c{n}" for n in range(20)), "grade"])
    rows = [",".join(map(str, [*range(20), "ab"[k]])) for k in (0, 1)]
    files = write_splits(tmp_path, rows, header)
    with pytest.raises(InvalidInput, match=r"one of grade, c0, c1.* and 11 more"):
        describe(DataConfig(source="table", **files, label="Grad"))


@pytest.mark.parametrize(("more", "places"), [("", [98]), (",more", [20]), (",more", [20, 40])])
def test_stray_quotes_swallow_no_lines_also_beside_one_of_more_cells(tmp_path, more, places):
    lines = [f"{n},b{n % 2},x{n % 3}" for n in range(100)]
    lines[10] += more
    for at in places:
        lines[at] = f'{at},"b1,x0'
    path = write_lines(tmp_path, "public.csv", lines, "n,word,label")
    table, misfits = read_table("data.public", path), len(places) + bool(more)
    assert (len(table.places), table.misfits) == (100 - misfits, misfits)


def test_a_line_that_is_no_csv_is_counted(tmp_path):
    path = write_lines(tmp_path, "private.csv", ["1,a", f"2,{'b' * 200_000}", "", "3,c"], "n,word")
    table = read_table("data.private", path)
    assert (len(table.places), table.misfits) == (2, 1)
    assert read_table("data.public", path).columns["n"].tolist() == ["1", "2", "3"]


def test_names_of_columns_are_read_without_rows(tmp_path):
    path = write_lines(tmp_path, "private.csv", ["1,a"], "n,word")
    assert column_names("data.private", path) == ["n", "word"]
    with pytest.raises(MissingData, match="existing"):
        column_names("data.private", tmp_path / "none.csv")


def test_a_table_of_names_of_images_is_told_where_it_belongs(tmp_path):
    lines = ["image,age,label", *(f"scan{n}.jpg,{n % 50},{'ab'[n % 2]}" for n in range(60))]
    (tmp_path / "public.csv").write_text("\n".join(lines))
    config = DataConfig("table", public=str(tmp_path / "public.csv"))
    with pytest.raises(
        InvalidInput, match=r"names of image files.*metadata\.csv.*ignore '\[image\]'"
    ):
        describe(config)
    assert describe(replace(config, ignore=["image"])).labels.names == ("a", "b")
