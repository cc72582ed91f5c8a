"""Counts of the private rows, for the custodian before a run.

Private: none of it may be released, or steer a run's choices.
"""

import hashlib

import numpy as np

from ...wall.datasets.config import DataConfig, Task
from ...wall.datasets.sources import describe
from ...wall.guarantee import Unit
from ...wall.progress import TaskProgress, no_progress
from .sources import (
    NO_ID,
    NO_PERSON,
    NOT_FINITE,
    REPEATED_ID,
    UNKNOWN_CLASS,
    UNREADABLE,
    Ingested,
    ingest,
)

REASONS = {
    UNREADABLE: "images that can not be decoded, or too large",
    NOT_FINITE: "vectors that are not finite",
    UNKNOWN_CLASS: "labels outside the public classes, or values that are not finite",
    REPEATED_ID: "ids that came before",
    NO_ID: "rows without an id",
    NO_PERSON: "rows without a person, or of two",
}
LISTED = 10  # names of classes in one hint
BANNER = (
    "PRIVATE, for the custodian alone: not for release, and not for choosing a run's parameters."
)


def preview(
    config: DataConfig,
    k: int = 1,
    sample_rate: float = 1.0,
    progress: TaskProgress = no_progress,
    unit: Unit = "row",
) -> str:
    """Read the private rows as a run would, and count them in a text; its first line says PRIVATE.

    ``k``, ``sample_rate``: the mechanism's neighbours (a count) and gamma, for the hints;
    a mechanism that has none leaves them out.
    Raises InvalidInput, MissingData for settings, as open_records.
    """
    task = describe(config)
    read = ingest(config, task, progress, unit)
    rows = read.records
    names, counts = task.labels.tally(rows.labels)
    width, (repeated, contradicting) = max(map(len, names)), _repeats(rows.inputs, rows.labels)
    lines = [
        BANNER,
        f"source {config.source}: {len(read.verdicts)} rows, {len(rows.labels)} usable, "
        f"inputs {task.input_shape}",
        *_spread(read),
        "",
        "usable rows by class",
        *(f"  {name:<{width}}  {n:>8}" for name, n in zip(names, counts.tolist(), strict=True)),
        "",
        "rows that a run drops silently",
        *(f"  {n:>8}  {reason}" for reason, n in bad_rows(read, unit).items()),
        "",
        f"repeated inputs among usable rows: {repeated}, of them under another label: "
        f"{contradicting}",
    ]
    if read.other_files:
        lines.append(f"files that are no images, not read: {read.other_files}")
    hints = _hints(task, len(np.unique(rows.owners)), counts, k, sample_rate)
    return "\n".join([*lines, *(f"hint: {hint}" for hint in hints)])


def bad_rows(read: Ingested, unit: Unit) -> dict[str, int]:
    """How many rows are left out by reason, zeros included."""
    return {
        text: int((read.verdicts == reason).sum())
        for reason, text in REASONS.items()
        if unit == "person" or reason != NO_PERSON
    }


def _repeats(inputs: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """(rows that repeat an earlier row's inputs, those of them with another label)."""
    rows = (np.ascontiguousarray(row).data for row in inputs)
    digests = np.array([hashlib.blake2b(row, digest_size=16).digest() for row in rows], "S16")
    _, first, same = np.unique(digests, return_index=True, return_inverse=True)
    return len(labels) - len(first), int((labels != labels[first[same]]).sum())


def _spread(read: Ingested) -> list[str]:
    """Widths and heights of an image folder's readable images, as stored."""
    lines = []
    for name, pixels in zip(
        ("widths ", "heights"), [] if read.sizes is None else read.sizes.T, strict=False
    ):
        known = pixels[pixels > 0]
        if len(known):
            sizes = f"{known.min()} / {int(np.median(known))} / {known.max()}"
            lines.append(f"{name} {sizes} pixels (least / median / largest)")
    return lines


def _hints(task: Task, usable: int, counts: np.ndarray, k: int, sample_rate: float) -> list[str]:
    """Where the mechanism's neighbours run short: samples then vote with fewer."""
    hints, sample = [], sample_rate * usable
    if sample < k:
        hints.append(
            f"a sample holds about {sample:.0f} records, fewer than k = {k}: all of them vote on "
            "every query."
        )
    if task.labels.kind == "value":  # which no neighbour votes on by name
        return hints
    short = (counts > 0) & (sample_rate * counts < k)
    for rows, what, so in (
        (counts == 0, "without a record", "They are never the answer but by noise."),
        (short, f"with fewer than k = {k} records in a sample", "Others join their votes."),
    ):
        names = np.array(task.labels.names)[rows].tolist()
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        if names:
            hints.append(f"classes {what}: {', '.join(names[:LISTED])}{more}. {so}")
    return hints
