"""Room in a queue, shared fairly between those who ask."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .jobs import Job, RepeatJob, refused


@dataclass(frozen=True)
class Room:
    """Limits on queued jobs and their bytes, separate for analysts' and for custodians' requests.

    Beyond them a caller may still use an equal part, so that nobody fills the queue alone; at most
    twice the limits are ever used.
    """

    max_jobs: int
    max_bytes: int

    def require(
        self, job: Job, pending: Iterable[Job], jobs: Iterable[Job], repeated: bool
    ) -> None:
        """Raise Refused where the queue is full and the caller has an equal part of it.

        ``pending``: jobs that wait; ``jobs``: all that are known; ``repeated``: whether ``job``
        repeats one of them, and keeps no bytes.
        """
        peers = [other for other in pending if other.from_custodian == job.from_custodian]
        if not job.from_custodian:
            repeats = (other for other in jobs if isinstance(other, RepeatJob))
            peers += [other for other in repeats if not other.future.done()]
        mine = [other for other in peers if other.caller == job.caller]
        callers = len({other.caller for other in peers} | {job.caller})
        if len(peers) >= self.max_jobs and len(mine) >= max(1, self.max_jobs // callers):
            raise refused("busy")
        size, my_size = (sum(other.size for other in each) + job.size for each in (peers, mine))
        crowded = bool(peers) and size > self.max_bytes
        if not repeated and crowded and my_size > self.max_bytes // callers:
            raise refused("busy")
