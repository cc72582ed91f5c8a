"""DuckDB files: the one table that a file has, as it is stored.

A file's text decides nothing: no view, generated column or macro of it is computed, so that each
row comes from its own cells alone. Names and types of the columns are public.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, listed

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".duckdb"
# Types that are read as they are; a cell of another one is read as its text
NUMBERS = re.compile(r"(U?(TINYINT|SMALLINT|INTEGER|BIGINT)|FLOAT|DOUBLE)(\[\d*\])?")
CLOSED: dict[str, Any] = {
    "enable_external_access": "false",  # no other file, no network
    "autoload_known_extensions": "false",
    "temp_directory": "",  # no private row on disk
    "arrow_large_buffer_size": "true",  # else long texts of all rows together end the reading
    "preserve_insertion_order": "true",
}


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
