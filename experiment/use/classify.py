"""`classify`: a student's answers about new images or vectors, as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...student.model import StudentModel
from ...wall.datasets import arrays, readers
from ...wall.datasets.tables import is_table
from ...wall.errors import InvalidInput, MissingData
from ...wall.labels import LabelSpace
from ...wall.progress import Progress, no_progress
from .output import writing

BLOCK = 1024  # rows that are decoded and answered at once
DIGITS = 6  # of a probability
COLUMNS = 12  # names of a table's columns that an error shows
FORMULA = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"  # what a spreadsheet's formula begins with
Cells = list[str]


@dataclass(frozen=True)
class Classified:
    """``rows``: how many were answered; ``unreadable``: files that hold no readable image."""

    rows: int
    unreadable: list[str]


def classify_images(
    student: StudentModel, images: Sequence[Path], out: Path, progress: Progress = no_progress
) -> Classified:
    """Write the student's answer for each image file to ``out``, in the order of the paths.

    ``images``: files, and folders whose images are all taken, sorted. An unreadable file has a
    line without an answer. Raises MissingData, InvalidInput; then ``out`` is as it was.
    """
    paths = _listed(images)
    unreadable: list[str] = []

    def blocks() -> Iterator[tuple[Sequence[str], list[Cells]]]:
        for start in range(0, len(paths), BLOCK):
            names = paths[start : start + BLOCK]
            decoded = student.read(names)
            answers = iter(answered(student, decoded.pixels[decoded.readable]))
            empty = [""] * (len(header(student.info.labels, "file")) - 1)
            unreadable.extend(np.array(names, dtype=object)[~decoded.readable])
            yield names, [next(answers) if fine else empty for fine in decoded.readable]
            progress("classifying images", min(start + BLOCK, len(paths)), len(paths))
        if len(unreadable) == len(paths):
            raise InvalidInput("images", "readable image files", unreadable[0])

    _write(out, header(student.info.labels, "file"), blocks())
    return Classified(len(paths) - len(unreadable), unreadable)


def classify_rows(
    student: StudentModel, file: Path, out: Path, progress: Progress = no_progress
) -> Classified:
    """Write the student's answer for each row of an array to ``out``.

    ``file``: npy, or npz with the array x, of vectors [n, d] or images uint8 [n, h, w, c]. For
    a student of a table it is a table: an array may be scaled or not. Raises MissingData,
    InvalidInput; then ``out`` is as it was.
    """
    if is_table(file) and student.info.table is None:
        raise InvalidInput("vectors", "an array: this student was trained on no table", str(file))
    if student.info.table is not None and not is_table(file):
        columns = ", ".join(student.info.table.features[:COLUMNS])
        rule = f"a CSV or parquet file with the columns that the student was trained on: {columns}"
        raise InvalidInput("vectors", rule, str(file), "An array does not name its columns.")
    rows = student.rows(file) if is_table(file) else _array(file)
    student.rows(rows[:1])  # refused before a line is written

    def blocks() -> Iterator[tuple[Sequence[str], list[Cells]]]:
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            names = [str(row) for row in range(start, start + len(part))]
            yield names, answered(student, part)
            progress("classifying rows", start + len(part), len(rows))

    _write(out, header(student.info.labels, "row"), blocks())
    return Classified(len(rows), [])


def header(labels: LabelSpace, what: str) -> list[str]:
    """The names of the columns: what a line is about, the label, then probabilities."""
    if labels.kind == "value":
        return [what, "value"]
    probability = ["probability"] if labels.kind == "class" else []
    return [what, "label", *probability, *labels.names]


def answered(student: StudentModel, rows: np.ndarray) -> list[Cells]:
    """The cells after the first, for each row."""
    labels = student.info.labels
    outputs = student.outputs(rows)
    predicted = labels.predict(outputs)
    if labels.kind == "value":
        return [[f"{value:.7g}"] for value in predicted]
    shares = labels.probabilities(outputs, student.info.temperature)
    lines = []
    for label, row in zip(predicted, shares, strict=True):
        columns = [f"{share:.{DIGITS}f}" for share in row]
        own = [columns[int(label)]] if labels.kind == "class" else []
        lines.append([labels.text(label) or "", *own, *columns])
    return lines


def _write(
    out: Path, names: list[str], blocks: Iterator[tuple[Sequence[str], list[Cells]]]
) -> None:
    with writing(out) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(inert, names))
        for first, cells in blocks:
            for name, rest in zip(first, cells, strict=True):
                writer.writerow(map(inert, (name, *rest)))


def inert(cell: str) -> str:
    """``cell``, led by an apostrophe where a spreadsheet would run it; a number is no formula."""
    if not cell.lstrip(" ").startswith(tuple(FORMULA)):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _listed(images: Sequence[Path]) -> list[str]:
    """The image files that paths of files and folders name."""
    files: list[str] = []
    for path in images:
        if path.is_dir():
            inside = [name for name in readers.list_files(path) if readers.is_image(name)]
            if not inside:
                rule = f"a folder with images ({', '.join(readers.SUFFIXES)})"
                raise InvalidInput("images", rule, str(path))
            files += [str(path / name) for name in inside]
        elif path.is_file():
            files.append(str(path))
        else:
            raise MissingData(f"`images` must be existing files or folders. Found {str(path)!r}.")
    return files


def _array(file: Path) -> np.ndarray:
    """The rows of an npy file, or the array x of an npz file."""
    rule = "an npy file of numbers, or an npz file with the array x"
    if not file.is_file():
        raise MissingData(f"`vectors` must be {rule}. Found {str(file)!r}.")
    try:
        stored = np.load(file, allow_pickle=False, mmap_mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInput("vectors", rule, str(file)) from error
    rows: np.ndarray | None = stored
    if not isinstance(stored, np.ndarray):
        stored.close()
        rows = arrays.read_member(file, "x")
    if rows is None or rows.ndim == 0:
        raise InvalidInput("vectors", rule, str(file))
    return rows
