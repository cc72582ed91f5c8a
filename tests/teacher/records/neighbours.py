"""Private data sets that differ by one row, and what of a reader's rows must then be the same."""

from collections.abc import Callable, Iterator
from typing import Any

from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.sources import describe
from labelwall.wall.guarantee import Unit

BIG = 2**53 + 1  # float64 has no such number
Row = dict[str, Any]
Known = dict[int, tuple[int, int, bytes]]  # (person, label, inputs) by id


def known(config: DataConfig, unit: Unit) -> Known:
    records = open_records(config, describe(config), unit=unit)
    columns = zip(records.owners.tolist(), records.labels.tolist(), records.inputs, strict=True)
    return {
        i: (p, y, x.tobytes()) for i, (p, y, x) in zip(records.ids.tolist(), columns, strict=True)
    }


def changes(rows: list[Row], damages: dict[str, list[Any]], new: Row) -> Iterator[list[Row]]:
    """Every change of one row: the first place of the result is that row's old self, or None."""
    for at in (0, len(rows) // 2, len(rows)):
        yield [None, *rows[:at], new, *rows[at:]]  # type: ignore[list-item]
    for at in range(len(rows)):
        yield [rows[at], *rows[:at], *rows[at + 1 :]]
        for column, values in damages.items():
            for value in values:
                yield [rows[at], *rows[:at], rows[at] | {column: value}, *rows[at + 1 :]]


def tried(
    rows: list[Row],
    damages: dict[str, list[Any]],
    new: Row,
    write: Callable[[list[Row]], None],
    config: DataConfig,
    unit: Unit,
) -> int:
    """How many changes were tried; asserts that each left all other rows as they were."""
    write(rows)
    before, alone, count = known(config, unit), dict[int, set[int]](), 0
    assert len(before) == len(rows)
    for at in range(len(rows)):
        write(rows[:at] + rows[at + 1 :])
        alone[at] = set(before) - set(known(config, unit))
        assert len(alone[at]) == 1  # else the expectation below would be empty
    for old, *changed in changes(rows, damages, new):
        write(changed)
        after, count = known(config, unit), count + 1
        own = alone[rows.index(old)] if old else set()
        assert {i: row for i, row in before.items() if i not in own} == {
            i: row for i, row in after.items() if i in before and i not in own
        }
        assert len(set(after) - set(before)) <= 1
    return count


TEXTS: list[Any] = ["", "null", "nan", "-1", "1e999", "9" * 500, str(BIG), "1.5", "word", "[1, 2]"]
TEXTS += [b"\xff\xfe", b"\xe2\x82", "\ufeff7", "a\nb", "a\r", '"', '"a\nb"', "1,2", ",", "\0"]
TEXTS += [
    "x" * 200_000,
    "\u2028",
    "\x85",
    "x;y",
    "\t",
    "'",
    " ",
    "\nb",
    "k\u00f6ln".encode("cp1252"),
]
LINE_ENDS = (b"\n", b"\r\n", b"\r")
ROWS = [
    {"record_id": str(BIG + n), "who": f"p{n}", "label": "ab"[n % 2], "u": f"{n}", "v": f"{n}.5"}
    for n in range(5)
]
NEW = {"record_id": "new", "who": "new", "label": "a", "u": "7", "v": "8"}


def csv_bytes(
    rows: list[Row], names: list[str], separator: bytes = b",", end: bytes = b"\n"
) -> bytes:
    def cell(value: object) -> bytes:
        return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")

    lines = [[name.encode() for name in names]]
    lines += [[cell(row[name]) for name in names] for row in rows]
    return b"".join(separator.join(cells) + end for cells in lines)
