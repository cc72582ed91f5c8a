"""One root exception; leaves carry typed attributes and say the rule, the value found and the cure."""

from __future__ import annotations

import numpy as np


class LabelwallError(Exception):
    """Root of every error a user can meet. The command line prints its text on one line and exits with 2."""


class InvalidInput(LabelwallError):
    """A parameter breaks a rule. ``found`` is a parameter of the caller's, never a private record."""

    def __init__(self, name: str, rule: str, found: object, cure: str = "") -> None:
        self.name, self.rule, self.found = name, rule, found
        super().__init__(
            f"`{name}` must be {rule}. Found {found!r}." + (f" {cure}" if cure else "")
        )


class MissingData(LabelwallError):
    """A file or folder that a data source needs is not there."""


class BudgetRefused(LabelwallError):
    """The configuration costs more than the budget, or the budget can not buy a single answer. Nothing was read."""


class LedgerMismatch(LabelwallError):
    """The ledger belongs to another data set or plan, is older than its anchor, or does not verify."""


class TeacherFailed(LabelwallError):
    """The one constant a caller sees for any failure after a charge; details stay on the private side."""

    def __init__(self) -> None:
        super().__init__(
            "the teacher could not complete the request; what was charged stays charged. Ask again."
        )


class Refused(LabelwallError):
    """The service refused a request, or could not be reached. ``code``: why, one of a fixed list (docs/guide.md)."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        super().__init__(text)


def shape_text(rows: np.ndarray) -> str:
    """Dtype and shape without the number of rows, which is private on one side: "uint8 [n, 28, 28]"."""
    shape = ", ".join(["n", *map(str, rows.shape[1:])]) if rows.ndim else ""
    return f"{rows.dtype} [{shape}]"
