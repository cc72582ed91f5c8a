"""Every refusal of the service: its code, its status and its constant text."""

from __future__ import annotations

from fastapi.responses import JSONResponse

from ...wall.errors import Refused

RETRIED = ("too_fast", "busy", "shutting_down")  # by clients, on their own
CHALLENGES = {
    "unauthorized": "Bearer",
    "sign_in": 'Basic realm="labelwall custodian", charset="UTF-8"',
}
REFUSALS = {
    "unauthorized": (401, "a valid API key must be sent as `Authorization: Bearer KEY`."),
    "sign_in": (
        401,
        "this page is for a custodian: give a custodian's API key as the password; the user name "
        "does not matter.",
    ),
    "forbidden": (403, "this key's role does not allow the request."),
    "quota_reached": (
        403,
        "the request asks more new queries than this key may still be charged for. "
        "Nothing was charged.",
    ),
    "unknown_job": (404, "there is no such job of this key. Send the request again."),
    "not_found": (404, "there is nothing at this address."),
    "unknown_extractor": (409, "this extractor has to be sent first."),
    "too_large": (413, "the body is larger than this service takes."),
    "invalid_input": (422, "the request's content is out of range."),
    "invalid_request": (422, "the request is not of a form that the service understands."),
    "too_fast": (429, "this key sends more requests than it may. Ask again soon."),
    "too_many_failures": (429, "too many wrong keys came from this address. Ask again later."),
    "too_much": (
        429,
        "this key has used up what it may send, read or let the service store in a day. "
        "Ask again later.",
    ),
    "busy": (503, "too many requests wait for the teacher. Ask again soon."),
    "shutting_down": (503, "the service is shutting down. Ask again soon."),
    "ledger_refused": (
        503,
        "the ledger can not be read or written, so nothing more is released. Tell the custodian.",
    ),
    "keys_unreadable": (
        503,
        "the service's keys can not be read or written, so nobody gets in. Tell the custodian.",
    ),
    "teacher_failed": (
        503,
        "the teacher could not complete the request; what was charged stays charged. Ask again.",
    ),
}
STATUSES = sorted({status for status, _ in REFUSALS.values()} | {405})


def refused(code: str) -> Refused:
    """The refusal with a code's constant text. What happened stays with the custodian."""
    return Refused(code, REFUSALS[code][1])


def response(refusal: Refused, status: int | None = None) -> JSONResponse:
    """The reply to a refused request. ``status``: another one than the code's."""
    headers = {"retry-after": "1"} if refusal.code in RETRIED else {}
    if refusal.code in CHALLENGES:
        headers["www-authenticate"] = CHALLENGES[refusal.code]
    content = {"code": refusal.code, "message": str(refusal)}
    return JSONResponse(content, status or REFUSALS[refusal.code][0], headers=headers)
