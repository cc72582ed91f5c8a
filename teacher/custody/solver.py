"""The numbers of a schedule that its budget decides: the noise of what is released."""

from collections.abc import Sequence

from ...wall.progress import Progress, no_progress
from .schedule import Schedule


def solved(schedule: Schedule, progress: Progress = no_progress) -> Schedule:
    """The schedule with every number that the budget decides, which may take a minute."""
    priced = schedule.priced()
    if not any(entry.mechanism.uncalibrated for entry in priced):
        return schedule
    from ..mechanisms.calibration import calibrate  # the import takes a second

    epsilon, delta = schedule.budget.epsilon, schedule.budget.delta
    return schedule.with_mechanisms(calibrate(priced, epsilon, delta, progress))


def solved_numbers(given: Schedule, filled: Schedule) -> list[dict[str, float]]:
    """For each slot the numbers that the ``given`` schedule leaves to the budget, as ``filled``."""
    pairs = zip(given.priced(), filled.priced(), strict=True)
    return [{n: k.mechanism.require(n) for n in e.mechanism.uncalibrated} for e, k in pairs]


def solved_line(numbers: Sequence[dict[str, float]]) -> str | None:
    """``solved_numbers`` in one line; None where there are none."""
    slots = [
        ", ".join(f"{name} {value:g}" for name, value in values.items())
        + (f" (slot {slot})" if len(numbers) > 1 else "")
        for slot, values in enumerate(numbers)
        if values
    ]
    return f"noise from the budget: {'; '.join(slots)}" if slots else None
