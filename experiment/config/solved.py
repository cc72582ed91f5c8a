"""The numbers that a configuration leaves to its budget, for a reader."""

from __future__ import annotations

from collections.abc import Sequence

from .config import Config


def solved_numbers(config: Config, solved: Config | None = None) -> list[dict[str, float]]:
    """For each slot the numbers that ``config`` leaves to the budget."""
    pairs = zip(config.priced(), (solved or config.solved()).priced(), strict=True)
    return [{n: known.mechanism.require(n) for n in e.mechanism.uncalibrated} for e, known in pairs]


def solved_line(solved: Sequence[dict[str, float]]) -> str | None:
    """``solved_numbers`` in one line; None where there are none."""
    slots = [
        ", ".join(f"{name} {value:g}" for name, value in numbers.items())
        + (f" (slot {slot})" if len(solved) > 1 else "")
        for slot, numbers in enumerate(solved)
        if numbers
    ]
    return f"noise from the budget: {'; '.join(slots)}" if slots else None
