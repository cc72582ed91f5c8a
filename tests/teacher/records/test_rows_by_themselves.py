"""Add, remove or damage any one private row in any column: all others keep id, person, label and
inputs, to the byte. Over every reader of private rows."""

import io
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import describe
from labelwall.wall.datasets.tables import encoding
from labelwall.wall.errors import InvalidInput
from labelwall.wall.guarantee import UNITS
from tests.teacher.records.neighbours import (
    BIG,
    LINE_ENDS,
    NEW,
    ROWS,
    TEXTS,
    Row,
    csv_bytes,
    known,
    tried,
)
from tests.wall.datasets.small import PUBLIC_TEXTS, text_of, write_text_folders


def table_config(folder, private, **settings):
    public = "u,v,label\n0,0,a\n2,5,b\n"
    for split in ("public", "test"):
        (folder / f"{split}.csv").write_text(public)
    places = {split: str(folder / f"{split}.csv") for split in ("public", "test")}
    return DataConfig("table", private=str(private), person="who", **places, **settings)


@pytest.mark.parametrize(("separator", "end"), [(b";", b"\n"), *((b",", end) for end in LINE_ENDS)])
@pytest.mark.parametrize("unit", UNITS)
def test_lines_of_a_csv_file(tmp_path, unit, separator, end):
    path, names = tmp_path / "private.csv", list(ROWS[0])
    config = table_config(tmp_path, path)

    def write(rows):
        path.write_bytes(csv_bytes(rows, names, separator, end))

    count = tried(ROWS, dict.fromkeys(names, TEXTS), NEW, write, config, unit)
    assert count == 3 + 5 * (1 + 5 * len(TEXTS))


# A cell as other columns, tables and programs write one.
OTHERS: list[Any] = ["1.234,5 kg", "1,234.5", "5 g", "12/31/2024", " \u00c9T\u00c9 ", "e\u0301t"]
OTHERS += ["1.0", "9" * 5000, b"\xe9", b"\x00", b"\x81", b"\n\x00", "a;b", "\u0a0a\u000a"]
OTHERS += [b"\r", b"\x00\r", "\n", "\r", "\u0d0d\u000d", "K\u00f6ln".encode("cp1252")]
WRITTEN = [
    {
        "key": f"k{n}",
        "who": f"p{n}",
        "label": ["\u00e9t\u00e9", "1"][n % 2],
        "u": f"1.00{n},5 kg",
        "v": f"1{n}/02/2024",
        "w": "pq"[n % 2],
    }
    for n in range(2)
]


@pytest.mark.parametrize(
    ("form", "end"),
    [
        *((form, "\n") for form in ("cp1252", "sep=", "ends")),
        ("utf-8", "\r"),
    ],
)
def test_a_cell_in_another_form_changes_no_other_row(tmp_path, form, end):
    """Bytes that break a row's characters, marks, units and dates concern that row alone."""
    path, names, encoded = tmp_path / "private.csv", [*WRITTEN[0], ""], form
    if form in ("sep=", "ends"):
        encoded = "utf-8"
    columns = {split: str(tmp_path / f"{split}.csv") for split in ("public", "test")}
    shown = [f"1.00{n},5 kg;2{n}/02/2024;{'pq'[n % 2]};" for n in range(9)]
    lines = [line + WRITTEN[n % 2]["label"] for n, line in enumerate(shown)]
    for place in columns.values():
        Path(place).write_text("\n".join(["u;v;w;label", *lines * 2]), encoding="utf-8")
    config = DataConfig("table", private=str(path), person="who", id="key", **columns)
    assert {column.how for column in encoding(config).columns} == {
        "number, decimal comma, thousands by '.', unit kg",
        "date like 31/12/2024",
        "category",
    }

    def write(rows):
        def cell(value):
            return value if isinstance(value, bytes) else value.encode(encoded, "ignore")

        mark = b"sep=;" + cell(end) if form == "sep=" else b""
        last = [""] * (form == "ends")
        table = [names[:-1] + last, *([row[n] for n in names[:-1]] + last for row in rows)]
        content = cell(end).join(cell(";").join(map(cell, row)) for row in table)
        path.write_bytes(mark + content + cell(end))

    damages = dict.fromkeys(names[:-1], OTHERS)
    new = WRITTEN[0] | {"key": "new", "who": "new"}
    assert tried(WRITTEN, damages, new, write, config, "person") == 3 + 2 * (1 + 6 * len(OTHERS))


@pytest.mark.parametrize("reader", ["csv", "arrays"])
def test_rows_of_persons_have_their_persons_numbers(tmp_path, reader):
    """Without ids of their own, rows are numbered among their person's: others' do not move."""
    path, names = tmp_path / "private.csv", ["who", "label", "u", "v"]
    config, damages = table_config(tmp_path, path), dict.fromkeys(names, TEXTS)
    if reader == "arrays":
        config, damages = arrays_config(tmp_path), {"who": ["", "x" * 300]}

    def write(rows):
        if reader == "arrays":
            write_arrays(tmp_path, rows, ids=False)
        else:
            path.write_bytes(csv_bytes(rows, names))

    tried(ROWS, damages, NEW, write, config, "person")
    several = [row | {"who": "p0"} for row in ROWS[:2]] + ROWS[2:]
    write(several)
    before = known(config, "person")
    write(several[1:])  # p0 keeps a row, and the others theirs
    after = known(config, "person")
    assert len(set(before) - set(after)) == 1
    assert {i: row for i, row in after.items() if row[0] != before[i][0]} == {}


def test_one_file_with_a_column_of_splits(tmp_path):
    """Its words are public: blanks and case do not matter, and any other word is refused."""
    path, names = tmp_path / "all.csv", [*ROWS[0], "part"]
    public = [{"record_id": "", "who": "", "label": y, "u": u, "v": 0} for y, u in ("a0", "b2")]
    shown = [row | {"part": split} for row in public for split in ("public", " Test")]
    config = DataConfig("table", path=str(path), split="part", person="who")
    rows = [row | {"part": " Private "} for row in ROWS]

    def write(private):
        path.write_bytes(csv_bytes([*shown, *private], names))

    damages = {name: TEXTS for name in ROWS[0] if name != "part"}
    tried(rows, damages, NEW | {"part": "PRIVATE"}, write, config, "row")
    for word in ("privat", "", "private\u00e9", "nan"):
        write([rows[0] | {"part": word}, *rows[1:]])
        with pytest.raises(InvalidInput, match=r"data\.split.*private, public or test") as refused:
            known(config, "row")
        assert len(str(refused.value).splitlines()) == 1
        assert word not in str(refused.value) or word in ("", "privat")


# --- parquet and datasets


def arrow_schemas():
    """By name: a schema, rows, damages, further settings."""
    pa = pytest.importorskip("pyarrow")
    whole, text, real = pa.int64(), pa.string(), pa.float64()
    numbers = [None, -1, 0, BIG, 2**63 - 1, -(2**63)]
    words = [None, "", " ", "x" * 100_000, b"\xff", b"\xe2\x82", "\ufeff", "a\nb", str(BIG)]
    reals = [None, float("nan"), float("inf"), 1e308, -0.0]
    lists = [None, [], [None], [1.0], [1.0, 2.0, 3.0], [float("nan"), 0.0], [None, 1.0]]
    days = [None, -(2**62), 2**62, 0]
    plain = {"u": reals, "v": reals}
    base = [{"label": "ab"[n % 2], "u": float(n), "v": n + 0.5} for n in range(4)]
    numbered = [row | {"record_id": BIG + n, "who": BIG + n} for n, row in enumerate(base)]
    named = [row | {"record_id": f"r{n}", "who": f"p{n}"} for n, row in enumerate(base)]
    vectors = [row | {"label": [float(n)]} for n, row in enumerate(numbered)]
    codes = [row | {"label": n % 2} for n, row in enumerate(numbered)]

    def schema(key, label):
        columns = [("record_id", key), ("who", key), ("label", label), ("u", real), ("v", real)]
        return pa.schema(columns)

    def keys(values):
        return {"record_id": values, "who": values}

    values = {"labels": "value", "bounds": [0.0, 10.0]}
    dated = [row | {"record_id": n * 10**9, "who": 10**9 * n} for n, row in enumerate(base)]
    coded = schema(pa.dictionary(pa.int32(), text), text)
    return {
        "numbers": (schema(whole, text), numbered, keys(numbers) | plain | {"label": words}, {}),
        "texts": (schema(text, text), named, keys(words) | plain, {}),
        "coded": (coded, named, keys([None, "other"]) | plain, {}),
        "lists": (schema(whole, pa.list_(real)), vectors, keys(numbers) | {"label": lists}, values),
        "whole labels": (schema(whole, whole), codes, {"label": numbers}, {"classes": ["0", "1"]}),
        "dates": (schema(pa.timestamp("ns"), text), dated, keys(days) | plain, {}),
    }


def arrow_table(schema, rows):
    import pyarrow as pa

    def column(field):
        cells = [row[field.name] for row in rows]
        if any(isinstance(cell, bytes) for cell in cells):  # texts that are not UTF-8
            parts = [c.encode() if isinstance(c, str) else c for c in cells]
            return pa.array(parts, pa.binary()).view(field.type)
        if pa.types.is_dictionary(field.type):
            return pa.array(cells, field.type.value_type).dictionary_encode()
        return pa.array(cells, field.type)

    return pa.table([column(field) for field in schema], schema=schema)


@pytest.mark.parametrize("reader", ["parquet", "datasets"])
@pytest.mark.parametrize("name", ["numbers", "texts", "coded", "lists", "whole labels", "dates"])
def test_cells_of_a_typed_table(tmp_path, name, reader, monkeypatch):
    schema, rows, damages, settings = arrow_schemas()[name]
    from pyarrow import parquet

    path = tmp_path / ("private.parquet" if reader == "parquet" else "saved")
    config = table_config(tmp_path, path, **settings)
    if name == "lists":
        for split in ("public", "test"):
            (tmp_path / f"{split}.csv").write_text("u,v,label\n0,0,1\n2,5,2\n")
    if name == "whole labels":
        (tmp_path / "test.csv").write_text("u,v,label\n0,0,0\n2,5,1\n")
    saved: list[Any] = []
    if reader == "datasets":
        path.mkdir()
        (path / "state.json").write_text("{}")
        opened = types.SimpleNamespace(with_format=lambda kind: _Sliced(saved[-1]))
        library = types.SimpleNamespace(load_from_disk=lambda folder: opened)
        monkeypatch.setitem(sys.modules, "datasets", library)

    def write(private):
        table = arrow_table(schema, private)
        if reader == "parquet":
            parquet.write_table(table, path)
        else:
            saved.append(table)

    new = rows[0] | {"record_id": None, "who": None}
    for unit in UNITS:
        assert tried(rows, damages, new, write, config, unit) >= 30


class _Sliced:
    def __init__(self, table):
        self._table = table

    def __getitem__(self, rows):
        return self._table[rows]


def test_floating_ids_are_refused(tmp_path):
    """A library that writes a null as NaN has rounded all ids of the column by then."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for column in ("record_id", "who"):
        columns: dict[str, Any] = {"record_id": [1, 2], "who": ["a", "b"], "label": ["a", "b"]}
        columns |= {"u": [0.0, 1.0], "v": [1.0, 2.0], column: [1.0, float("nan")]}
        parquet.write_table(pa.table(columns), tmp_path / "private.parquet")
        config = table_config(tmp_path, tmp_path / "private.parquet")
        with pytest.raises(InvalidInput, match="whole numbers or texts"):
            known(config, "person")


# --- arrays


def arrays_config(folder):
    return DataConfig("arrays", path=str(folder / "data.npz"))


def write_arrays(folder, rows, *, ids=True, npz=True, kind=int):
    public = {"public_x": np.zeros((3, 2)), "test_x": np.ones((2, 2)), "test_y": np.arange(2)}
    public["test_y"] = public["test_y"].astype(kind)
    arrays = {
        "private_x": np.array([[float(row["u"]), float(row["v"])] for row in rows]),
        "private_y": np.array([row.get("y", "ab".index(row["label"])) for row in rows]).astype(
            kind
        ),
        "private_person": np.array([row["who"] for row in rows], dtype=str),
        **public,
    }
    if ids:
        arrays["private_id"] = np.array([row["key"] for row in rows], dtype=np.int64)
    if npz:
        np.savez(folder / "data.npz", **arrays)
    for name, array in {} if npz else arrays.items():
        np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize("kind", [float, str])
def test_labels_of_arrays(tmp_path, kind):
    rows = [row | {"key": n, "y": n % 2} for n, row in enumerate(ROWS)]
    other: list[Any] = [0.5, float("nan"), float("inf"), 1e300, -0.0, 2]
    if kind is str:
        other = ["", " 1.0", "0.0", "x" * 999, "nan", "\ud800", "\U0010ffff", "e\u0301"]

    def write(private):
        write_arrays(tmp_path, private, kind=kind)

    tried(rows, {"y": other}, NEW | {"key": 9, "y": 1}, write, arrays_config(tmp_path), "row")


@pytest.mark.parametrize("npz", [True, False], ids=["npz", "npy"])
@pytest.mark.parametrize("unit", UNITS)
def test_entries_of_arrays(tmp_path, unit, npz):
    rows = [row | {"key": BIG + n} for n, row in enumerate(ROWS)]
    damages: dict[str, list[Any]] = {
        "u": ["nan", "inf", "1e300", "-0.0", "9" * 30],
        "y": [-1, 2, 2**63 - 1],
        "key": [0, -1, 2**63 - 1, -(2**63)],
        "who": ["", " ", "x" * 300, "\ud800", "\U0010ffff", "p\x00q"],
    }
    config = arrays_config(tmp_path)
    if not npz:
        config = DataConfig("arrays", path=str(tmp_path))

    def write(private):
        write_arrays(tmp_path, private, npz=npz)

    assert tried(rows, damages, NEW | {"key": 5}, write, config, unit) == 3 + 5 * 19


def test_a_name_of_no_characters_is_nobodys(tmp_path):
    write_arrays(tmp_path, ROWS, ids=False)
    stored = dict(np.load(tmp_path / "data.npz"))
    stored["private_person"].view(np.uint32)[0] = 0x110000
    np.savez(tmp_path / "data.npz", **stored)
    assert len(known(arrays_config(tmp_path), "person")) == len(ROWS) - 1


# --- columns and folders of texts


DOCUMENTS = [
    {"record_id": f"r{n}", "who": f"p{n}", "label": kind, "body": text_of(kind, 100 + n)}
    for n, kind in enumerate(("cat", "dog", "cat"))
]
DOCUMENT = {"record_id": "new", "who": "new", "label": "dog", "body": text_of("dog", 7)}


@pytest.mark.parametrize("unit", UNITS)
def test_a_column_of_texts(tmp_path, unit):
    path, kinds = tmp_path / "private.csv", ("cat", "dog") * (len(PUBLIC_TEXTS) // 2)
    config = table_config(tmp_path, path)
    public = "\n".join(["body,label", *map(",".join, zip(PUBLIC_TEXTS, kinds, strict=True))])
    for name in ("public", "test"):
        (tmp_path / f"{name}.csv").write_text(public)

    def write(rows):
        path.write_bytes(csv_bytes(rows, list(DOCUMENT)))

    damages = {"body": [*TEXTS, " ".join(PUBLIC_TEXTS * 20).encode()]}
    assert tried(DOCUMENTS, damages, DOCUMENT, write, config, unit) == 3 + 3 * (2 + len(TEXTS))


@pytest.mark.parametrize("unit", UNITS)
def test_a_folder_of_texts(tmp_path, unit):
    places = write_text_folders(tmp_path, private=0)
    config = DataConfig("table", person="path", **places)
    root, content = Path(places["private"]), [b"", b"\xff\xfe", b"a\0b", b"\xef\xbb\xbfx" * 99_999]

    def write(rows):
        for path in root.rglob("*.txt"):
            path.unlink()
        for row in rows:
            place = root / row["label"] / row["who"] / f"{row['record_id']}.txt"
            place.parent.mkdir(parents=True, exist_ok=True)
            body = row["body"]
            if isinstance(body, Path):
                place.symlink_to(body)
            else:
                place.write_bytes(body if isinstance(body, bytes) else body.encode())

    links = [Path("nowhere.txt"), Path("x" * 300)]  # of the second Python's is_file raises OSError
    damages = {"body": [*content, *links], "label": ["ghost", "dog"]}
    assert tried(DOCUMENTS, damages, DOCUMENT, write, config, unit) == 3 + 3 * 9


def test_two_texts_whose_paths_differ_by_a_blank_are_two_records(tmp_path):
    places = write_text_folders(tmp_path, private=3)
    config = DataConfig("table", **places)
    before = open_records(config, describe(config))
    blank = Path(places["private"], " cat", "1.txt")
    blank.parent.mkdir()
    blank.write_text("another cat")
    after = open_records(config, describe(config))
    assert set(before.ids) <= set(after.ids)
    kept = np.isin(after.ids, before.ids)
    assert np.array_equal(
        after.inputs[kept][np.argsort(after.ids[kept])], before.inputs[np.argsort(before.ids)]
    )


# --- image folders and their lists of attributes and persons


def image_bytes(shade, size=(8, 8), form="PNG"):
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 2 * shade, 0)).save(buffer, format=form)
    return buffer.getvalue()


def too_large():
    """A grey PNG of 13,300 x 13,300 pixels by its header, which Pillow would decode."""
    buffer = io.BytesIO()
    Image.new("1", (13_300, 13_300)).save(buffer, format="PNG")
    return buffer.getvalue()


IMAGES = [image_bytes(9 * n) for n in range(4)]
FILES: list[Row] = [
    {"path": f"{'ab'[n % 2]}/p{n}/{n}.png", "file": IMAGES[n], "who": f"p{n}", "x": "1", "y": "0"}
    for n in range(4)
]
BAD = [b"", b"text", IMAGES[0][:50], image_bytes(1, (3, 90)), image_bytes(1, form="ICO")]
BAD += [image_bytes(1, form="TIFF")]
BAD += [image_bytes(1, form="GIF"), image_bytes(200, form="JPEG"), too_large()]
PATHS = ["c/p0/0.png", "0.png", "a/0.png", "a/p9/\u00e9.png", "a/p9/9.txt", "a/.p/0.png"]


def folder_config(root, **settings):
    """Public and test folders with both classes, and a metadata.csv."""
    for split in ("public", "test"):
        for name in ("a", "b"):
            (root / split / name).mkdir(parents=True, exist_ok=True)
            (root / split / name / "0.png").write_bytes(image_bytes(7))
        lines = "path,x,y,who\na/0.png,1,0,e\nb/0.png,0,1,f\n"
        (root / split / "metadata.csv").write_text(lines)
    places = {split: str(root / split) for split in ("private", "public", "test")}
    return DataConfig("folder", image_size=8, **places, **settings)


def write_folder(root, rows, end=b"\n"):
    """The images and a metadata.csv, by the rows' columns."""
    folder = root / "private"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for row in rows:
        path = folder / row.get("place", row["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(row["file"])
    (folder / "metadata.csv").write_bytes(csv_bytes(rows, ["path", "x", "y", "who"], end=end))


@pytest.mark.parametrize(
    ("labels", "person", "end"),
    [
        ("class", "path", b"\n"),
        ("class", "who", b"\n"),
        ("attributes", "who", b"\n"),
        ("attributes", "who", b"\r"),
        ("metadata", "who", b"\n"),
        ("value", "who", b"\r\n"),
    ],
)
def test_files_and_lines_of_image_folders(tmp_path, labels, person, end):
    label = {"metadata": {"label": "x"}, "value": {"label": "x", "bounds": [0.0, 1.0]}}
    kind = "class" if labels == "metadata" else labels
    config = folder_config(tmp_path, labels=kind, person=person, **label.get(labels, {}))
    rows = [row | {"place": row["path"]} for row in FILES]
    lines = [text for text in TEXTS if text not in ("", " ", ",")]
    damages = {"file": BAD, "place": PATHS, "path": lines, "who": TEXTS, "x": TEXTS}
    if person == "path":
        damages = {"file": BAD, "place": PATHS}
    elif labels == "class":
        del damages["x"]
    new = FILES[0] | {"path": "b/new/n.png", "place": "b/new/n.png", "who": "new"}
    count = tried(rows, damages, new, lambda r: write_folder(tmp_path, r, end), config, "person")
    assert count >= (50 if person == "path" else 200)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_beyond_the_limit_are_refused_by_their_header(monkeypatch, tmp_path):
    from PIL import PngImagePlugin

    from labelwall.wall.datasets.readers import MAX_PIXELS, decode

    (tmp_path / "bomb.png").write_bytes(too_large())
    assert MAX_PIXELS < 13_300**2
    assert decode(tmp_path / "bomb.png", (8, 8), 3) is None
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda self: pytest.fail("decoded"))
    assert decode(tmp_path / "bomb.png", (8, 8), 3) is None
