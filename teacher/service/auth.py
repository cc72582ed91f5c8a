"""Authentication, rate limits and body limits of every route. Nothing here reads a record."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Callable

from fastapi import Request

from labelwall.teacher.service.jobs import refused
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
BODY_TIMEOUT = 300  # seconds
RETRIED = ("too_fast", "busy", "shutting_down")  # by clients, on their own
BEARER, BASIC = "bearer ", "basic "
CHALLENGES = {
    "unauthorized": "Bearer",
    "sign_in": 'Basic realm="labelwall custodian", charset="UTF-8"',
}


class RateLimiter:
    """One token bucket per caller: ``rate`` requests per second on average.

    A burst may take two seconds' worth, and at least ten.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, max(10.0, 2 * rate), clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, caller: str) -> None:
        """Take one token. Raises Refused when the caller has none."""
        with self._lock:
            now = self._clock()
            left, since = self._buckets.get(caller, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._rate)
            granted = left >= 1
            self._buckets[caller] = (left - granted, now)
        if not granted:
            raise refused("too_fast")


class Authenticator:
    """Finds the caller of a request and checks the role."""

    def __init__(self, keys: Keys, rates: RateLimiter) -> None:
        self._keys, self._rates = keys, rates

    def caller(self, request: Request, roles: tuple[str, ...]) -> Key:
        """The key of a request.

        Raises Refused for a missing, unknown, expired or revoked key, a role not among ``roles``,
        or too many requests.
        """
        key = self._keys.authenticate(_credentials(request, BEARER))
        if key is None:
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
            raise refused("sign_in")
        self._admit(request, key)
        if request.method != "GET" and request.headers.get("sec-fetch-site") != "same-origin":
            raise refused("another_site")
        return key

    def keys(self) -> dict[str, Key]:
        """All keys by their public half. For the custodian."""
        return self._keys.listed()

    def _admit(self, request: Request, key: Key) -> None:
        request.state.caller = key.name
        self._rates.take(key.name)


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
    """Reads request bodies: ``room`` bytes in all at once, each within BODY_TIMEOUT seconds."""

    def __init__(self, room: int) -> None:
        self._room, self._in_use = room, 0

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
        if self._in_use and self._in_use + int(declared) > self._room:
            raise refused("busy")
        self._in_use += int(declared)
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                return await _receive(request, limit)
        except TimeoutError as error:
            text = f"the body must arrive within {BODY_TIMEOUT} seconds."
            raise Refused("invalid_request", text) from error
        finally:
            self._in_use -= int(declared)


async def _receive(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise refused("too_large")
    return bytes(body)


def problem(refusal: Refused) -> tuple[int, dict[str, str], dict[str, str]]:
    """The response to a refusal: (status, JSON, headers)."""
    headers = {"retry-after": "1"} if refusal.code in RETRIED else {}
    if refusal.code in CHALLENGES:
        headers["www-authenticate"] = CHALLENGES[refusal.code]
    return STATUS[refusal.code], {"code": refusal.code, "message": str(refusal)}, headers
