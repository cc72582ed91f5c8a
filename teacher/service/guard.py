"""What stands before every route: who asks, how often, how much. Nothing here reads a record."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fastapi import Request

from teacher.service.jobs import failed
from teacher.service.keys import Key, Keys
from wall.errors import Refused

STATUS = {
    "unauthorized": 401,
    "forbidden": 403,
    "quota_reached": 403,
    "unknown_job": 404,
    "not_found": 404,
    "unknown_extractor": 409,
    "too_large": 413,
    "invalid_input": 422,
    "invalid_request": 422,
    "too_fast": 429,
    "busy": 503,
    "shutting_down": 503,
    "ledger_refused": 503,
    "teacher_failed": 503,
}
BUSY = ("too_fast", "busy", "shutting_down")  # what a client tries again by itself
BEARER = "bearer "


class Rates:
    """A token bucket a caller: ``rate`` requests a second on average, two seconds' worth at once and at least ten."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, max(10.0, 2 * rate), clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, caller: str) -> None:
        """Raises Refused when a caller is too fast."""
        with self._lock:
            now = self._clock()
            left, since = self._buckets.get(caller, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._rate)
            granted = left >= 1
            self._buckets[caller] = (left - granted, now)
        if not granted:
            raise failed("too_fast")


class Guard:
    """Finds the caller of a request and lets only some roles pass."""

    def __init__(self, keys: Keys, rates: Rates) -> None:
        self._keys, self._rates = keys, rates

    def caller(self, request: Request, roles: tuple[str, ...]) -> Key:
        """The key of a request. Raises Refused for no key, an unknown, expired or revoked one, a role that is not among
        ``roles``, or too many requests."""
        header = request.headers.get("authorization", "")
        key = self._keys.who(header[len(BEARER) :] if header.lower().startswith(BEARER) else "")
        if key is None:
            raise failed("unauthorized")
        request.state.caller = key.name
        self._rates.take(key.name)
        if key.role not in roles:
            raise failed("forbidden")
        return key


async def read_body(request: Request, limit: int) -> bytes:
    """The body, of at most ``limit`` bytes and not compressed; a larger one is not read to its end.

    Raises Refused.
    """
    if request.headers.get("content-encoding", "identity") != "identity":
        raise Refused("invalid_input", "`content-encoding` must be identity: bodies are not unpacked here.")
    declared = request.headers.get("content-length", "0")
    if not (declared.isdigit() and len(declared) < 16) or int(declared) > limit:
        raise failed("too_large")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise failed("too_large")
    return bytes(body)


def problem(refusal: Refused) -> tuple[int, dict[str, str], dict[str, str]]:
    """(status, JSON, headers) of a refusal."""
    headers = {"retry-after": "1"} if refusal.code in BUSY else {}
    if refusal.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    return STATUS[refusal.code], {"code": refusal.code, "message": str(refusal)}, headers
