"""Tables in the forms that people have: read as the plain one, as the PUBLIC rows show; else one
line."""

import os
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets import arrays
from labelwall.wall.datasets.columns import DATES, dates, encoding_of
from labelwall.wall.datasets.data_config import MOST_COLUMNS, DataConfig
from labelwall.wall.datasets.sources import describe, facts, read_public
from labelwall.wall.datasets.tables import encoding, read_table
from labelwall.wall.errors import InvalidInput, LabelwallError
from tests.wall.datasets.small import SPLITS, cells, write_splits

RNG = np.random.default_rng(0)
ROWS = {split: RNG.uniform(-5000, 5000, (30, 2)).round(2) for split in SPLITS}
NAMES = ["\u00e9t\u00e9", "hiver"]


def german(value: float) -> str:
    return f"{value:,.2f}".translate({ord(","): ".", ord("."): ","})


def french(value: float) -> str:
    return f"{value:,.2f}".translate({ord(","): "\u202f", ord("."): ","})


# How a number and a class are written, the separator, the encoding, what stands before the header
# and at the ends of lines
PLAIN = {"number": str, "name": str, "separator": ",", "encoded": "utf-8", "before": "", "end": ""}
FORMS: dict[str, dict[str, Any]] = {
    "decimal comma": {"number": lambda v: f"{v:.2f}".replace(".", ","), "separator": ";"},
    "thousands": {"number": lambda v: f'"{v:,.2f}"'},
    "German thousands": {"number": german, "separator": ";"},
    "French thousands": {"number": french, "separator": "\t"},
    "Swiss thousands": {"number": lambda v: f"{v:,.2f}".replace(",", "\u2019")},
    "percent": {"number": lambda v: f"{v:.2f} %"},
    "euros": {"number": lambda v: f"{german(v)} \u20ac", "separator": ";", "encoded": "cp1252"},
    "dollars": {"number": lambda v: f'"{"-" * int(v < 0)}${abs(v):,.2f}"'},
    "latin-1": {"encoded": "latin-1"},
    "tabs": {"separator": "\t"},
    "a byte order mark": {"encoded": "utf-8-sig"},
    "sep=": {"separator": ";", "before": "sep=;\n"},
    "bars": {"separator": "|"},
    "separators at the ends": {"end": ","},
    "capitals": {"name": str.upper},
}


def write(folder: Path, **form: Any) -> DataConfig:
    how = SimpleNamespace(**PLAIN | form)
    folder.mkdir()
    for split, rows in ROWS.items():
        lines = [how.separator.join(["u", "v", "label"])]
        for place, row in enumerate(rows):
            classes = NAMES if split == "test" else list(map(how.name, NAMES))
            lines.append(how.separator.join([*map(how.number, row), classes[place % 2]]))
        text = how.before + "".join(f"{line}{how.end}\n" for line in lines)
        (folder / f"{split}.csv").write_bytes(text.encode(how.encoded))
    return DataConfig("table", **{split: str(folder / f"{split}.csv") for split in SPLITS})


@pytest.mark.parametrize("form", FORMS)
def test_a_table_in_another_form_has_the_same_rows(tmp_path, form):
    config, plain = write(tmp_path / "form", **FORMS[form]), write(tmp_path / "plain")
    task = describe(config)
    assert task == describe(plain)
    ours, theirs = read_public(config), read_public(plain)
    np.testing.assert_allclose(ours.inputs, theirs.inputs, atol=1e-6)
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    np.testing.assert_array_equal(ours.test_labels, theirs.test_labels)
    records, known = open_records(config, task), open_records(plain, task)
    np.testing.assert_allclose(records.inputs, known.inputs, atol=1e-6)
    np.testing.assert_array_equal(records.labels, known.labels)
    np.testing.assert_array_equal(records.ids, known.ids)


@pytest.mark.parametrize("encoded", ["utf-16", "utf-16-be"])
@pytest.mark.parametrize("split", SPLITS)
def test_a_table_in_utf_16_is_refused_with_what_converts_it(tmp_path, split, encoded):
    """Its characters may hold the bytes of a line break: a line would be thousands of records."""
    config = write(tmp_path / "form")
    file = tmp_path / "form" / f"{split}.csv"
    mark = b"\xfe\xff" if encoded == "utf-16-be" else b""
    file.write_bytes(mark + file.read_text().encode(encoded))
    with pytest.raises(InvalidInput, match=rf"{split}\.csv` must be .*UTF-8.*iconv -f UTF-16"):
        read_table(f"data.{split}", file)
    assert config.private


@pytest.mark.parametrize("form", DATES[1:])
def test_dates_are_read_by_the_form_that_all_public_cells_fit(form):
    moments = [datetime(2024, month, 13 + month, 9, 5 + month, 7) for month in range(1, 11)]
    written = cells(*(moment.strftime(form) for moment in moments))
    (column,) = encoding_of({"x": written}).columns
    assert column.kind == "date"
    assert ("years 1969 to 2068" in column.how) == ("%y" in form)
    expected = [datetime.strptime(text, form).isoformat() for text in written]
    np.testing.assert_array_equal(column.entries(written)[:, :1], dates(cells(*expected)))
    missing = column.entries(cells("31/31/2024", "word", ""))
    np.testing.assert_array_equal(missing, [column.mean] * 3)


def test_of_two_forms_the_day_is_first_and_times_differ_from_numbers():
    (column,) = encoding_of({"x": cells("01/02/2024", "03/04/2024")}).columns
    assert (column.form, column.how) == ("%d/%m/%Y", "date like 31/12/2024 with day of the week")
    (column,) = encoding_of({"x": cells("1 kg", "2 kg", "3 kg")}).columns
    assert column.entries(cells("4 kg", "4", "4 g", "kg", "9" * 5000)).ravel().tolist() == [
        *(4, 4),
        *[column.mean[0]] * 3,
    ]
    for written in ("EUR {}", "{} m2", "< {}", "{} mm³"):
        (column,) = encoding_of({"x": cells(*map(written.format, (1, 2, 3)))}).columns
        assert column.kind == "number"
        assert column.entries(cells(written.format(4), "4")).ravel().tolist() == [4.0, 4.0]
    for codes in (("1/2", "2/3", "3/4", "1/3"), ("ICD1", "ICD2", "ICD1", "ICD3")):
        (column,) = encoding_of({"x": cells(*codes)}).columns
        assert column.kind == "category"
    (column,) = encoding_of({"x": cells("1 kg", "2 g")}).columns
    assert column.kind == "category"  # two units


def idle_table(folder, header, row, rows=40, **settings):
    files = write_splits(folder, [row(n) + ("," + "ab"[n % 2]) for n in range(rows)], header)
    return DataConfig("table", **files, **settings)


def test_columns_that_tell_nothing_are_left_out_and_said(tmp_path):
    def row(n):
        return f"{n},{7 * n % 11},r{n},{10**9 + n * 7919},one,{1000 + 31 * n}"

    header = ",v,name,customer_id,same,amount,label"
    known = encoding(config := idle_table(tmp_path, header, row))
    assert known.features == ("v", "amount")
    assert facts(config) == [
        "classes: a, b",
        "columns, as the public rows show them:",
        "  number: v, amount",
        "  left out, texts of which none is in 5 rows (data.keep takes it): name",
        "  left out, whole numbers that all differ, as ids do (data.keep takes it): customer_id",
        "  left out, one value in all rows (data.keep takes it): same",
    ]
    kept = idle_table(tmp_path, header, row, keep=["customer_id", "same"], id="name")
    assert encoding(kept).features == ("v", "customer_id", "same", "amount")
    assert len(set(open_records(kept, describe(kept)).ids)) == 40
    counted = idle_table(tmp_path, "n,v,label", lambda n: f"{n + 300},{n % 3}")
    assert encoding(counted).features == ("v",)
    with pytest.raises(InvalidInput, match=r"rows that differ.*`data\.keep`"):
        encoding(idle_table(tmp_path, "n,v,label", lambda n: f"{n},1"))


MISTAKES = {
    "ignored": ("v,label", {"ignore": ["w"]}, r"`data\.ignore` must be columns.*Found 'w'"),
    "nearly": ("value,label", {"ignore": ["valu"]}, "Did you mean 'value'"),
    "kept": ("v,label", {"keep": ["x"]}, r"`data\.keep`"),
    "twice": ("v,v,label", {}, "differ in name. Found 'v'. Rename or remove all but one"),
    "no id": ("v,label", {"id": "key"}, r"`data\.id` must be a column"),
    "all names": (",".join(map(str, range(10**6))), {}, f"at most {MOST_COLUMNS} columns"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_columns_is_one_line(tmp_path, name):
    header, settings, expected = MISTAKES[name]
    count = header.count(",")
    config = idle_table(tmp_path, header, lambda n: ",".join([str(n % 7)] * count), 3, **settings)
    began = time.monotonic()
    with pytest.raises(InvalidInput, match=expected) as refused:
        open_records(config, describe(config))
    assert len(str(refused.value).splitlines()) == 1
    assert time.monotonic() - began < 5


def test_pandas_index_is_no_column(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"x": [1.0], "__index_level_0__": [7], "e\u0301": ["a"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert list(read_table("data.public", tmp_path / "a.parquet").columns) == ["x", "\u00e9"]


@pytest.mark.parametrize("source", ["table", "arrays"])
def test_a_pipe_is_not_waited_for(tmp_path, source):
    pipe = tmp_path / ("a.csv" if source == "table" else "a.npz")
    os.mkfifo(pipe)
    given = {"public": str(pipe), "test": str(pipe)} if source == "table" else {"path": str(pipe)}
    with pytest.raises(LabelwallError, match="must be"):
        describe(DataConfig(source, private="p", **given))


def test_an_array_that_inflates_is_refused_before_it_does(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    rows = {"public_x": np.zeros((10**4, 20)), "private_x": np.zeros((10**4, 20))}
    np.savez_compressed(path, **rows, test_x=np.zeros((2, 20)), test_y=np.arange(2))
    config = DataConfig("arrays", path=str(path))
    assert describe(config).input_shape == (20,)
    monkeypatch.setattr(arrays, "PACKED_BYTES", 10**6)
    with pytest.raises(InvalidInput, match=r"`public_x` must be compressed.*numpy\.savez"):
        describe(config)
    assert arrays.required_member(path, "private_x").shape == (10**4, 20)
    np.savez(path, **rows | {"public_x": np.zeros((2, MOST_COLUMNS + 1))})
    with pytest.raises(InvalidInput, match=f"at most {MOST_COLUMNS} numbers"):
        arrays.canonical_rows("public_x", arrays.required_member(path, "public_x"))


def test_images_of_16_bits_are_refused_with_what_makes_them_8():
    rows, white = np.array([[[0, 4095, 65535]]], dtype=np.uint16), 4095
    with pytest.raises(InvalidInput, match="uint16") as caught:
        arrays.canonical_rows("public_x", rows)
    formula = str(caught.value).split("`")[3]
    scaled = eval(formula, {"rows": rows, "white": white})
    assert arrays.canonical_rows("public_x", scaled).ravel().tolist() == [0, 255, 255]
