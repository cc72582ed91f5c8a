"""The ranges of released values, as far as an auditor can know them.

Exact where a release is a bit, the middle of a cell or a radius that follows from the fields. A
label is a class, whose number no ledger records: it is at least 0 and below ``LARGEST_LABEL``, and
below the number of classes where a histogram shows that. A noisy count lies within what votes can
add up to, and 14 standard deviations of its noise: P(|Z| >= 14 s) <= 2 exp(-98) < 2^-140 for the
discrete Gaussian (Canonne, Kamath, Steinke 2020, Proposition 16 with Corollary 19), hence below
2^-100 for a ledger of 2^40 counts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ....wall.label_kinds import MOST_ATTRIBUTES, STEPS
from ....wall.matrices import MAX_DIMENSIONS, MAX_ENTRIES
from .reading import LARGEST_INTEGER

LARGEST_LABEL = 2**31 - 1
VOTE = 1 << 12  # units of one attribute's vote
BOX = 126  # side of the domain of features, in integers
LARGEST_SQUARE = 1 << 26  # no squared distance of features exceeds it
LARGEST_BATCH = 2048  # queries
DEVIATIONS = 14


@dataclass(frozen=True)
class Results:
    """A release's possible values: ``words``, what one must be, and ``holds(value, beside)``,
    whether it is, in an entry of ``beside`` results.

    ``label``, ``width``: the class in a value, and the number of classes or attributes that it
    shows. ``outputs``: the numbers c of outputs that a sum may have, (d + 1) c + 1 long for d
    features. Each is None where there is none.
    """

    words: str
    holds: Callable[[Any, int], bool]
    label: Callable[[Any], int | None] = lambda value: None
    width: Callable[[Any], int | None] = lambda value: None
    outputs: range | None = None


def bit() -> Results:
    return Results("0 or 1", lambda v, _: _integer(v, 0, 1))


def label() -> Results:
    return Results("a class", lambda v, _: _is_label(v), label=lambda v: v)


def noisy_sum(neighbours: int, sigma: float) -> Results:
    """A sum of values in -STEPS..STEPS of at most ``neighbours`` records, with noise."""
    high = neighbours * STEPS + _tail(sigma)
    return Results(f"an integer from -{high} to {high}", lambda v, _: _integer(v, -high, high))


def middle_of_a_cell(cells: int) -> Results:
    """The middle, rounded down, of one of ``cells`` equal cells of 0..STEPS."""
    middles = frozenset((2 * cell + 1) * (STEPS + 1) // (2 * cells) for cell in range(cells))
    return Results(
        f"the middle of one of {cells} cells", lambda v, _: type(v) is int and v in middles
    )


def attribute_counts(voters: int, sigma: float) -> Results:
    """A noisy count for each attribute, in units of 1/VOTE."""
    low, high = -_tail(sigma), voters * VOTE + _tail(sigma)
    return Results(
        f"1 to {MOST_ATTRIBUTES} integers from {low} to {high}",
        lambda v, _: _integers(v, low, high) and len(v) <= MOST_ATTRIBUTES,
        width=lambda v: len(v),
    )


def histogram(cells: int, sigma: float, records: int) -> Results:
    """A noisy count of at most ``records`` for each cell and class, cell after cell."""
    low, high = -_tail(sigma), records + _tail(sigma)
    return Results(
        f"integers from {low} to {high}, as many for each of {cells} cells",
        lambda v, _: _integers(v, low, high) and len(v) % cells == 0,
        width=lambda v: len(v) // cells,
    )


def noisy_sums(largest: int, sigma: float, records: int, outputs: range) -> Results:
    """Sums over at most ``records`` of entries in -largest..largest, each with noise."""
    high = largest * records + _tail(sigma)
    return Results(
        f"integers from -{high} to {high}, one more than d + 1 for each output",
        lambda v, _: _integers(v, -high, high) and is_sum(len(v), outputs),
        outputs=outputs,
    )


def is_sum(length: int, outputs: range) -> bool:
    """Whether a sum for any number of features and one of these numbers of outputs is so long."""
    return length <= MAX_ENTRIES + 1 and any(
        (length - 1) % c == 0 and 2 <= (length - 1) // c <= MAX_DIMENSIONS + 1 for c in outputs
    )


def count_and_label(sigma: float, records: int) -> Results:
    """[noisy number of neighbours, class]."""
    low, high = -_tail(sigma), records + _tail(sigma)
    return Results(
        f"[an integer from {low} to {high}, a class]",
        lambda v, _: (
            type(v) is list and len(v) == 2 and _integer(v[0], low, high) and _is_label(v[1])
        ),
        label=lambda v: v[1],
    )


def ball(*, everyone: bool, squares: tuple[int, int]) -> Results:
    """[class, bound, squared radius] of one query of a batch.

    The bound counts queries of the batch, this one included; where ``everyone``, it is exactly the
    batch's size. ``squares``: the least and the largest squared radius.
    """

    def holds(value: Any, beside: int) -> bool:
        if not _integers(value, -1, LARGEST_INTEGER) or len(value) != 3 or beside > LARGEST_BATCH:
            return False
        label, bound, square = value
        counted = bound == beside if everyone else 1 <= bound <= beside
        return _is_label(label) and counted and squares[0] <= square <= squares[1]

    words = "[class, bound of a clique among the batch, squared radius]"
    return Results(words, holds, label=lambda v: v[0])


def square_of(radius: float) -> int:
    """A radius in sides of the box, squared, in integers."""
    return min(round((Fraction(radius) * BOX) ** 2), LARGEST_SQUARE)


def _tail(sigma: float) -> int:
    return math.ceil(DEVIATIONS * sigma) + 1


def _integer(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _integers(value: Any, low: int, high: int) -> bool:
    listed = type(value) is list and len(value) > 0
    return listed and all(_integer(entry, low, high) for entry in value)


def _is_label(value: Any) -> bool:
    return _integer(value, 0, LARGEST_LABEL)
