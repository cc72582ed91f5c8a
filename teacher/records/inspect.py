"""Counts of the private rows, for the custodian before a run.

Private: none of it may be released, or steer a run's choices.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ...wall.datasets.sources import DataConfig, Task, describe
from ...wall.progress import TaskProgress
from ...wall.unit import Unit
from .sources import (
    GOOD,
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


@dataclass(frozen=True, repr=False)
class Preview:
    """Counts of private rows.

    ``rows``: rows read. ``by_class``: (name of a class, an attribute or a tenth of the values'
    range; usable rows with it), in order. ``bad``: (reason, rows), zeros included. ``widths``,
    ``heights``: (least, median, largest) of readable images as stored, pixels; None but for image
    folders.
    ``repeated``: usable rows with the very inputs of an earlier one; ``contradicting``: those of
    them with another label.
    ``other_files``: files of an image folder that are no images. ``hints``: what the custodian may
    want to look at.
    """

    source: str
    rows: int
    by_class: tuple[tuple[str, int], ...]
    bad: tuple[tuple[str, int], ...]
    input_shape: tuple[int, ...]
    widths: tuple[int, int, int] | None
    heights: tuple[int, int, int] | None
    repeated: int
    contradicting: int
    other_files: int
    hints: tuple[str, ...]

    @property
    def usable(self) -> int:
        """Rows that a run would use."""
        return self.rows - sum(count for _, count in self.bad)


def preview(
    config: DataConfig,
    k: int = 1,
    sampling_probability: float = 1.0,
    progress: TaskProgress | None = None,
    unit: Unit = "row",
) -> Preview:
    """Read the private rows as a run would, and count them.

    Releases nothing; what it returns is private.

    ``k``, ``sampling_probability``: the mechanism's neighbours (a count) and gamma, for the hints;
    a mechanism that has none leaves them out.
    Raises InvalidInput, MissingData for settings, as open_records.
    """
    task = describe(config)
    read = ingest(config, task, progress, unit)
    good = read.verdicts == GOOD
    labels = read.labels[good]
    names, counts = task.labels.tally(labels)
    voting = len(np.unique(read.records.owners))
    repeated, contradicting = _repeats(read.inputs[good], read.labels[good])
    return Preview(
        source=config.source,
        rows=len(read.labels),
        by_class=tuple(zip(names, counts.tolist(), strict=True)),
        bad=tuple(
            (text, int((read.verdicts == reason).sum()))
            for reason, text in REASONS.items()
            if unit == "person" or reason != NO_PERSON
        ),
        input_shape=task.input_shape,
        widths=_spread(read, 0),
        heights=_spread(read, 1),
        repeated=repeated,
        contradicting=contradicting,
        other_files=read.other_files,
        hints=_hints(task, voting, counts, k, sampling_probability),
    )


def _repeats(inputs: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """(rows that repeat an earlier row's inputs, those of them with another label).

    Digests stay in memory.
    """
    first: dict[bytes, int] = {}
    repeated = contradicting = 0
    for row, label in zip(inputs, labels.tolist(), strict=True):
        digest = hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()
        seen = digest in first
        repeated += seen
        contradicting += seen and first[digest] != label
        first.setdefault(digest, label)
    return repeated, contradicting


def _spread(read: Ingested, axis: int) -> tuple[int, int, int] | None:
    readable = read.sizes is not None and read.sizes[:, axis] > 0
    if not np.any(readable):
        return None
    assert read.sizes is not None
    pixels = read.sizes[readable, axis]
    return int(pixels.min()), int(np.median(pixels)), int(pixels.max())


def _hints(
    task: Task, usable: int, counts: np.ndarray, k: int, sampling_probability: float
) -> tuple[str, ...]:
    """Where the mechanism's neighbours run short.

    A run continues all the same: short samples vote with fewer. Values that no row has are no
    shortage.
    """
    hints, sample = [], sampling_probability * usable
    if sample < k:
        hints.append(
            f"a sample holds about {sample:.0f} records, fewer than k = {k}: all of them vote on "
            "every query."
        )
    if not task.labels.voted_by_name:
        return tuple(hints)
    short = (counts > 0) & (sampling_probability * counts < k)
    for rows, what, so in (
        (counts == 0, "without a record", "They are never the answer but by noise."),
        (short, f"with fewer than k = {k} records in a sample", "Others join their votes."),
    ):
        names = np.array(task.labels.names)[rows].tolist()
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        if names:
            hints.append(f"classes {what}: {', '.join(names[:LISTED])}{more}. {so}")
    return tuple(hints)


def render(shown: Preview) -> str:
    """The preview as text; its first line says that it is private."""
    lines = [
        BANNER,
        f"source {shown.source}: {shown.rows} rows found, {shown.usable} usable, "
        f"inputs {shown.input_shape}",
    ]
    for name, sizes in (("widths ", shown.widths), ("heights", shown.heights)):
        if sizes:
            least, median, largest = sizes
            lines.append(f"{name} {least} / {median} / {largest} pixels (least / median / largest)")
    width = max(len(name) for name, _ in shown.by_class)
    lines += ["", "usable rows by class"]
    lines += [f"  {name:<{width}}  {count:>8}" for name, count in shown.by_class]
    lines += ["", "rows that a run drops silently"]
    lines += [f"  {count:>8}  {reason}" for reason, count in shown.bad]
    repeats = f"{shown.repeated}, of them under another label: {shown.contradicting}"
    lines += ["", f"repeated inputs among usable rows: {repeats}"]
    if shown.other_files:
        lines.append(f"files that are no images, not read: {shown.other_files}")
    return "\n".join([*lines, *(f"hint: {hint}" for hint in shown.hints)])
