"""What stands before every route: who asks, how often, how much. Nothing here reads a record."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable

from fastapi import Request

from labelwall.teacher.service.jobs import failed
from labelwall.teacher.service.keys import Key, Keys
from labelwall.wall.errors import Refused

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
    "busy": 503,
    "shutting_down": 503,
    "ledger_refused": 503,
    "teacher_failed": 503,
}
SLOWEST = 300  # seconds
BUSY = ("too_fast", "busy", "shutting_down")  # what a client tries again by itself
BEARER, BASIC = "bearer ", "basic "
CHALLENGES = {
    "unauthorized": "Bearer",
    "sign_in": 'Basic realm="labelwall custodian", charset="UTF-8"',
}


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
        key = self._keys.who(_sent(request, BEARER))
        if key is None:
            raise failed("unauthorized")
        self._admit(request, key)
        if key.role not in roles:
            raise failed("forbidden")
        return key

    def keeper(self, request: Request) -> Key:
        """The custodian in front of a browser, which sends a key as the password of HTTP Basic authentication.

        A browser adds that to every request for this address, whichever page asks. So it opens the custodian's page and nothing
        else, and what is not just looked at has to come from that page. Raises Refused; a browser then asks for another key.
        """
        key = self._keys.who(_password(_sent(request, BASIC)))
        if key is None or key.role != "custodian":
            raise failed("sign_in")
        self._admit(request, key)
        if request.method != "GET" and request.headers.get("sec-fetch-site") != "same-origin":
            raise failed("another_site")
        return key

    def keys(self) -> dict[str, Key]:
        """All keys by their public half, for the custodian."""
        return self._keys.listed()

    def _admit(self, request: Request, key: Key) -> None:
        request.state.caller = key.name
        self._rates.take(key.name)


def _sent(request: Request, scheme: str) -> str:
    """The credentials that a request sends by a scheme, empty where it sends none."""
    header = request.headers.get("authorization", "")
    return header[len(scheme) :] if header.lower().startswith(scheme) else ""


def _password(credentials: str) -> str:
    """What follows the first colon of base64 text; the user name before it does not matter."""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


class Bodies:
    """Reads request bodies, of so many bytes (``room``) at once in all, each within SLOWEST seconds."""

    def __init__(self, room: int) -> None:
        self._room, self._held = room, 0

    async def read(self, request: Request, limit: int) -> bytes:
        """A body of at most ``limit`` bytes, not compressed; a larger one is not read to its end. Raises Refused."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused(
                "invalid_input",
                "`content-encoding` must be identity: bodies are not unpacked here.",
            )
        declared = request.headers.get(
            "content-length", str(limit)
        )  # none: as much as there may be
        if not (declared.isdigit() and len(declared) < 16) or int(declared) > limit:
            raise failed("too_large")
        if self._held and self._held + int(declared) > self._room:
            raise failed("busy")
        self._held += int(declared)
        try:
            async with asyncio.timeout(SLOWEST):
                return await _received(request, limit)
        except TimeoutError as error:
            raise Refused(
                "invalid_request", f"the body must arrive within {SLOWEST} seconds."
            ) from error
        finally:
            self._held -= int(declared)


async def _received(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise failed("too_large")
    return bytes(body)


def problem(refusal: Refused) -> tuple[int, dict[str, str], dict[str, str]]:
    """(status, JSON, headers) of a refusal."""
    headers = {"retry-after": "1"} if refusal.code in BUSY else {}
    if refusal.code in CHALLENGES:
        headers["www-authenticate"] = CHALLENGES[refusal.code]
    return STATUS[refusal.code], {"code": refusal.code, "message": str(refusal)}, headers
