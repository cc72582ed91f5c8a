"""Counts of the private rows, for the custodian before a run.

Private: none of it may be released, or steer a run's choices.
"""

from ...wall.datasets.config import DataConfig
from ...wall.datasets.sources import describe
from ...wall.guarantee import Unit
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
    if read.other_files:
        lines += ["", f"files that are no images, not read: {read.other_files}"]
    return "\n".join(lines)


def bad_rows(read: Ingested, unit: Unit) -> dict[str, int]:
    """How many rows are left out by reason, zeros included."""
    return {
        text: int((read.verdicts == reason).sum())
        for reason, text in REASONS.items()
        if unit == "person" or reason != NO_PERSON
    }
