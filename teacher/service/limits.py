"""What callers may use. Every limit is a function of what they send, of counts and of the clock.

None looks at a record.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fastapi import Request

from ...wall.errors import Refused
from ..private_files import log_failure
from .config import Settings
from .jobs import Job
from .refusals import refused

DAY = 86400.0  # seconds
MAX_BUCKETS = 10_000
BODY_SECONDS = 300.0  # for a whole body
STALL_SECONDS = 10.0  # without a byte of it
BODY_RATE = 64 << 10  # bytes per second on average, after STALL_SECONDS
WAITING = 256  # jobs that wait for the teacher
EXTRACTORS_PER_DAY = 100  # new ones of a caller
UPLOADS_PER_DAY = 2 << 30  # their bytes
GROWTH_PER_DAY = 64 << 20  # bytes of the ledger's entries that a caller may cause
COPIES_PER_DAY = 2 << 30  # bytes of copies of the ledger that a caller may read


class RateLimiter:
    """One token bucket per caller: ``rate`` tokens per second on average.

    A burst may take two seconds' worth, and at least ``burst``. Whoever has a full bucket is
    forgotten, so that many callers do not fill the memory.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        burst: float = 10.0,
        refusal: str = "too_fast",
    ) -> None:
        self._rate, self._burst, self._clock = rate, max(burst, 2 * rate), clock
        self._refusal = refusal
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    @classmethod
    def daily(cls, amount: float) -> RateLimiter:
        """A limiter of ``amount`` a day, all of which may be taken at once."""
        return cls(amount / DAY, burst=amount, refusal="too_much")

    def take(self, caller: str, tokens: float = 1.0, needed: float | None = None) -> None:
        """Take tokens. Raises Refused, and takes none, when the caller has fewer than ``needed``.

        ``needed``: ``tokens`` if None.
        """
        with self._lock:
            now = self._clock()
            left = self._left(caller, now)
            if left < (tokens if needed is None else needed):
                raise refused(self._refusal)
            self._buckets[caller] = (left - tokens, now)
            if len(self._buckets) > MAX_BUCKETS:
                full = [name for name in self._buckets if self._left(name, now) >= self._burst]
                for name in full:
                    del self._buckets[name]

    def require(self, caller: str) -> None:
        """Raise Refused when the caller has no token at all."""
        self.take(caller, 0.0, needed=1e-9)

    def spend(self, caller: str, tokens: float) -> None:
        """Take tokens for what is done already, also where the caller has fewer."""
        self.take(caller, tokens, needed=float("-inf"))

    def _left(self, caller: str, now: float) -> float:
        left, since = self._buckets.get(caller, (self._burst, now))
        return min(self._burst, left + (now - since) * self._rate)


class OneAtATime:
    """Lets each caller do one thing of a kind at a time."""

    def __init__(self) -> None:
        self._callers: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def by(self, caller: str) -> Iterator[None]:
        """Within, the caller does it. Raises Refused where it does so already."""
        with self._lock:
            if caller in self._callers:
                raise refused("busy")
            self._callers.add(caller)
        try:
            yield
        finally:
            with self._lock:
                self._callers.remove(caller)


class Shared:
    """What all services of one process use together.

    ``report``: records an unexpected failure (its traceback) for the custodian only.
    ``machine``: one thread, which takes the steps of all queues in the order of asking.
    ``extractors`` (a count), ``uploads`` (bytes of extractors), ``growth`` (bytes of the ledger's
    entries), ``copies`` (bytes of copies of the ledger): what a caller may use in a day without
    being charged. A restart begins a new day.
    ``copying``: one copy of a ledger at a time for each caller.
    ``max_jobs``, ``max_bytes``: of queued jobs.
    """

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings, self.report = settings, partial(log_failure, directory, quoting=False)
        self.machine = ThreadPoolExecutor(1, "machine")
        self.extractors = RateLimiter.daily(EXTRACTORS_PER_DAY)
        self.uploads = RateLimiter.daily(UPLOADS_PER_DAY)
        self.growth, self.copies = map(RateLimiter.daily, (GROWTH_PER_DAY, COPIES_PER_DAY))
        self.copying = OneAtATime()
        self.max_jobs, self.max_bytes = WAITING, settings.body_room

    def require_room(self, job: Job, pending: Collection[Job]) -> None:
        """Raise Refused where the queue is full and the caller has an equal part of it.

        Beyond the limits, which are separate for analysts' and for custodians' requests, a caller
        may still use an equal part, so that nobody fills the queue alone; at most twice the limits
        are ever used. ``pending``: the jobs that wait.
        """
        peers = [other for other in pending if other.from_custodian == job.from_custodian]
        mine = [other for other in peers if other.caller == job.caller]
        callers = len({other.caller for other in peers} | {job.caller})
        size, my_size = (sum(other.size for other in each) + job.size for each in (peers, mine))
        full = len(peers) >= self.max_jobs and len(mine) >= max(1, self.max_jobs // callers)
        crowded = bool(peers) and size > self.max_bytes and my_size > self.max_bytes // callers
        if full or crowded:
            raise refused("busy")


class BodyReader:
    """Reads request bodies of at most ``limit`` bytes: about ``room`` bytes in all at once.

    What counts is what was received. When the room is full, a caller who holds more than an equal
    part of it is refused; so at most twice the room is ever in use. A body that stops for
    STALL_SECONDS, comes slower than BODY_RATE, or takes BODY_SECONDS is dropped.
    """

    def __init__(self, room: int, limit: int) -> None:
        self._room, self._limit, self._received = room, limit, Counter[str]()

    @property
    def in_use(self) -> int:
        """Bytes of the bodies that are being read."""
        return self._received.total()

    async def read(self, request: Request) -> bytes:
        """An uncompressed body. Raises Refused; a body over the limit is not read to its end."""
        if request.headers.get("content-encoding", "identity") != "identity":
            text = "`content-encoding` must be identity: bodies are not unpacked here."
            raise Refused("invalid_input", text)
        declared = request.headers.get("content-length", str(self._limit))
        if not (declared.isdecimal() and len(declared) < 16) or int(declared) > self._limit:
            raise refused("too_large")
        caller, body = request.state.caller, bytearray()
        try:
            await self._receive(request, caller, body)
        except TimeoutError as error:
            text = (
                f"a body must arrive within {BODY_SECONDS:g} seconds, at {BODY_RATE >> 10} KiB per "
                f"second on average and without a pause of {STALL_SECONDS:g} seconds."
            )
            raise Refused("invalid_request", text) from error
        finally:
            self._received[caller] -= len(body)
            self._received = +self._received
        return bytes(body)

    async def _receive(self, request: Request, caller: str, body: bytearray) -> None:
        parts, started = request.stream(), time.monotonic()
        while True:
            async with asyncio.timeout(STALL_SECONDS):
                part = await anext(parts, None)
            if part is None:
                return
            body += part
            self._received[caller] += len(part)
            if len(body) > self._limit:
                raise refused("too_large")
            equal_part = self._room // len(self._received)
            if self.in_use > self._room and self._received[caller] > equal_part:
                raise refused("busy")
            passed = time.monotonic() - started
            late = passed > STALL_SECONDS and len(body) < BODY_RATE * passed
            if passed > BODY_SECONDS or late:
                raise TimeoutError
