"""docs/results.md, made of docs/results.md.jinja and the files of benchmarks/results.

    python benchmarks/page.py

The template is Jinja's. `table(head, part(NAME, cells), ...)` is a table with a row for each row of
NAME.json; cells stand between bars, `{column}` is a value, and `[...]` is left out where a value in
it is missing. `pivot(NAME, corner, down, across, cell)` has a row and a column for each text of two
cells, and `about(NAME)` is how the numbers were measured.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).parents[1]
TEMPLATE, PAGE = ROOT / "docs" / "results.md.jinja", ROOT / "docs" / "results.md"
RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]
Where = dict[str, list[str]] | None  # columns, and the values that are shown


@cache
def stored(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text())


def rows_of(name: str, where: Where) -> list[Row]:
    """The rows of all runs whose columns have one of the values of ``where``.

    A number has as many decimals as any in its column, but an epsilon as many as it needs.
    """
    file = stored(name)
    rows = [dict(zip(file["columns"], row, strict=True)) for r in file["runs"] for row in r["rows"]]
    for column in file["columns"]:
        floats = [row[column] for row in rows if isinstance(row[column], float)]
        decimals = max((len(repr(value).partition(".")[2]) for value in floats), default=0)
        for row in rows:
            row[column] = shown(row[column], None if column == "epsilon" else decimals)
    where = where or {}
    return [row for row in rows if all(row[column] in where[column] for column in where)]


def shown(value: Any, decimals: int | None) -> str:
    """A cell's text; nothing for what was not measured."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}" if decimals is None else f"{value:.{decimals}f}"
    return value or ""


def filled(cell: str, row: Row) -> str:
    """A cell's text: its values, and no optional part or no text at all where one is missing."""

    def values(text: str) -> str:
        whole = all(row[name] for name in re.findall(r"\{(.+?)\}", text))
        return re.sub(r"\{(.+?)\}", lambda found: row[found[1]], text) if whole else ""

    return values(re.sub(r"\[(.*?\{.*?)\]", lambda found: values(found[1]), cell.strip()))


def part(name: str, cells: str, by: str = "", where: Where = None) -> Iterator[list[str]]:
    """Cells of each row.

    ``by``: rows that agree in this cell are one, with cells that differ side by side.
    """
    groups: dict[str, list[list[str]]] = {}
    for number, row in enumerate(rows_of(name, where)):
        line = [filled(cell, row) for cell in cells.split("|")]
        groups.setdefault(filled(by, row) or str(number), []).append(line)
    for lines in groups.values():
        yield [
            same[0] if len({*same}) == 1 else ", ".join(same) for same in zip(*lines, strict=True)
        ]


def lines(head: list[str], rows: list[list[str]]) -> str:
    rule = "|---" * len(head) + "|"
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


def table(head: str, *parts: Iterator[list[str]]) -> str:
    return lines([cell.strip() for cell in head.split("|")], [row for own in parts for row in own])


def pivot(name: str, corner: str, down: str, across: str, cell: str, where: Where = None) -> str:
    """A table with a row for each text of the cell ``down``, a column for each of ``across``."""
    found: dict[str, dict[str, str]] = {}
    for row in rows_of(name, where):
        found.setdefault(filled(down, row), {})[filled(across, row)] = filled(cell, row)
    head = list(dict.fromkeys(column for cells in found.values() for column in cells))
    body = [[own, *(cells.get(column, "") for column in head)] for own, cells in found.items()]
    return lines([corner, *head], body)


def about(name: str) -> str:
    """What was measured, by which command, at which commits and with which seeds."""
    file = stored(name)
    commands = list(dict.fromkeys(run["command"] for run in file["runs"]))
    said = commands[0] if commands[0].startswith("unknown") else f"`{commands[0]}`"
    more = f" and {len(commands) - 1} more" if len(commands) > 1 else ""
    facts = [few(file["runs"], "commit"), few(file["runs"], "seeds")]
    facts.append(f"[{name}.json](../benchmarks/results/{name}.json)")
    return f"{file['setting']} By {said}{more} ({'; '.join(filter(None, facts))})."


def few(runs: list[dict[str, Any]], field: str) -> str:
    """The commits or the seeds of the runs, where they are no more than six."""
    values = [run[field] for run in runs]
    if any(isinstance(value, dict) for value in values):
        return ""
    texts = [str(text) for each in values for text in (each if isinstance(each, list) else [each])]
    texts = list(dict.fromkeys(texts))
    if len(texts) > 6 or texts in (["fresh noise"], ["no draw"]):
        return "" if len(texts) > 6 else texts[0]
    return f"{field.removesuffix('s')}{'s' * (len(texts) > 1)} {', '.join(texts)}"


def page() -> str:
    """The whole page."""
    template = jinja2.Template(TEMPLATE.read_text(), undefined=jinja2.StrictUndefined)
    return template.render(table=table, part=part, pivot=pivot, about=about) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
