"""Progress callbacks of long-running work, and the progress of a run as a whole."""

from collections.abc import Callable, Mapping

# (task, done, total): the name of a task, and how many of its `total` units are done. A task that
# counts private rows reports percent, or reports to the custodian alone.
Progress = Callable[[str, int, int], None]

# (done, total) of one task
TaskProgress = Callable[[int, int], None]


def no_progress(*_: object) -> None:
    """Report nothing."""


# Parts over public rows alone: how long one took tells how long the next one takes
PUBLIC = ("reading", "rehearsal", "training")


class Whole:
    """Parts of a run, in order, with the seconds ``expected`` of each by PUBLIC facts.

    All parts before the present one are done, also those that an earlier process did, and those
    that ended within it. ``part``: the present one, ``since`` when. No time of a part over private
    rows counts for another part.
    """

    def __init__(self, expected: Mapping[str, float]) -> None:
        self.expected, self.part, self.since = dict(expected), "", 0.0
        self.took = dict[str, float]()  # seconds of the last part of each kind
        self.ended = set[str]()
        self.most = 0.0

    def _of(self, part: str) -> float:
        kind = part.split(": ")[-1]
        return self.took.get(kind, self.expected[part]) if kind in PUBLIC else self.expected[part]

    def reached(self, now: float, task_left: float) -> tuple[float, float]:
        """(share done, which never falls by itself; seconds left), if the task wants so many."""
        parts = [*self.expected]
        place = parts.index(self.part) if self.part in parts else 0
        later = [part for part in parts[place + 1 :] if part not in self.ended]
        done = [part for part in parts if part not in (parts[place], *later)]
        here = now - self.since if self.part in parts else 0.0
        left = max(self._of(parts[place]) - here, task_left)
        left += sum(map(self._of, later))
        spent = sum(map(self._of, done)) + here
        self.most = max(self.most, spent / max(spent + left, 1e-9))
        return self.most, left
