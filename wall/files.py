"""The one number of the formats in which ledgers, anchors, directories and runs are written."""

from __future__ import annotations

FORMAT = 1


def other_format(what: str, found: object) -> str | None:
    """The error of a file that names another format, or none; None where it names this one."""
    if type(found) is int and found == FORMAT:
        return None
    found = repr(found)[:20]
    return f"`format` of {what} must be {FORMAT}. Found {found}. Another labelwall wrote it."
