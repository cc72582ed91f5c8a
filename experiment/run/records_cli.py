"""`records add`, `records remove`: the custodian changes the data set between any two queries.

Nothing is released or charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...teacher.analysts import remove_for_all
from ...teacher.custodian import IDENTITY
from ...teacher.noise.entropy import SystemEntropy
from ...teacher.records.inspect import BANNER, bad_rows
from ...teacher.records.persons import MAX_LENGTH, NOBODY, codes_of
from ...teacher.records.sources import ingest_more
from ...wall.datasets import readers
from ...wall.datasets.sources import describe
from ...wall.errors import InvalidInput, MissingData
from ...wall.guarantee import EACH, POOLED, Unit
from ..config.parts import PrivateSide
from .console import Console
from .teachers import local_teacher

# A directory with one budget, or with one for each analyst: the records are the same.
ANY_ADVERSARY = (POOLED, EACH)


def add_records(side: PrivateSide, rows: Path, *, dry_run: bool, console: Console) -> str:
    """Add the usable rows of an image folder or npz file; returns a PRIVATE text for the custodian.

    ``dry_run``: report, and change nothing. Raises InvalidInput for rows that do not fit the task
    or an id that is present, MissingData where a file or the data set is missing.
    """
    directory = _directory(side)
    task = describe(side.data)
    ingested = ingest_more(
        rows,
        task,
        lambda done, total: console.progress("reading rows (percent)", done, total),
        side.unit,
        side.data.person,
    )
    usable = ingested.records
    with local_teacher(
        side, task, directory, SystemEntropy(), console, adversaries=ANY_ADVERSARY
    ) as teacher:
        present = int(teacher.present(usable.ids).sum())
        if not dry_run:
            teacher.add(usable)
    counts = bad_rows(ingested, side.unit)
    bad = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    lines = [
        f"{len(ingested.verdicts)} rows, {len(usable.ids)} usable",
        f"left out: {bad or 'none'}",
    ]
    if dry_run and present:
        lines.append(f"{present} of the usable have an id that is present: remove those first")
    elif dry_run:
        lines.append("no id is present")
    return _report(lines, f"{len(usable.ids)} added", dry_run)


def remove_records(side: PrivateSide, ids: np.ndarray, *, dry_run: bool, console: Console) -> str:
    """Remove records by id (int64 [n]), or persons by code; returns a PRIVATE text.

    An unknown id is no error. Raises InvalidInput, MissingData.
    """
    directory = _directory(side)
    task = describe(side.data)
    with local_teacher(
        side, task, directory, SystemEntropy(), console, adversaries=ANY_ADVERSARY
    ) as teacher:
        present = int(teacher.owning(ids).sum())
        if not dry_run:
            remove_for_all(teacher, directory, ids)
    named = "ids" if side.unit == "row" else "persons"
    return _report(
        [f"{len(ids)} {named}, {present} of them present"], f"{present} removed", dry_run
    )


def parse_ids(text: str | None, file: Path | None, images: Sequence[str]) -> np.ndarray:
    """Distinct record ids, int64 [n].

    ``text``: whole numbers separated by commas; ``file``: one a line; ``images``: paths within an
    image folder. Errors name no id: which records exist is private.
    """
    if not (text or file or images):
        raise InvalidInput("ids", "given by --ids, --ids_file or --images", None)
    if file is not None and not file.is_file():
        raise MissingData(f"`ids_file` must be an existing text file. Found {str(file)!r}.")
    written = (text.split(",") if text else []) + (file.read_text().split() if file else [])
    try:
        numbers = [int(word) for word in written] + [readers.stable_hash(path) for path in images]
        return np.unique(np.array(numbers, dtype=np.int64))
    except (ValueError, OverflowError) as error:
        raise InvalidInput("ids", "whole numbers of 64 bits", "something else") from error


def parse_persons(unit: Unit, text: str | None, file: Path | None) -> np.ndarray:
    """Distinct codes of persons, int64 [n].

    ``text``: ids separated by commas; ``file``: one a line.

    Errors name no id.
    """
    if unit != "person":
        raise InvalidInput("persons", "left out where privacy.unit is row", "given")
    if file is not None and not file.is_file():
        raise MissingData(f"`persons_file` must be an existing text file. Found {str(file)!r}.")
    named = (text.split(",") if text else []) + (file.read_text().splitlines() if file else [])
    codes = np.unique(codes_of([name for name in named if name.strip()]))
    if NOBODY in codes or not len(codes):
        raise InvalidInput("persons", f"ids of at most {MAX_LENGTH} characters", "something else")
    return codes


def _directory(side: PrivateSide) -> Path:
    if side.directory is None:
        raise InvalidInput("custodian_dir", "given: it says which records there are", None)
    if not (side.directory / IDENTITY).is_file():
        raise MissingData(
            "`custodian_dir` must hold a data set that is in use. Found none: the first run reads "
            "the data source itself."
        )
    return side.directory


def _report(lines: Sequence[str], done: str, dry_run: bool) -> str:
    last = f"{done}; nothing was charged or released"
    return "\n".join([BANNER, *lines, "dry run: nothing was changed" if dry_run else last])
