"""DuckDB files and queries: cells as stored, each row by itself, and nothing is computed."""

import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from labelwall import pipeline
from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.datasets.tables import read_table
from labelwall.wall.errors import InvalidInput
from tests.postgres import DATABASE, OWNER, Server

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


COLUMNS = {
    "number": "bigint",
    "who": "varchar",
    "label": "kind",
    "u": "double precision",
    "v": "numeric(10, 2)",
    "w": "date",
    "Of three": "int",
}
VISITS = [
    (7, "a", "x", 0.5, "1.50", "2020-01-02", 3),
    (2**60, "b", "y", 1.5, "-3.25", "1999-12-31", 4),
    (-1, "a", "x", -2.0, "0.00", "2024-02-29", 5),
    (0, "c", "y", 1e300, "7.00", "2000-01-01", 6),
]
ALL = 'SELECT who, label, u, v, w, "Of three" FROM VISITS'


@dataclass(frozen=True)
class Clinic:
    """A schema with the table visits, and a file with a query of it."""

    server: Server
    schema: str
    file: Path

    def fill(self, rows: list[tuple]) -> None:
        with self.server.login(OWNER) as connection, connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {self.schema}.visits".encode())
            marks = ", ".join("%s" for _ in COLUMNS)
            cursor.executemany(f"INSERT INTO {self.schema}.visits VALUES ({marks})".encode(), rows)

    def write(self, file: Path, query: str, role: str = OWNER, more: str = "") -> None:
        server = f"host={self.server.home} user={role} dbname={DATABASE} {more}"
        file.write_text(f"-- {server}\n{query.replace('VISITS', f'{self.schema}.visits')}\n")

    def ask(self, query: str, role: str = OWNER, more: str = "") -> dict[str, list]:
        """The cells by column of a query, in which VISITS stands for the table."""
        self.write(self.file, query, role, more)
        columns = read_table("data.private", self.file).columns
        return {name: cells.tolist() for name, cells in columns.items()}


@pytest.fixture
def clinic(postgres: Server, tmp_path: Path) -> Clinic:
    schema = f"s{uuid.uuid4().hex}"
    kinds = {**COLUMNS, "label": f"{schema}.kind"}
    columns = ", ".join(f'"{name}" {kind}' for name, kind in kinds.items())
    postgres.administer(
        f"CREATE SCHEMA {schema}",
        f"CREATE TYPE {schema}.kind AS ENUM ('x', 'y')",
        f"CREATE TABLE {schema}.visits ({columns}, PRIMARY KEY (number))",
    )
    clinic = Clinic(postgres, schema, tmp_path / "rows.sql")
    clinic.fill(VISITS)
    return clinic


def test_a_query_reads_cells_as_they_are_stored_in_the_order_of_the_key(clinic: Clinic) -> None:
    _, who, label, u, v, w, three = zip(*sorted(VISITS), strict=True)
    cells = {"who": who, "label": label, "u": u, "v": v, "w": w, "Of three": three}
    expected = {"record_id": ["-1", "0", "7", str(2**60)]} | {n: [*c] for n, c in cells.items()}
    assert clinic.ask(ALL) == expected
    clinic.server.administer(f"UPDATE {clinic.schema}.visits SET u = u WHERE number = -1")  # moves
    assert clinic.ask(ALL.lower().replace("visits", "VISITS").replace("of th", "Of th") + ";")
    assert clinic.ask("select number from VISITS")["number"] == [-1, 0, 7, 2**60]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("u > 0", [0, 7, 2**60]),
        ("WHO <> 'a' and u >= -2.0", [0, 2**60]),
        ("w < '2020-01-02' AND label = 'x'", []),
        ('"Of three" is not null and v = -3.25', [2**60]),
        ("who IS NULL", []),
        ("who = 'x and y > 1'", []),
    ],
)
def test_conditions_are_on_a_rows_own_cells(clinic: Clinic, where: str, kept: list) -> None:
    found = clinic.ask(f"SELECT number, u FROM VISITS\nWHERE {where}")
    assert found["number"] == kept
    assert len(found["u"]) == len(kept)


def test_no_row_of_a_table_decides_how_another_is_read(clinic: Clinic) -> None:
    def rows() -> dict[str, str]:
        columns = clinic.ask(ALL)
        cells = map(repr, zip(*columns.values(), strict=True))
        return dict(zip(columns["record_id"], cells, strict=True))

    whole = rows()
    for at, row in enumerate(VISITS):
        clinic.fill(VISITS[:at] + VISITS[at + 1 :])
        assert rows() == {name: cells for name, cells in whole.items() if name != str(row[0])}
    for place, damage in [
        (1, None),
        (1, "x" * 9_999),
        (3, None),
        (3, "NaN"),
        (4, "NaN"),
        (6, None),
    ]:
        damaged = (*VISITS[1][:place], damage, *VISITS[1][place + 1 :])
        clinic.fill([VISITS[0], damaged, *VISITS[2:]])
        found = rows()
        assert found.pop(str(2**60)) != whole[str(2**60)]
        assert found == {name: cells for name, cells in whole.items() if name != str(2**60)}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM VISITS",
        "SELECT count(u) FROM VISITS",
        "SELECT DISTINCT u FROM VISITS",
        "SELECT u FROM VISITS LIMIT 2",
        "SELECT u FROM VISITS ORDER BY u",
        "SELECT u FROM VISITS a JOIN VISITS b ON true",
        "SELECT u FROM VISITS, VISITS",
        "SELECT u FROM VISITS WHERE u > (SELECT avg(u) FROM VISITS)",
        "SELECT u FROM VISITS WHERE u > 1 OR u < 0",
        "SELECT u FROM VISITS WHERE u > v",
        "SELECT u + 1 FROM VISITS",
        "SELECT u FROM VISITS; DROP TABLE VISITS",
        "SELECT u FROM VISITS -- all of them",
        "SELECT u FROM visits",
        "UPDATE VISITS SET u = 1",
        "SELECT u FROM VISITS WHERE who = E'\\x61'",
    ],
)
def test_what_may_mix_rows_is_no_query(clinic: Clinic, query: str) -> None:
    with pytest.raises(InvalidInput, match="a query of the form"):
        clinic.ask(query)


@pytest.mark.parametrize(
    ("statement", "query", "mentioned"),
    [
        ("", "SELECT ctid FROM VISITS", "of PostgreSQL's own types or enums, of number, who"),
        ("", "SELECT u FROM VISITS WHERE xmin > 1", "Found 'xmin'"),
        ("", "SELECT distinct FROM VISITS", "Found 'distinct'"),
        ("", "SELECT us FROM VISITS", "Did you mean 'u'?"),
        ("", "SELECT u FROM VISITS WHERE w > 'never'", "InvalidDatetimeFormat"),
        ("", "SELECT u FROM VISITS WHERE who > 1", "UndefinedFunction"),
        ("", "SELECT u FROM nowhere.nothing", "UndefinedTable|InvalidSchemaName"),
        ("CREATE VIEW {s}.seen AS SELECT * FROM {s}.visits", "SELECT u FROM S.seen", "stored"),
        ("CREATE TABLE {s}.keyless (u int)", "SELECT u FROM S.keyless", "with a key"),
        (
            "ALTER TABLE {s}.visits ADD g int GENERATED ALWAYS AS (1) STORED",
            "SELECT g FROM VISITS",
            "Found 'g'",
        ),
    ],
)
def test_what_is_no_stored_cell_is_refused(
    clinic: Clinic, statement: str, query: str, mentioned: str
) -> None:
    if statement:
        clinic.server.administer(statement.format(s=clinic.schema))
    with pytest.raises(InvalidInput, match=mentioned) as error:
        clinic.ask(query.replace("S.", f"{clinic.schema}."))
    assert "\n" not in str(error.value)


def test_a_policy_or_a_child_table_chooses_no_row(clinic: Clinic) -> None:
    s = clinic.schema
    clinic.server.administer(
        f"CREATE TABLE {s}.child () INHERITS ({s}.visits)",
        f"INSERT INTO {s}.child (number, u) VALUES (99, 1)",
        f"CREATE ROLE {s} LOGIN",
        f"GRANT USAGE ON SCHEMA {s} TO {s}",
        f"GRANT SELECT ON {s}.visits TO {s}",
    )
    assert len(clinic.ask(ALL, s)["u"]) == 4
    clinic.server.administer(
        f"ALTER TABLE {s}.visits ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY few ON {s}.visits USING (u >= (SELECT max(u) FROM {s}.child))",
    )
    with pytest.raises(InvalidInput, match="InsufficientPrivilege"):
        clinic.ask(ALL, s)


def test_a_password_is_refused_and_not_repeated(clinic: Clinic) -> None:
    with pytest.raises(InvalidInput, match=r"~/\.pgpass") as error:
        clinic.ask(ALL, more="password=secret")
    assert "secret" not in str(error.value)
    clinic.file.write_text("-- host=/nowhere user=secret\nselect a from b.c")
    with pytest.raises(InvalidInput, match="OperationalError") as error:
        read_table("data.private", clinic.file)
    assert "secret" not in str(error.value)


def test_a_run_of_queries_records_their_files_alone(clinic: Clinic, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [
        (n, f"p{n}", "xy"[n % 2], n % 2 + rng.normal() / 2, 0, None, n // 2) for n in range(700)
    ]
    clinic.fill(rows)
    parts = {"private": "< 200", "public": "> 279", "test": ">= 200"}
    for split, part in parts.items():
        also = ' and "Of three" < 280' * (split == "test")
        query = f'SELECT label, u, v FROM VISITS WHERE "Of three" {part}{also}'
        clinic.write(tmp_path / f"{split}.sql", query)
    command = "run --private private.sql --public public.sql --test test.sql --epsilon 5 --quiet"
    command += " --run_dir run --mechanism.kind private_linear --student.steps 20 --threads 1"
    assert pipeline.main(command.split()) == 0
    assert pipeline.main(["audit", "run"]) == 0
    home = str(clinic.server.home).encode()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".sql"]
    assert len(files) > 10
    assert not [path for path in files if home in path.read_bytes()]
    assert clinic.ask("SELECT u FROM VISITS")["u"] == [float(row[3]) for row in rows]


@pytest.mark.parametrize(
    ("server", "mode"),
    [
        ("host=db.example dbname=clinic", "verify-full"),
        ("hostaddr=192.0.2.1", "verify-full"),
        ("service=clinic", "verify-full"),  # whose file names the host
        ("dbname=clinic", "verify-full"),  # PGHOST may name one
        ("postgresql://ann@db.example/clinic?sslmode=require", "require"),
    ],
)
def test_a_certificate_is_verified_wherever_the_host_is_named(
    tmp_path: Path, monkeypatch, server: str, mode: str
) -> None:
    asked = dict[str, Any]()

    def connect(**settings: Any) -> None:
        asked.update(settings)
        raise psycopg.OperationalError("nobody is there")

    monkeypatch.setattr(psycopg, "connect", connect)
    (file := tmp_path / "visits.sql").write_text(f"-- {server}\nSELECT age FROM own.visits\n")
    with pytest.raises(InvalidInput, match="OperationalError"):
        read_table("data.private", file)
    assert asked["sslmode"] == mode
