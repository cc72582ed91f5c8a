"""CSV files: their encoding, separator, header and cells, by line or by record."""

import codecs
import contextlib
import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from ..errors import InvalidInput
from .data_config import MOST_COLUMNS

NO_CSV = ["?"] * (MOST_COLUMNS + 1)
SEPARATORS = ",;\t|"
UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE


def read_lines(file: Path) -> tuple[list[str], Iterator[list[str]]]:
    """(names in the header, cells of each line below it) of a CSV file.

    A line that is no CSV fits no header, and is not empty: NO_CSV. Raises InvalidInput.
    """
    names, separator, lines = _opened(file)
    each = (_cells(line, separator) for line in lines)
    return names, (NO_CSV if cells is None else _trimmed(cells, len(names)) for cells in each)


def _opened(file: Path) -> tuple[list[str], str, Iterator[str]]:
    """(names in the header, separator, lines below it) of a CSV file.

    The first lines say the separator. A line that is not UTF-8 is in Windows' code page of Western
    Europe, a function of that line alone: bytes are split into lines before they are decoded, at
    each of the three line breaks. In UTF-16 no split is safe: characters may hold a line break's
    bytes, and one line of an odd length would move all later ones. Raises InvalidInput for it.
    """
    content = file.read_bytes()
    if content.startswith(UTF_16):
        cure = f"`iconv -f UTF-16 -t UTF-8 {file.name} > utf8.csv` writes it; Excel as CSV UTF-8."
        raise InvalidInput(file.name, "a text file in UTF-8", "UTF-16", cure)
    lines = map(_decoded, re.split(b"\r\n|\n|\r", content.removeprefix(codecs.BOM_UTF8)))
    header = next(lines)
    separator = max(SEPARATORS, key=re.sub('"[^"]*"', "", header).count)
    if re.fullmatch("sep=.", header, re.IGNORECASE):  # as Excel reads and writes it
        separator, header = header[-1], next(lines, "")
    names = [unicodedata.normalize("NFC", name.strip()) for name in _cells(header, separator) or []]
    return names[:-1] if names[-1:] == [""] else names, separator, lines


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("cp1252", errors="backslashreplace")


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
