"""Authentication, rate limits and body limits of every route. Nothing here reads a record."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections import Counter
from collections.abc import Callable

from fastapi import Request

from ...wall.errors import Refused
from .config import ServiceConfig
from .jobs import refused
from .keys import Key, Keys

STATUS = {
    "unauthorized": 401,
    "sign_in": 401,
    "forbidden": 403,
    "quota_reached": 403,
    "another_site": 403,
    "unknown_job": 404,
    "not_found": 404,
    "unknown_extractor": 409,
    "too_large": 413,
    "invalid_input": 422,
    "invalid_request": 422,
    "too_fast": 429,
    "too_many_failures": 429,
    "too_much": 429,
    "busy": 503,
    "shutting_down": 503,
    "ledger_refused": 503,
    "keys_unreadable": 503,
    "teacher_failed": 503,
}
BODY_TIMEOUT = 300  # seconds for a whole body
STALL_TIMEOUT = 10  # seconds without a byte of it
BODY_RATE = 64 << 10  # bytes per second on average, after STALL_TIMEOUT
FAILURES = 120  # wrong keys of one address at once
FAILURE_RATE = 2.0  # and then each second
MAX_BUCKETS = 10_000
DAY = 86400.0  # seconds
RETRIED = ("too_fast", "busy", "shutting_down")  # by clients, on their own
BEARER, BASIC = "bearer ", "basic "
CHALLENGES = {
    "unauthorized": "Bearer",
    "sign_in": 'Basic realm="labelwall custodian", charset="UTF-8"',
}


class RateLimiter:
    """One token bucket per caller: ``rate`` requests per second on average.

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

    def take(self, caller: str, tokens: float = 1.0) -> None:
        """Take tokens. Raises Refused, and takes none, when the caller has fewer."""
        with self._lock:
            now = self._clock()
            left = self._left(caller, now)
            granted = left >= tokens
            self._buckets[caller] = (left - tokens * granted, now)
            if len(self._buckets) > MAX_BUCKETS:
                full = [name for name in self._buckets if self._left(name, now) >= self._burst]
                for name in full:
                    del self._buckets[name]
        if not granted:
            raise refused(self._refusal)

    def require(self, caller: str) -> None:
        """Raise Refused when the caller has no token at all."""
        with self._lock:
            left = self._left(caller, self._clock())
        if left <= 0:
            raise refused(self._refusal)

    def spend(self, caller: str, tokens: float) -> None:
        """Take tokens for what is done already, also where the caller has fewer."""
        with self._lock:
            now = self._clock()
            self._buckets[caller] = (self._left(caller, now) - tokens, now)

    def _left(self, caller: str, now: float) -> float:
        left, since = self._buckets.get(caller, (self._burst, now))
        return min(self._burst, left + (now - since) * self._rate)


def daily(amount: float) -> RateLimiter:
    """A limiter of ``amount`` a day, all of which may be taken at once."""
    return RateLimiter(amount / DAY, burst=amount, refusal="too_much")


class Allowances:
    """What each caller may send, and let the service store, in a day without being charged for it.

    ``extractors``: a count; ``uploads``: bytes of extractors; ``growth``: bytes of the ledger's
    entries. A restart begins a new day.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.extractors = daily(config.extractors_per_day)
        self.uploads = daily(config.extractor_mib_per_day << 20)
        self.growth = daily(config.ledger_mib_per_day << 20)


class Authenticator:
    """Finds the caller of a request and checks the role."""

    def __init__(self, keys: Keys, rates: RateLimiter) -> None:
        self._keys, self._rates = keys, rates
        self._failures = RateLimiter(FAILURE_RATE, burst=FAILURES, refusal="too_many_failures")

    def caller(self, request: Request, roles: tuple[str, ...]) -> Key:
        """The key of a request.

        Raises Refused for a missing, unknown, expired or revoked key, a role not among ``roles``,
        too many requests, or too many wrong keys from the same address.
        """
        key = self._keys.authenticate(_credentials(request, BEARER))
        if key is None:
            self._note_failure(request)
            raise refused("unauthorized")
        self._admit(request, key)
        if key.role not in roles:
            raise refused("forbidden")
        return key

    def browser_custodian(self, request: Request) -> Key:
        """The key of a custodian in a browser, sent as the password of HTTP Basic authentication.

        A browser adds the password to every request for this address, whichever page makes it. So
        the password opens only the custodian's page, and all methods but GET must come from that
        page. Raises Refused, upon which a browser asks for another key.
        """
        key = self._keys.authenticate(_password(_credentials(request, BASIC)))
        if key is None or key.role != "custodian":
            self._note_failure(request)
            raise refused("sign_in")
        self._admit(request, key)
        if request.method != "GET" and request.headers.get("sec-fetch-site") != "same-origin":
            raise refused("another_site")
        return key

    def keys(self) -> dict[str, Key]:
        """All keys by their public half. For the custodian."""
        return self._keys.listed()

    def _note_failure(self, request: Request) -> None:
        if request.headers.get("authorization"):  # a browser first asks without a key
            self._failures.take(request.client.host if request.client else "")

    def _admit(self, request: Request, key: Key) -> None:
        request.state.caller = key.name
        self._rates.take(key.name)
        place = request.client, key.name if key.role == "analyst" else None
        request.app.state.doors.begin(*place)
        request.state.admitted = place


def _credentials(request: Request, scheme: str) -> str:
    """The credentials that a request sends under a scheme, empty if none."""
    header = request.headers.get("authorization", "")
    return header[len(scheme) :] if header.lower().startswith(scheme) else ""


def _password(credentials: str) -> str:
    """The part after the first colon of base64 text. The user name before it is ignored."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


class BodyReader:
    """Reads request bodies: about ``room`` bytes in all at once.

    What counts is what was received. When the room is full, a caller who holds more than an equal
    part of it is refused; so at most twice the room is ever in use. A body that stops for
    STALL_TIMEOUT seconds, comes slower than BODY_RATE, or takes BODY_TIMEOUT seconds is dropped.
    """

    def __init__(self, room: int) -> None:
        self._room, self._held = room, Counter[str]()

    @property
    def in_use(self) -> int:
        """Bytes of the bodies that are being read."""
        return self._held.total()

    async def read(self, request: Request, limit: int) -> bytes:
        """An uncompressed body of at most ``limit`` bytes.

        Raises Refused; a larger body is not read to its end.
        """
        if request.headers.get("content-encoding", "identity") != "identity":
            text = "`content-encoding` must be identity: bodies are not unpacked here."
            raise Refused("invalid_input", text)
        declared = request.headers.get("content-length", str(limit))
        if not (declared.isdigit() and len(declared) < 16) or int(declared) > limit:
            raise refused("too_large")
        caller, body = request.state.caller, bytearray()
        try:
            await self._receive(request, limit, caller, body)
        except TimeoutError as error:
            text = (
                f"a body must arrive within {BODY_TIMEOUT} seconds, at {BODY_RATE >> 10} KiB per "
                f"second on average and without a pause of {STALL_TIMEOUT} seconds."
            )
            raise Refused("invalid_request", text) from error
        finally:
            self._held[caller] -= len(body)
            if not self._held[caller]:
                del self._held[caller]
        return bytes(body)

    async def _receive(self, request: Request, limit: int, caller: str, body: bytearray) -> None:
        parts, started = request.stream(), time.monotonic()
        while True:
            async with asyncio.timeout(STALL_TIMEOUT):
                part = await anext(parts, None)
            if part is None:
                return
            body += part
            self._held[caller] += len(part)
            if len(body) > limit:
                raise refused("too_large")
            if self.in_use > self._room and self._held[caller] > self._room // len(self._held):
                raise refused("busy")
            passed = time.monotonic() - started
            late = passed > STALL_TIMEOUT and len(body) < BODY_RATE * passed
            if passed > BODY_TIMEOUT or late:
                raise TimeoutError


def problem(refusal: Refused) -> tuple[int, dict[str, str], dict[str, str]]:
    """The response to a refusal: (status, JSON, headers)."""
    headers = {"retry-after": "1"} if refusal.code in RETRIED else {}
    if refusal.code in CHALLENGES:
        headers["www-authenticate"] = CHALLENGES[refusal.code]
    return STATUS[refusal.code], {"code": refusal.code, "message": str(refusal)}, headers
