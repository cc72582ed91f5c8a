"""Who calls: the key of each request, and the service that is its holder's."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.security import HTTPBearer

from ...wall.guarantee import NAME
from .keys import Key, Keys
from .limits import RateLimiter
from .refusals import refused
from .service import Service

FAILURES = 120  # wrong keys of one address at once
FAILURE_RATE = 2.0  # and then each second


class Callers:
    """What is known of callers: their keys, and how often each and each address may try."""

    def __init__(self, keys: Keys, requests_per_second: float) -> None:
        self.keys, self.rates = keys, RateLimiter(requests_per_second)
        self.failures = RateLimiter(FAILURE_RATE, burst=FAILURES, refusal="too_many_failures")


def _caller(request: Request, token: str, roles: tuple[str, ...], unknown: str) -> Key:
    """The key of a request.

    Raises Refused, with the code ``unknown`` for a missing, unknown, expired or revoked key; for a
    role not among ``roles``, too many requests, or too many wrong keys from the same address.
    """
    callers: Callers = request.app.state.callers
    key = callers.keys.authenticate(token)
    if key is None or (unknown == "sign_in" and key.role not in roles):
        if request.headers.get("authorization"):  # a browser first asks without a key
            callers.failures.take(request.client.host if request.client else "")
        raise refused(unknown)
    request.state.caller = key.name
    callers.rates.take(key.name)
    place = request.client, key.name if key.role == "analyst" else None
    request.app.state.connections.begin(*place)
    request.state.admitted = place
    if key.role not in roles:
        raise refused("forbidden")
    return key


def _credentials(request: Request, scheme: str) -> str:
    """The credentials that a request sends under a scheme, empty if none."""
    header = request.headers.get("authorization", "")
    return header[len(scheme) :] if header.lower().startswith(scheme) else ""


bearer = HTTPBearer(auto_error=False, description="a key of `labelwall keys`")


def _holder(*roles: str) -> Any:
    """The holder of a key with one of these roles, as a parameter of a route."""

    async def caller(request: Request, _: Annotated[object, Depends(bearer)]) -> Key:
        return _caller(request, _credentials(request, "bearer "), roles, "unauthorized")

    return Depends(caller)


async def browser_custodian(request: Request) -> Key:
    """The key of a custodian in a browser, sent as the password of HTTP Basic authentication.

    A browser adds the password to every request for this address, whichever page makes it. So the
    password opens the custodian's page alone, which changes nothing. Raises Refused, upon which a
    browser asks for another key.
    """
    try:
        content = base64.b64decode(_credentials(request, "basic "), validate=True).decode()
    except ValueError:
        content = ""
    token = content.partition(":")[2]  # after any name of a user
    return _caller(request, token, ("custodian",), "sign_in")


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
