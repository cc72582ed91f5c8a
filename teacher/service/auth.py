"""Who calls: the key of each request, and the service that is its holder's."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.security import HTTPBearer

from ...wall.adversary import NAME
from .keys import Key, Keys
from .limits import RateLimiter
from .refusals import refused
from .service import Service

FAILURES = 120  # wrong keys of one address at once
FAILURE_RATE = 2.0  # and then each second


class Authenticator:
    """Knows the caller of a request by the key, and checks the role."""

    def __init__(self, keys: Keys, requests_per_second: float) -> None:
        self.keys, self._rates = keys, RateLimiter(requests_per_second)
        self._failures = RateLimiter(FAILURE_RATE, burst=FAILURES, refusal="too_many_failures")

    def caller(self, request: Request, *roles: str) -> Key:
        """The key of a request.

        Raises Refused for a missing, unknown, expired or revoked key, a role not among ``roles``,
        too many requests, or too many wrong keys from the same address.
        """
        key = self.keys.authenticate(_credentials(request, "bearer "))
        if key is None:
            raise self._failure(request, "unauthorized")
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
        key = self.keys.authenticate(_password(_credentials(request, "basic ")))
        if key is None or key.role != "custodian":
            raise self._failure(request, "sign_in")
        self._admit(request, key)
        if request.method != "GET" and request.headers.get("sec-fetch-site") != "same-origin":
            raise refused("another_site")
        return key

    def _failure(self, request: Request, code: str) -> Exception:
        """The refusal of a wrong key, which is counted. A browser first asks without a key."""
        if request.headers.get("authorization"):
            self._failures.take(request.client.host if request.client else "")
        return refused(code)

    def _admit(self, request: Request, key: Key) -> None:
        request.state.caller = key.name
        self._rates.take(key.name)
        place = request.client, key.name if key.role == "analyst" else None
        request.app.state.connections.begin(*place)
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


bearer = HTTPBearer(auto_error=False, description="a key of `labelwall keys`")


def _holder(*roles: str) -> Any:
    """The holder of a key with one of these roles, as a parameter of a route."""

    async def caller(request: Request, _: Annotated[object, Depends(bearer)]) -> Key:
        return request.app.state.authenticator.caller(request, *roles)

    return Depends(caller)


async def browser_custodian(request: Request) -> Key:
    """The custodian in a browser."""
    return request.app.state.authenticator.browser_custodian(request)


def app_service(request: Request) -> Service:
    """The service of the application that received a request."""
    return request.app.state.service


def service_for(request: Request, key: Key, analyst: str | None = None) -> Service:
    """The service of a key: the analyst's own where each has one. Waits: for a thread.

    A custodian's key may name any ``analyst`` with a ledger. Raises Refused for another analyst or
    an unknown one, LedgerMismatch where a ledger cannot be opened.
    """
    service = app_service(request)
    if analyst is not None and key.role != "custodian":
        raise refused("forbidden")
    if service.analysts is None or (analyst is None and key.role == "custodian"):
        if analyst is not None:
            raise refused("not_found")
        return service
    if analyst is not None and analyst not in service.analysts.names():
        raise refused("not_found")
    return service.analysts.of(key.name if analyst is None else analyst)


Anyone = Annotated[Key, _holder("analyst", "custodian")]
Analyst = Annotated[Key, _holder("analyst")]
Custodian = Annotated[Key, _holder("custodian")]
BrowserCustodian = Annotated[Key, Depends(browser_custodian)]
OfAnalyst = Annotated[
    str | None,
    Query(
        pattern=f"^{NAME}$",
        description="for a custodian: the analyst whose ledger is read, where each has one",
    ),
]
