"""One root exception; its leaves carry typed attributes and state rule, value and cure."""

import difflib
import errno
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np

LISTED = 10  # names in a line
LONGEST, LONGEST_TEXT = 200, 2000  # characters of a value in an error, and of the whole
_LONG_WORD = re.compile(rf"(?<!\S)(?=\S{{{LONGEST + 10}}})(\S{{{LONGEST}}})\S*")


class LabelwallError(Exception):
    """Root of all errors that users see: one line, cut since it may quote a file."""

    def __init__(self, text: str = "") -> None:
        words = _LONG_WORD.sub(lambda word: f"{word[1]}...", text)
        super().__init__(words if len(words) <= LONGEST_TEXT else f"{words[:LONGEST_TEXT]}...")

    def __reduce__(self) -> tuple[Any, ...]:
        """The error as another process gets it, whatever arguments its class takes."""
        return Exception.__new__, (type(self), *self.args), vars(self)


class InvalidInput(LabelwallError):
    """A parameter breaks a rule. ``found`` is the caller's own value, never a private record.

    ``text``: what is said instead of rule and value.
    """

    def __init__(
        self, name: str, rule: str, found: object, cure: str = "", *, text: str = ""
    ) -> None:
        self.name, self.rule, self.found, self.cure = name, rule, found, cure
        text = text or f"`{name}` must be {rule}. Found {shortened(found)}."
        super().__init__(f"{text} {cure}" if cure else text)

    @classmethod
    def needless(cls, name: str, why: str, cure: str = "") -> Self:
        """The error of a parameter that has to be left out; its rule says why."""
        return cls(name, why, None, cure, text=f"Leave out `{name}`: {why}.")

    @classmethod
    def missing(cls, name: str, why: str, cure: str = "") -> Self:
        """The error of a parameter that has to be given; its rule says why."""
        return cls(name, why, None, cure, text=f"Give `{name}`: {why}.")


class MissingData(LabelwallError):
    """A file or folder that a data source needs does not exist."""


class BudgetRefused(LabelwallError):
    """The configuration exceeds the budget, or the budget buys no answer. Nothing was read."""


class LedgerMismatch(LabelwallError):
    """The ledger is of another data set or plan, is older than its anchor, or does not verify."""


class TeacherFailed(LabelwallError):
    """The constant text callers see for any failure after a charge. Details stay private."""

    def __init__(self) -> None:
        super().__init__(
            "the teacher could not complete the request. What was charged stays charged, and "
            "asking again may charge again. Let the custodian find the fault first."
        )


class Refused(LabelwallError):
    """The service refused a request, or is unreachable. ``code``: the reason (docs/service.md)."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Raise MissingData if an import inside fails.

    ``name``: the extra of pyproject.toml that installs it; ``what``: what needs it, in the plural.
    """
    try:
        yield
    except ImportError as error:
        raise MissingData(f"{what} need: pip install 'labelwall[{name}]' ({error}).") from error


def reason_of(error: OSError) -> str:
    """What the machine refused, in one line."""
    named = f"{error.filename}: " if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{named}the disk is full. Make room; the same command continues where it stopped."
    return f"{named}{error.strerror or type(error).__name__}."


def shortened(value: object) -> str:
    """A value as an error shows it: at most LONGEST characters of a text, or of what it prints."""
    if isinstance(value, str | bytes):
        cut = value[:LONGEST]
        return repr(cut) + ("..." if len(cut) < len(value) else "")
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def listed(words: Iterable[object]) -> str:
    """The first LISTED words, and how many more there are."""
    known = [str(word) for word in words]
    more = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return ", ".join(known[:LISTED]) + more


def require_known(name: str, given: Collection[str], known: Collection[str], what: str) -> None:
    """Raise InvalidInput if a setting names what is not ``known``; ``what`` these names are."""
    for unknown in (each for each in given if each not in known):
        raise InvalidInput(name, f"{what}, of {listed(known)}", unknown, meant(unknown, known))


def meant(unknown: str, known: Collection[str]) -> str:
    """The question whether the nearest of the ``known`` names was meant; empty if none is near."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(unknown.lower(), names, n=1)
    return f"Did you mean {names[near[0]]!r}?" if near else ""


def shape_text(rows: np.ndarray) -> str:
    """Dtype and shape without the number of rows, which may be private.

    >>> shape_text(np.zeros((5, 28, 28), dtype=np.uint8))
    'uint8 [n, 28, 28]'
    """
    shape = ", ".join(["n", *map(str, rows.shape[1:])]) if rows.ndim else ""
    return f"{rows.dtype} [{shape}]"
