"""`classify`: a student's answers about new images or vectors, as a CSV file."""

import csv
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ...student.student_model import ESTIMATE, StudentModel, reads_table
from ...wall.datasets import arrays, readers
from ...wall.errors import InvalidInput, MissingData, listed
from ...wall.progress import Progress, no_progress
from ..run.run_folder import RunFolder

BLOCK = 1024  # rows that are decoded and answered at once
DIGITS = 6  # of a probability
LARGEST = 1 << 29  # bytes of an array in an npz file, once it is unpacked
FORMULA = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"  # what a spreadsheet's formula begins with
Classified = tuple[int, list[str]]  # rows that were answered; files that hold no readable image
# The inputs of some rows, and which of these rows can be read
Read = Callable[[slice], tuple[np.ndarray, np.ndarray]]


def classify_images(
    student: StudentModel, images: Sequence[Path], out: Path, progress: Progress = no_progress
) -> Classified:
    """Write the student's answer for each image file to ``out``, in the order of the paths.

    ``images``: files, and folders whose images are all taken, sorted. An unreadable file has a
    line without an answer. Raises MissingData, InvalidInput; then ``out`` is as it was.
    """
    paths = image_paths(images)

    def read(part: slice) -> tuple[np.ndarray, np.ndarray]:
        decoded = student.read(paths[part])
        return decoded.pixels[decoded.readable], decoded.readable

    return _write(student, "file", paths, read, out, progress)


def classify_rows(
    student: StudentModel, file: Path, out: Path, progress: Progress = no_progress
) -> Classified:
    """Write the student's answer for each row of an array to ``out``.

    ``file``: npy, or npz with the array x, of vectors [n, d] or images uint8 [n, h, w, c]; for a
    student of a table another one, or a folder of texts, too. A row that does not fit, or is not
    finite, has a line without an answer. Raises MissingData, InvalidInput; then ``out`` is as it
    was.
    """
    if (table := reads_table(file)) and student.info.table is None:
        raise InvalidInput("vectors", "an array: this student was trained on no table", str(file))
    rows, fits = (
        student.records(file) if table else (array := _array(file), np.ones(len(array)) > 0)
    )
    student.rows(rows[:0])  # refused before a line is written, and before a row is read
    fitting = np.cumsum(fits) - fits  # how many came before each row

    def read(part: slice) -> tuple[np.ndarray, np.ndarray]:
        fine = fits[part].copy()
        inputs = rows[fitting[part.start] :][: fine.sum()]
        if inputs.ndim == 2:
            finite = np.isfinite(arrays.canonical_rows("vectors", inputs)).all(axis=1)
            inputs, fine[fine] = inputs[finite], finite
        return inputs, fine

    names = [str(row) for row in range(len(fits))]
    return _write(student, "row", names, read, out, progress)


def for_shares(
    student: StudentModel, place: Path, shares: str, rows: Sequence[Path] | Path
) -> StudentModel:
    """The student for rows whose classes have other ``shares``: see `labelwall classify --help`.

    ``place``: where the student was loaded from; ``rows``: what is to be classified. Raises
    InvalidInput, MissingData.
    """
    if shares == ESTIMATE:
        if isinstance(rows, Path):
            table = reads_table(rows) and student.info.table is not None
            return student.for_shares(ESTIMATE, rows if table else _array(rows))
        decoded = student.read(image_paths(rows))
        return student.for_shares(ESTIMATE, decoded.pixels[decoded.readable])
    names, rule = student.classes, "test, estimate, or a JSON file with a number for each class"
    if shares == "test":
        if (summary := RunFolder(place).finished()) is None:
            raise InvalidInput("shares", "a file for a student outside its run folder", shares)
        return student.for_shares(np.array(summary.kept.confusion).sum(axis=1))
    try:
        stored = json.loads(Path(shares).read_text())
        return student.for_shares([float(stored[name]) for name in names])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput("shares", f"{rule}: {listed(names)}", shares) from error


def _write(
    student: StudentModel,
    what: str,
    names: Sequence[str],
    read: Read,
    out: Path,
    progress: Progress,
) -> Classified:
    """A line for each named row: ``what`` it is, the label, then probabilities."""
    labels, unreadable = student.info.labels, list[str]()
    sure = ["probability"] if labels.kind == "class" else []
    header = [what, *(["value"] if labels.kind == "value" else ["label", *sure, *labels.names])]
    with writing(out) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(inert, header))
        for start in range(0, len(names), BLOCK):
            part = slice(start, start + BLOCK)
            rows, readable = read(part)
            answers = iter(answered(student, rows))
            for name, fine in zip(names[part], readable, strict=True):
                cells = next(answers) if fine else [""] * (len(header) - 1)
                writer.writerow(map(inert, (name, *cells)))
                unreadable += [] if fine else [name]
            progress(f"classifying {what}s", min(start + BLOCK, len(names)), len(names))
        if unreadable and len(unreadable) == len(names):
            rule = "readable image files" if what == "file" else "rows that fit, of finite numbers"
            raise InvalidInput("inputs", rule, f"{what} {unreadable[0]}")
    return len(names) - len(unreadable), unreadable


def answered(student: StudentModel, rows: np.ndarray) -> list[list[str]]:
    """The cells after the first, for each row."""
    labels, outputs = student.info.labels, student.outputs(rows)
    predicted = labels.predict(outputs)
    if labels.kind == "value":
        return [[f"{value:.7g}"] for value in predicted]
    lines = []
    for label, row in zip(predicted, labels.probabilities(outputs), strict=True):
        columns = [f"{share:.{DIGITS}f}" for share in row]
        own = [columns[int(label)]] if labels.kind == "class" else []
        lines.append([labels.text(label) or "", *own, *columns])
    return lines


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """A path to write a file or a folder to, which becomes ``out`` where nothing fails.

    A folder takes the place of none but an empty one. What a killed process left there is removed
    first. Raises InvalidInput where ``out`` can not be written.
    """
    scratch = out.with_name(out.name + ".part")
    try:
        _remove(scratch)
        yield scratch
        scratch.replace(out)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidInput("out", f"a place that can be written ({reason})", str(out)) from error
    finally:
        _remove(scratch)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def inert(cell: str) -> str:
    """``cell``, led by an apostrophe where a spreadsheet would run it; a number is no formula."""
    if not cell.lstrip(" ").startswith(tuple(FORMULA)):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def image_paths(images: Sequence[Path]) -> list[str]:
    """The image files that paths of files and folders name, those of a folder sorted."""
    files: list[str] = []
    for path in images:
        if path.is_dir():
            files += [str(path / name) for name in readers.image_files("images", path)]
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
        sizes = [entry.file_size for entry in stored.zip.infolist() if entry.filename == "x.npy"]
        stored.close()
        if max(sizes, default=0) > LARGEST:
            cure = "An npy file may be larger."
            raise InvalidInput("vectors", f"of at most {LARGEST} bytes in an npz", sizes[0], cure)
        rows = arrays.read_member(file, "x")
    if rows is None or rows.ndim == 0:
        raise InvalidInput("vectors", rule, str(file))
    return rows
