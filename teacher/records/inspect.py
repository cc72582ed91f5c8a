"""Counts of the private rows, for the custodian before a run.

Private: none of it may be released, or steer a run's choices.
"""

from collections import Counter
from pathlib import Path

import numpy as np

from ...wall.datasets.arrays import required_member
from ...wall.datasets.columns import texts
from ...wall.datasets.data_config import DataConfig
from ...wall.datasets.folders import list_files
from ...wall.datasets.image_labels import by_folders, is_image, written_of
from ...wall.datasets.readers import is_deep, modes
from ...wall.datasets.sources import describe
from ...wall.datasets.tables import encoding
from ...wall.errors import shortened
from ...wall.guarantee import Unit
from .private_records import (
    GOOD,
    LABELS,
    NO_ID,
    NO_PERSON,
    NOT_FINITE,
    REPEATED_ID,
    UNKNOWN_CLASS,
    UNREADABLE,
    Ingested,
    ingest,
    private_table,
)

REASONS = {
    UNREADABLE: "images that can not be decoded, or too large",
    NOT_FINITE: "vectors that are not finite",
    UNKNOWN_CLASS: "labels outside the public classes, or values that are not finite",
    REPEATED_ID: "ids that came before",
    NO_ID: "rows without an id",
    NO_PERSON: "rows without a person, or of two",
}
SHOWN = 20  # labels of bad rows
FLAT = 64  # of 255: the contrast of an image below which its white may be a wrong one
BANNER = (
    "PRIVATE, for the custodian alone: not for release, and not for choosing a run's parameters."
)


def preview(config: DataConfig, unit: Unit = "row") -> str:
    """Read the private rows as a run would, and count them in a text; its first line says PRIVATE.

    Raises InvalidInput, MissingData for settings, as open_records.
    """
    task = describe(config)
    read = ingest(config, task, unit=unit)
    rows = read.records
    names, counts = task.labels.tally(rows.labels)
    width = max(map(len, names))
    lines = [
        BANNER,
        f"source {config.source}: {len(read.verdicts)} rows, {len(rows.labels)} usable, "
        f"inputs {task.input_shape}",
        "",
        "usable rows by class",
        *(f"  {name:<{width}}  {n:>8}" for name, n in zip(names, counts.tolist(), strict=True)),
        "",
        "rows that a run drops silently",
        *(f"  {n:>8}  {reason}" for reason, n in bad_rows(read, unit).items()),
    ]
    if rows.persons is not None:
        each = np.unique(rows.persons, return_counts=True)[1]
        few, many = (each.min(), each.max()) if len(each) else (0, 0)
        lines += ["", f"persons with usable rows: {len(each)}, with {few} to {many} rows each"]
    if config.source == "folder" and len(rows.inputs):
        lines += _of_greys(Path(config.private or ""), rows.inputs)
    bad = np.flatnonzero(read.verdicts != GOOD)
    if len(bad) and config.source in ("folder", "arrays", "table"):
        labels = Counter(zip(_written(config)[bad], read.verdicts[bad].tolist(), strict=True))
        lines += ["", f"their labels, as written (classes: {', '.join(names)})"]
        for (label, reason), n in labels.most_common(SHOWN):
            alone = config.source == "folder" and not label
            place = "in no class's folder" if by_folders(config) else "without a label"
            why = f"images {place}" if alone else REASONS[reason]
            lines.append(f"  {n:>8}  {shortened(label)}: {why}")
        if len(labels) > SHOWN:
            lines.append(f"  and {len(labels) - SHOWN} more")
    if config.source == "table":
        lines += _of_columns(config)
    if read.other_files:
        lines += ["", f"files that are no images, not read: {read.other_files}"]
    return "\n".join(lines)


def _of_columns(config: DataConfig) -> list[str]:
    """Lines about columns that differ from the public ones, and about records that do not fit."""
    table = private_table(config)
    lines = [f"  {line}" for line in encoding(config).unlike(table.columns)]
    lines = ["", "columns that are not as the public rows show them", *lines] if lines else []
    if table.misfits:
        lines += ["", f"lines with another number of cells than the header: {table.misfits}"]
        lines += ["  a private record is one line: no line break within quotes"]
    return lines


def _of_greys(folder: Path, images: np.ndarray) -> list[str]:
    """A line if most of a folder's images have hardly any contrast, as a wrong white leaves them.

    ``images``: as they are read, uint8 [n, h, w, c].
    """
    middle = int(np.median(np.ptp(images.reshape(len(images), -1), axis=1)))
    if middle >= FLAT or not any(map(is_deep, modes(folder))):
        return []
    line = f"half of the images have no contrast above {middle} of 255: data.white says what is"
    return ["", f"{line} white in greys of more than 8 bits"]


def _written(config: DataConfig) -> np.ndarray:
    """Each row's label as its file has it: texts, object [n]."""
    if config.source == "folder":
        root = Path(config.private or "")
        paths = list(filter(is_image, list_files(root)))
        return np.array(written_of(config, "data.private", root, paths), dtype=object)
    if config.source == "arrays":
        return texts(required_member(config.path, LABELS))
    return texts(private_table(config).columns[config.label])


def bad_rows(read: Ingested, unit: Unit) -> dict[str, int]:
    """How many rows are left out by reason, zeros included."""
    return {
        text: int((read.verdicts == reason).sum())
        for reason, text in REASONS.items()
        if unit == "person" or reason != NO_PERSON
    }
