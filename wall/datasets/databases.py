"""Tables of databases: the one table of a DuckDB file, or a query of one PostgreSQL table.

No view, generated column, macro or subquery is computed, so that each row comes from its own cells
alone. Names and types of the columns, and the text of a query, are public.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidInput, extra, listed, require_known
from .data_config import ID

if TYPE_CHECKING:
    import psycopg
    import pyarrow

SUFFIX, QUERY = ".duckdb", ".sql"
# Types that are read as they are; a cell of another one is read as its text
NUMBERS = re.compile(r"(U?(TINYINT|SMALLINT|INTEGER|BIGINT)|FLOAT|DOUBLE)(\[\d*\])?")
CLOSED: dict[str, Any] = {
    "enable_external_access": "false",  # no other file, no network
    "autoload_known_extensions": "false",
    "temp_directory": "",  # no private row on disk
    "arrow_large_buffer_size": "true",  # else long texts of all rows together end the reading
    "preserve_insertion_order": "true",
}
# All that a file with a query can say: each row of its result follows from one row of the table
_NAME = r'(?:[a-z_]\w*|"[^"\0]+")'
_CELL = rf"{_NAME}\s*(?:(?:[=<>]|<>|<=|>=)\s*(?:-?\d+(?:\.\d+)?|'[^'\\\0]*')|is(?:\s+not)?\s+null)"
_FORM = re.compile(
    rf"--\s*(?P<server>\S.*?)\s*\n\s*select\s+(?P<columns>{_NAME}(?:\s*,\s*{_NAME})*)"
    rf"\s+from\s+(?P<table>{_NAME}\.{_NAME})"
    rf"(?P<where>\s+where\s+{_CELL}(?:\s+and\s+{_CELL})*)?\s*;?\s*",
    re.IGNORECASE | re.ASCII,
)
_TOKEN = re.compile(rf"'[^']*'|\b(?:where|and|is|not|null)\b|({_NAME})", re.IGNORECASE | re.ASCII)
_FLOATS, _WHOLE, _OWN = (700, 701), (20, 21, 23), 10_000  # PostgreSQL's types; its own lie below
_ABOUT = """SELECT a.attname, a.atttypid, k.indexrelid IS NOT NULL,
        a.attgenerated = '' AND (t.oid < %(own)s OR t.typtype = 'e')
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_index k ON k.indrelid = c.oid AND k.indisprimary AND k.indnkeyatts = 1
        AND k.indkey[0] = a.attnum
    WHERE c.oid = %(table)s::regclass AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped"""


def stored_table(field: str, path: Path) -> pyarrow.Table:
    """The rows of a DuckDB file in their stored order; texts of damaged cells are null.

    Raises InvalidInput, ImportError without duckdb.
    """
    import duckdb

    try:
        with duckdb.connect(path, read_only=True, config=CLOSED) as database:
            tables = database.sql(
                "SELECT schema_name, table_name, table_oid, sql FROM duckdb_tables() "
                "WHERE NOT internal AND database_name = current_database()"
            ).fetchall()
            if len(tables) != 1:
                cure = "Copy one of them into a file of its own (docs/guide.md says how)."
                names = listed(name for _, name, *_ in tables) or "none"
                raise InvalidInput(field, "a DuckDB file with one table", names, cure)
            schema, name, number, text = tables[0]
            if "GENERATED ALWAYS" in text.upper():
                rule = "a DuckDB file whose table has no generated column"
                raise InvalidInput(field, rule, name)
            columns = database.execute(
                "SELECT column_name, data_type FROM duckdb_columns() WHERE table_oid = ? "
                "AND database_name = current_database() ORDER BY column_index",
                [number],
            ).fetchall()
            cells = ", ".join(_cell(_quoted(column), kind) for column, kind in columns)
            rows = database.sql(f"SELECT {cells} FROM {_quoted(schema)}.{_quoted(name)}")
            return rows.to_arrow_table()
    except duckdb.Error as error:
        rule = "a readable DuckDB file that no program is writing"
        raise InvalidInput(field, rule, str(path)) from error


def _cell(column: str, kind: str) -> str:
    return column if NUMBERS.fullmatch(kind) else f"TRY_CAST({column} AS VARCHAR) AS {column}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def queried(field: str, path: Path) -> dict[str, np.ndarray]:
    """The columns that a query in a file names, and its table's key as ID, in the key's order.

    A cell that is no number is read as its text. Raises InvalidInput, MissingData without psycopg.
    """
    form = _FORM.fullmatch(path.read_text("utf-8", errors="replace"))
    if form is None:
        rule = "-- SERVER, and below it SELECT name, ... FROM schema.table WHERE name > 1 AND ..."
        raise InvalidInput(field, f"a query of the form {rule}", str(path))
    with extra("postgresql", "queries of PostgreSQL"):
        import psycopg
    try:
        server: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(form["server"])
        if "password" in server:
            rule = "without a password, which belongs into ~/.pgpass or PGPASSWORD"
            raise InvalidInput(field, rule, "one")
        # libpq ignores it over a Unix socket; a service's file or PGHOST can name a network, too
        server = {"sslmode": "verify-full"} | server
        with psycopg.connect(**server, client_encoding="utf8") as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            return _answer(field, connection, form)
    except psycopg.Error as error:  # whose own text may quote a cell
        rule = "a query that a server answers"
        raise InvalidInput(field, f"{rule} ({type(error).__name__})", str(path)) from error


def _answer(field: str, server: psycopg.Connection, form: re.Match[str]) -> dict[str, np.ndarray]:
    server.execute("SET LOCAL search_path = ''")  # each operator is PostgreSQL's own
    # A policy, which may see other rows, is an error
    server.execute("SET LOCAL row_security = off")
    names, table, where = (_exact(form[part] or "") for part in ("columns", "table", "where"))
    about = server.execute(_ABOUT, {"table": table[0], "own": _OWN}).fetchall()
    kinds = {name: kind for name, kind, _, stored in about if stored}
    keys = [name for name, _, key, stored in about if key and stored]
    if not keys or server.info.parameter_status("server_encoding") != "UTF8":
        raise InvalidInput(field, "a stored table in UTF-8, with a key of one column", table[0])
    used = "stored columns of PostgreSQL's own types or enums"
    require_known(field, [*names[1], *where[1]], kinds, used)
    numbers = (*_FLOATS, *_WHOLE)
    cells = {n: _quoted(n) if kinds[n] in numbers else f"{_quoted(n)}::text" for n in names[1]}
    cells = {ID: f"{_quoted(keys[0])}::text"} | cells
    query = f"SELECT {', '.join(cells.values())} FROM ONLY {table[0]} AS t {where[0]}"
    with server.cursor("rows") as rows:
        found = list(rows.execute(f"{query} ORDER BY t.{_quoted(keys[0])}".encode()))
    columns = np.array(found, dtype=object).reshape(len(found), len(cells)).T
    floats = [kinds.get(name) in _FLOATS for name in cells]
    return {
        name: column.astype(np.float64) if is_float else column
        for name, column, is_float in zip(cells, columns, floats, strict=True)
    }


def _exact(text: str) -> tuple[str, list[str]]:
    """(a part of a query whose names are quoted, those names)."""
    names = list[str]()

    def quoted(token: re.Match[str]) -> str:
        if token[1] is None:
            return token[0]
        names.append(token[1][1:-1] if token[1][0] == '"' else token[1].lower())
        return _quoted(names[-1])

    return _TOKEN.sub(quoted, text), names
