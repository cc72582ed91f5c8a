"""DuckDB files: cells as they are stored, each row by itself, and nothing of a file is computed."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.datasets.tables import read_table
from labelwall.wall.errors import InvalidInput

duckdb = pytest.importorskip("duckdb")
KINDS = {
    "record_id": ("BIGINT", [7, 2**60, -1, 0]),
    "who": ("VARCHAR", ["a", "b", "a", "c"]),
    "label": ("ENUM('x', 'y')", ["x", "y", "x", "y"]),
    "u": ("DOUBLE", [0.5, 1.5, -2.0, 1e300]),
    "v": ("DECIMAL(10, 2)", ["1.50", "-3.25", "0.00", "7.00"]),
    "w": ("DATE", ["2020-01-02", "1999-12-31", "2024-02-29", "2000-01-01"]),
    'of "three"': (
        "FLOAT[3]",
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [0.5, 0.5, 0.5], [9.0, 9.0, 9.0]],
    ),
}
ROWS = [{name: cells[n] for name, (_, cells) in KINDS.items()} for n in range(4)]
DAMAGES: dict[str, list[Any]] = {
    "record_id": [None, -(2**63), 2**63 - 1],
    "who": [None, "", "x" * 100_000, "a\0b"],
    "label": [None],
    "u": [None, float("nan"), float("inf")],
    "v": [None, "-99999999.99"],
    "w": [None, "infinity", "-infinity", "5877642-06-25 (BC)", "294246-01-01"],
    'of "three"': [None, [None, 1.0, float("nan")]],
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def write(path: Path, rows: list[dict[str, Any]], *more: str) -> None:
    path.unlink(missing_ok=True)
    with duckdb.connect(path) as database:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, (kind, _) in KINDS.items())
        database.execute(f'CREATE TABLE "my rows" ({columns})')
        if rows:
            marks = ", ".join("?" for _ in KINDS)
            cells = [list(row.values()) for row in rows]
            database.executemany(f'INSERT INTO "my rows" VALUES ({marks})', cells)
        for statement in more:
            database.execute(statement)


def cells_of(path: Path) -> list[str]:
    """Each row as a text, which tells NaN from None and numbers from texts."""
    columns = read_table("data.private", path).columns
    assert list(columns) == list(KINDS)
    return [repr(row) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def test_cells_are_those_that_are_stored_and_the_folder_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.duckdb"
    write(path, ROWS, "CREATE VIEW other AS SELECT 1 AS one", "CREATE MACRO two() AS 2")
    before = path.read_bytes()
    columns = read_table("data.private", path).columns
    assert {name: cells.tolist() for name, cells in columns.items()} == {
        name: cells for name, (_, cells) in KINDS.items()
    }
    assert os.listdir(tmp_path) == ["rows.duckdb"]
    assert path.read_bytes() == before


def test_no_row_decides_how_another_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.duckdb"
    write(path, ROWS)
    whole = cells_of(path)
    for at in range(len(ROWS)):
        write(path, ROWS[:at] + ROWS[at + 1 :])
        assert cells_of(path) == whole[:at] + whole[at + 1 :]
    for name, damages in DAMAGES.items():
        for damage in damages:
            write(path, [ROWS[0], {**ROWS[1], name: damage}, *ROWS[2:]])
            found = cells_of(path)
            assert [found[0], *found[2:]] == [whole[0], *whole[2:]], (name, damage)
            assert found[1] != whole[1], (name, damage)
    write(path, [])
    assert cells_of(path) == []


def test_rows_are_the_same_from_each_split(tmp_path: Path) -> None:
    places = {name: str(tmp_path / f"{name}.duckdb") for name in ("private", "public", "test")}
    for place in places.values():
        write(Path(place), ROWS)
    config = DataConfig("table", **places, person="who", keep=["u", "v", "w"])
    public, records = read_public(config), open_records(config, describe(config), unit="person")
    np.testing.assert_array_equal(records.inputs, public.inputs)
    assert records.labels.tolist() == [0, 1, 0, 1]
    assert records.persons is not None
    assert len({*records.persons.tolist()}) == 3


@pytest.mark.parametrize(
    ("statements", "mentioned"),
    [
        (["CREATE TABLE more (a INT)"], "with one table. Found 'more, my rows'"),
        (['DROP TABLE "my rows"'], "with one table. Found 'none'"),
        (
            ['DROP TABLE "my rows"', "CREATE TABLE g (a INT, b INT GENERATED ALWAYS AS (1 // a))"],
            "no generated column",
        ),
    ],
)
def test_a_file_whose_rows_would_be_computed_or_chosen_is_refused(
    tmp_path: Path, statements: list[str], mentioned: str
) -> None:
    write(tmp_path / "rows.duckdb", ROWS, *statements)
    with pytest.raises(InvalidInput) as error:
        read_table("data.private", tmp_path / "rows.duckdb")
    assert mentioned in str(error.value)


def test_a_damaged_file_is_one_line_that_quotes_no_cell(tmp_path: Path) -> None:
    (tmp_path / "rows.duckdb").write_bytes(b"a secret")
    with pytest.raises(InvalidInput, match="readable DuckDB file") as error:
        read_table("data.private", tmp_path / "rows.duckdb")
    assert "secret" not in str(error.value)
