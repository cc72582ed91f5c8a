"""`records add`, `records remove`: the custodian changes the data set between any two queries.

Nothing is released or charged.
"""

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from ...wall.console import Console
from ...wall.datasets.data_config import Task, require_apart
from ...wall.datasets.folders import stable_hash
from ...wall.datasets.image_labels import image_names
from ...wall.datasets.sources import describe
from ...wall.errors import InvalidInput, MissingData
from ...wall.guarantee import EACH, POOLED
from ..analysts import remove_for_all
from ..custodian import IDENTITY
from ..noise.entropy import SystemEntropy
from ..records.inspect import BANNER, bad_rows
from ..records.persons import MAX_LENGTH, NOBODY, codes_of
from ..records.private_records import has_names, ingest_more, numbered, read_id
from ..teacher import Teacher
from .opening import local_teacher
from .private_settings import PrivateSide


def add_records(side: PrivateSide, rows: Path, *, dry_run: bool, console: Console) -> str:
    """Add the usable rows of a folder, table or npz file; returns a PRIVATE text for the custodian.

    ``dry_run``: report, and change nothing. Raises InvalidInput for rows that do not fit the task
    or an id that is present, MissingData where a file or the data set is missing.
    """
    unit, data = side.privacy.unit, side.data
    public = {"data.public": data.places["public"], "data.test": data.test}
    require_apart(**public, rows=rows)
    with _teacher(side, console) as (teacher, task):
        reading = partial(console.progress, "reading rows (percent)")
        ingested = ingest_more(rows, data, task, reading, unit)
        usable = ingested.records
        present = int(teacher.present(usable.ids).sum())
        if not dry_run:
            teacher.add(usable)
    counts = bad_rows(ingested, unit)
    bad = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    read = f"{len(ingested.verdicts)} rows, {len(usable.ids)} usable"
    clash = f"{present} usable rows have ids that are already in use. Remove those records first."
    if present == 1:
        clash = "1 usable row has an id that is already in use. Remove that record first."
    lines = (read, f"left out: {bad or 'none'}", clash if present else "no id is present")
    again = f", {present} were there already" if present else ""
    done = f"{len(usable.ids) - present} added{again}"
    return _report(lines if dry_run else lines[:2], done, dry_run)


def remove_records(side: PrivateSide, ids: np.ndarray, *, dry_run: bool, console: Console) -> str:
    """Remove records by id (int64 [n]), or persons by code; returns a PRIVATE text.

    An unknown id is no error. Raises InvalidInput, MissingData.
    """
    with _teacher(side, console) as (teacher, _):
        present = int(teacher.present(ids, owners=True).sum())
        if not dry_run:
            remove_for_all(teacher, side.directory or Path(), ids)
    named = "ids" if side.privacy.unit == "row" else "persons"
    lines = [f"{len(ids)} {named}, {present} of them present"]
    if not present:
        texts = side.privacy.unit == "person" or has_names(side.data)
        why = ": ids are compared as they are written (0012 is not 12)" if texts else ""
        lines.append(f"NOBODY IS REMOVED{why}")
    if side.privacy.unit == "row" and numbered(side.data):
        lines.append(
            "ids are row numbers here. Do not delete the row from the file, or every later row "
            "gets another id."
        )
    return _report(lines, f"{present} removed", dry_run)


def ids_of(side: PrivateSide, options: Namespace) -> np.ndarray:
    """What to remove: distinct ids of records, or codes of persons, int64 [n].

    ``options``: ids, persons (texts with commas), ids_file, persons_file (one a line) and images
    (paths within a folder). Ids of a table's column are texts. Errors name no id: which records
    exist is private.
    """
    unit = side.privacy.unit
    rows = options.ids or options.ids_file or options.images
    persons = options.persons or options.persons_file
    if rows and persons:
        text = "Give either ids of rows or persons."
        raise InvalidInput("persons", "given without ids of rows", "both", text=text)
    if persons and unit != "person":
        raise InvalidInput.needless("persons", "privacy.unit is row")
    if unit == "person" and not persons:
        why = "privacy.unit is person, so all rows of a person go together"
        raise InvalidInput.missing("persons", why, "Or give --persons_file.")
    if not (rows or persons):
        raise InvalidInput.missing("ids", "they say what is removed", "Or --ids_file or --images.")
    name = "persons" if persons else "ids"
    given = vars(options)
    text, file = given[name] or "", given[f"{name}_file"]
    if file and not Path(file).is_file():
        raise MissingData(f"`{name}_file` must be an existing text file. Found {file!r}.")
    lines = Path(file).read_text(encoding="utf-8-sig") if file else ""
    words = [*text.split(","), *re.split("[\r\n]", lines)]
    words = [word.strip() for word in words if word.strip()]
    named = persons or has_names(side.data)
    rule = f"ids of at most {MAX_LENGTH} characters" if named else "whole numbers of 64 bits"
    try:
        numbers = list(map(read_id(side.data), words)) if rows else []
        numbers += map(stable_hash, image_names(side.data, options.images))
        ids = np.unique(codes_of(words) if persons else np.array(numbers, dtype=np.int64))
    except (ValueError, OverflowError):
        ids = np.array([], dtype=np.int64)
    if not len(ids) or (persons and NOBODY in ids):
        raise InvalidInput(name, rule, "something else")
    return ids


@contextmanager
def _teacher(side: PrivateSide, console: Console) -> Iterator[tuple[Teacher, Task]]:
    """The teacher over the records, which are the same for one budget and for one an analyst."""
    if side.directory is None:
        raise InvalidInput.missing("custodian_dir", "it says which records there are")
    if not (side.directory / IDENTITY).is_file():
        raise MissingData(
            "`custodian_dir` must hold a data set that is in use. Found none: the first run reads "
            "the data source itself."
        )
    task, budgets, entropy = describe(side.data), (POOLED, EACH), SystemEntropy()
    with local_teacher(side, task, entropy, console, None, budgets) as teacher:
        yield teacher, task


def _report(lines: Sequence[str], done: str, dry_run: bool) -> str:
    last = f"{done}; nothing was charged or released"
    return "\n".join([BANNER, *lines, "dry run: nothing was changed" if dry_run else last])
