"""Replies and refusals of the service, with the forms of its OpenAPI document. Every number
is released, or a parameter of the plan or of the caller.
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from ...wall.errors import Refused, TeacherFailed
from ...wall.messages import Receipt
from ...wall.wire import MAX_ROWS

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
        "this key has fewer new queries left than the request asks for. Nothing more was charged.",
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
    "teacher_failed": (503, str(TeacherFailed())),
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


class Refusal(BaseModel):
    """Why a request was refused: a constant text, or the caller's own parameter."""

    code: str
    message: str


class Result(BaseModel):
    """The result of a finished job. For queries: labels (by attribute if rows have attributes, in
    steps if they have a value) and outcomes. For a matrix: noisy counts by cell and class, or one
    row of noisy sums (null: cap reached); the extractor that is ready; or how many records a
    request had.
    """

    labels: list[int] | list[list[int]] | None = None
    outcomes: list[int] | None = None
    counts: list[list[int]] | None = None
    receipt: Receipt | None = None
    extractor: str | None = None
    records: int | None = None


class JobState(BaseModel):
    """The state of a request: queued, running, done or failed. ``done`` of ``total``: its own
    distinct queries that are answered; for other requests 0 of 1 until done.
    """

    job: str
    kind: str
    status: str
    done: int
    total: int
    result: Result | None = None


@dataclass(frozen=True)
class ReleaseLeft:
    """A release of the plan, its cap, and how many are spent and left."""

    slot: int
    release: str
    cap: int
    spent: int
    left: int


class Spent(BaseModel):
    """``charged``: new queries noted for ``name``: the caller, or the analyst of the ledger."""

    name: str
    dataset: str
    adversary: str
    releases: list[ReleaseLeft]
    ledger_position: int
    ledger_head: str
    charged: int


class Budget(Spent):
    """``epsilon`` is certified against the ``adversary`` for any queries and for the ``unit`` of
    privacy (row, or person: all rows of one); null where nothing is certified. ``queries``: this
    key's own cap on new queries, null for none; a noisy sum or histogram counts as one.
    ``features``: what the custodian's configuration asks with.
    """

    unsafe: bool
    epsilon: float | None
    delta: float
    unit: str
    plan: dict[str, object]
    queries: int | None
    features: dict[str, object]


class NotedCharge(BaseModel):
    """A call charged for ``queries`` new queries after the ledger's entry ``ledger_position``."""

    caller: str
    slot: int
    queries: int
    ledger_position: int
    adversary: str


class AnalystsSpent(BaseModel):
    """``epsilon``: certified against the ``adversary``, for the ``unit`` of privacy; ``pooled``:
    epsilon at the same delta if that many of them pool their answers. Where all share one budget,
    ``analysts`` and ``pooled`` are empty.
    """

    adversary: str
    unit: str
    epsilon: float | None
    delta: float
    analysts: list[Spent]
    pooled: dict[int, float]


class Removal(BaseModel):
    """Ids of records to remove, present or not; of persons where those are the unit of privacy."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: Annotated[
        list[
            Annotated[int, Field(ge=-(2**63), lt=2**63)]
            | Annotated[str, Field(min_length=1, max_length=256)]
        ],
        Field(max_length=MAX_ROWS),
    ]
