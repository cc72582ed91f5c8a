"""CSV files: their encoding, separator, header and cells, by line or by record."""

import codecs
import contextlib
import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from .data_config import MOST_COLUMNS

NO_CSV = ["?"] * (MOST_COLUMNS + 1)
SEPARATORS = ",;\t|"
BYTE_ORDERS = {codecs.BOM_UTF8: "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


def read_lines(file: Path) -> tuple[list[str], Iterator[list[str]]]:
    """(names in the header, cells of each line below it) of a CSV file.

    A line that is no CSV fits no header, and is not empty: NO_CSV.
    """
    names, separator, lines = _opened(file)
    each = (_cells(line, separator) for line in lines)
    return names, (NO_CSV if cells is None else _trimmed(cells, len(names)) for cells in each)


def _opened(file: Path) -> tuple[list[str], str, Iterator[str]]:
    """(names in the header, separator, lines below it) of a CSV file.

    The file's first bytes and lines say its encoding and separator. A line that is not UTF-8 is in
    Windows' code page of Western Europe, a function of that line alone: bytes are split into lines
    before they are decoded, at each of the three line breaks.
    """
    content = file.read_bytes()
    mark = next((mark for mark in BYTE_ORDERS if content.startswith(mark)), b"")
    codec = BYTE_ORDERS.get(mark, "utf-8")
    feed, back = (re.escape(character.encode(codec)) for character in "\n\r")
    encoded = re.split(back + feed + b"|" + feed + b"|" + back, content[len(mark) :])
    lines = (_decoded(line, codec) for line in encoded)
    header = next(lines)
    separator = max(SEPARATORS, key=re.sub('"[^"]*"', "", header).count)
    if re.fullmatch("sep=.", header, re.IGNORECASE):  # as Excel reads and writes it
        separator, header = header[-1], next(lines, "")
    names = [unicodedata.normalize("NFC", name.strip()) for name in _cells(header, separator) or []]
    return names[:-1] if names[-1:] == [""] else names, separator, lines


def _decoded(line: bytes, codec: str) -> str:
    try:
        return line.decode(codec)
    except UnicodeDecodeError:
        return line.decode("cp1252" if codec == "utf-8" else codec, errors="backslashreplace")


def _trimmed(cells: list[str], count: int) -> list[str]:
    """The cells of a line, but for an empty one behind a separator at its end."""
    return cells[:count] if len(cells) == count + 1 and not cells[-1] else cells


def columns_of(
    records: Iterable[list[str]], count: int, places: Mapping[str, int]
) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
    """(columns by name, of the records of ``count`` cells; which records these are, bool [n]; how
    many others have a text in some cell).
    """
    cells, fits, misfits = list[list[str]](), list[bool](), 0
    for record in records:
        fits.append(len(record) == count)
        misfits += not fits[-1] and any(record)
        cells += [[record[place] for place in places.values()]] if fits[-1] else []
    rows = np.array(cells, dtype=object).reshape(len(cells), len(places))
    columns = {name: rows[:, at] for at, name in enumerate(places)}
    return columns, np.array(fits, dtype=bool), misfits


def records_of(file: Path) -> Iterator[list[str]]:
    """Cells of each record of a PUBLIC CSV file, below the header, by RFC 4180."""
    names, separator, lines = _opened(file)
    limit = csv.field_size_limit(1 << 30)
    try:
        for record in csv.reader((f"{line}\n" for line in lines), delimiter=separator):
            if record:  # no empty line
                yield _trimmed(record, len(names))
    finally:
        csv.field_size_limit(limit)


def _cells(line: str, separator: str) -> list[str] | None:
    """None of a line that is no CSV."""
    with contextlib.suppress(csv.Error):
        return next(csv.reader([line], delimiter=separator), [])
    return None
