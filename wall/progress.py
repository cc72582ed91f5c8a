"""Progress callbacks of long-running work."""

from collections.abc import Callable

# (task, done, total): the name of a task, and how many of its `total` units are done. A task that
# counts private rows reports percent, or reports to the custodian alone.
Progress = Callable[[str, int, int], None]

# (done, total) of one task
TaskProgress = Callable[[int, int], None]


def no_progress(*_: object) -> None:
    """Report nothing."""
