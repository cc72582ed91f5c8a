"""What the ledger has committed before anything is drawn: charges and reservations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .individual_budgets import Payments

# (identities granted, int64 [n_records] remaining units) -> what to reserve
UpperBound = Callable[[tuple[str, ...], np.ndarray], Payments]


@dataclass(frozen=True)
class Charge:
    """A committed charge.

    ``granted``: the identities that it pays for, in request order. The refusal of the others is
    stored. ``count``: releases that it added to what is spent, 0 where a prepaid release was
    charged before.
    """

    seq: int
    granted: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Reservation:
    """A committed reservation under the prepaid charge ``seq``.

    ``granted``: the unanswered identities, in request order. Where there are none, nothing is
    charged and nothing reserved.
    ``count``: 1 where this reservation entered the charge, 0 where the charge existed.
    ``remaining``: int64 [n_records] units that the records had before this reservation.
    ``token``: names the reservation when the exact payments replace it.
    """

    seq: int
    granted: tuple[str, ...]
    count: int
    remaining: np.ndarray = field(repr=False)
    token: bytes = field(repr=False)
