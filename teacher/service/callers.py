"""Who calls, by the key of each request, and what callers may use.

Every limit is a function of what callers send, of counts and of the clock. None looks at a record.
"""

import asyncio
import base64
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param

from ...wall.errors import Refused
from ..private_files import log_failure
from .keys import Key
from .replies import refused
from .service_config import MIB, Settings

DAY = 86400.0  # seconds
MAX_BUCKETS = 10_000
FAILURES = 120  # wrong keys of one address at once
FAILURE_RATE = 2.0  # and then each second
BODY_SECONDS = 300.0  # for a whole body
STALL_SECONDS = 10.0  # without a byte of it
BODY_RATE = 64 << 10  # bytes per second on average, after STALL_SECONDS
WAITING = 256  # jobs that wait for the teacher
EXTRACTORS_PER_DAY = 100  # new ones of a caller
UPLOADS_PER_DAY = 2 << 30  # their bytes
GROWTH_PER_DAY = 64 << 20  # bytes of the ledger's entries that a caller may cause
COPIES_PER_DAY = 2 << 30  # bytes of copies of the ledger that a caller may read


class RateLimiter:
    """One token bucket per caller: ``rate`` tokens per second on average, ``burst`` at once.

    Whoever has a full bucket is forgotten, so that many callers do not fill the memory.
    ``refusal``: the code of a refusal.
    """

    def __init__(
        self, rate: float, burst: float, refusal: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._refusal, self._clock = rate, burst, refusal, clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, caller: str, tokens: float = 1.0, needed: float | None = None) -> None:
        """Take tokens. Raises Refused, and takes none, when the caller has fewer than ``needed``
        (None: than ``tokens``).
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
        """Take tokens for what is done already, even more than there are."""
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
        """Hold the caller's place in this context. Raises Refused if it is taken."""
        with self._lock:
            if caller in self._callers:
                raise refused("busy")
            self._callers.add(caller)
        try:
            yield
        finally:
            self._callers.remove(caller)


class Shared:
    """State that all services of one process use together.

    ``report``: records an unexpected failure (its traceback) for the custodian only.
    ``machine``: one thread, which takes the steps of all queues in the order of asking.
    ``rates``, ``failures``: how often each caller may ask, and each address try a wrong key.
    ``extractors``, ``uploads``, ``growth``, ``copies``: what a caller may use in a day without
    being charged. A restart begins a new day.
    """

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.settings, self.report = settings, partial(log_failure, directory, quoting=False)
        self.machine = ThreadPoolExecutor(1, "machine")
        rate = settings.config.requests_per_second
        self.rates = RateLimiter(rate, max(10.0, 2 * rate), "too_fast")  # two seconds' worth
        self.failures = RateLimiter(FAILURE_RATE, FAILURES, "too_many_failures")
        self.extractors, self.uploads, self.growth, self.copies = (
            RateLimiter(amount / DAY, amount, "too_much")
            for amount in (EXTRACTORS_PER_DAY, UPLOADS_PER_DAY, GROWTH_PER_DAY, COPIES_PER_DAY)
        )
        self.copying, self.max_jobs = OneAtATime(), WAITING


def _caller(request: Request, token: str, roles: tuple[str, ...], unknown: str) -> Key:
    """The key of a request. Raises Refused, with the code ``unknown`` for one that is not valid."""
    app = request.app.state
    key, shared = app.keys.authenticate(token), app.service.shared
    if key is None or (unknown == "sign_in" and key.role not in roles):
        if request.headers.get("authorization"):  # a browser first asks without a key
            shared.failures.take(request.client.host if request.client else "")
        raise refused(unknown)
    request.state.caller = key.name
    shared.rates.take(key.name)
    analyst = key.name if key.role == "analyst" else None
    app.connections.begin(request.client, analyst)
    request.state.admitted = request.client, analyst
    if key.role not in roles:
        raise refused("forbidden")
    return key


bearer = HTTPBearer(auto_error=False, description="a key of `labelwall keys`")


def _holder(*roles: str) -> Any:
    """The holder of a key with one of these roles, as a parameter of a route."""

    async def caller(
        request: Request, sent: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]
    ) -> Key:
        return _caller(request, sent.credentials if sent else "", roles, "unauthorized")

    return Depends(caller)


async def browser_custodian(request: Request) -> Key:
    """The key of a custodian in a browser, sent as the password of HTTP Basic authentication.

    A browser adds the password to every request for this address, whichever page makes it. So it
    opens the custodian's page alone, which changes nothing.
    """
    scheme, sent = get_authorization_scheme_param(request.headers.get("authorization"))
    content = ""
    with suppress(ValueError):
        content = base64.b64decode(sent, validate=True).decode()
    token = content.partition(":")[2] if scheme.lower() == "basic" else ""  # after any user's name
    return _caller(request, token, ("custodian",), "sign_in")


Anyone = Annotated[Key, _holder("analyst", "custodian")]
Analyst = Annotated[Key, _holder("analyst")]
Custodian = Annotated[Key, _holder("custodian")]
BrowserCustodian = Annotated[Key, Depends(browser_custodian)]


class BodyReader:
    """Reads request bodies of limited size: about ``body_room`` bytes in all at once.

    What counts is what was received. When the room is full, a caller who holds more than an equal
    part of it is refused; so at most twice the room is ever in use.
    """

    def __init__(self, settings: Settings) -> None:
        self._room, self._limit = settings.body_room, MIB * settings.config.max_body
        self._received = Counter[str]()

    @property
    def in_use(self) -> int:
        """Bytes of the bodies that are being read."""
        return self._received.total()

    async def read(self, request: Request) -> bytes:
        """An uncompressed body. Raises Refused; a body over the limit is not read to its end."""
        if request.headers.get("content-encoding", "identity") != "identity":
            text = "`content-encoding` must be identity: bodies are not unpacked here."
            raise Refused("invalid_input", text)
        if int(request.headers.get("content-length", 0)) > self._limit:  # h11 lets digits pass
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
            self._received -= Counter({caller: len(body)})
        return bytes(body)

    async def _receive(self, request: Request, caller: str, body: bytearray) -> None:
        parts, started = request.stream(), time.monotonic()
        while True:
            async with asyncio.timeout(STALL_SECONDS):
                chunk = await anext(parts, None)
            if chunk is None:
                return
            body += chunk
            self._received[caller] += len(chunk)
            equal_part = self._room // len(self._received)
            if self.in_use > self._room and self._received[caller] > equal_part:
                raise refused("busy")
            passed = time.monotonic() - started
            late = passed > STALL_SECONDS and len(body) < BODY_RATE * passed
            if passed > BODY_SECONDS or late:
                raise TimeoutError
