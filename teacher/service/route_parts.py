"""What the routes share: who calls, the parameters of a request, and the reply to a job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, BinaryIO

from fastapi import Depends, Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPBearer

from ...wall.adversary import NAME
from ...wall.errors import Refused
from . import models
from .auth import STATUS
from .jobs import Job, refused
from .keys import Key
from .state import Service

VERSION = "1"
MAX_WAIT = 30.0  # seconds that a request stays open for its job
MIB = 1 << 20

PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": models.Problem} for code in sorted({*STATUS.values(), 405})
}
bearer = HTTPBearer(auto_error=False, description="a key of `labelwall keys`")


def app_service(request: Request) -> Service:
    """The service of the application that received a request."""
    return request.app.state.service


async def service_for(request: Request, key: Key, analyst: str | None = None) -> Service:
    """The service of a key: the analyst's own where each has one.

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
    if analyst is not None and analyst not in await run_in_threadpool(service.analysts.names):
        raise refused("not_found")
    return await run_in_threadpool(service.analysts.of, key.name if analyst is None else analyst)


async def anyone(request: Request, _: Annotated[object, Depends(bearer)]) -> Key:
    """The holder of any valid key."""
    return app_service(request).auth.caller(request, ("analyst", "custodian"))


async def analyst(request: Request, _: Annotated[object, Depends(bearer)]) -> Key:
    """The holder of an analyst's key."""
    return app_service(request).auth.caller(request, ("analyst",))


async def custodian(request: Request, _: Annotated[object, Depends(bearer)]) -> Key:
    """The holder of a custodian's key."""
    return app_service(request).auth.caller(request, ("custodian",))


Anyone = Annotated[Key, Depends(anyone)]
Analyst = Annotated[Key, Depends(analyst)]
Custodian = Annotated[Key, Depends(custodian)]
Wait = Annotated[
    float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for the job to finish")
]
Slot = Annotated[int, Query(ge=0, lt=1 << 16, description="which entry of the plan pays")]
Sha256 = Annotated[
    str, Query(pattern="^[0-9a-f]{64}$", description="identity of an extractor that was sent")
]
OfAnalyst = Annotated[
    str | None,
    Query(
        pattern=f"^{NAME}$",
        description="for a custodian: the analyst whose ledger is read, where each has one",
    ),
]
Idempotency = Annotated[
    str | None,
    Header(
        pattern="^[A-Za-z0-9_-]{1,64}$",
        description="names a call: sent again with the same body it finds its job and its receipt; "
        "without it, or with another one, the same body is a new call, which is charged nothing",
    ),
]
PathSha256 = Annotated[str, PathParameter(pattern="^[0-9a-f]{64}$")]


def binary(description: str, *media: str) -> dict[str, Any]:
    """The OpenAPI description of a body that is not JSON."""
    content = {name: {"schema": {"type": "string", "format": "binary"}} for name in media}
    return {"requestBody": {"required": True, "description": description, "content": content}}


PENDING: dict[int | str, dict[str, Any]] = {
    202: {"model": models.Job, "description": "the job is not finished"}
}


def media_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def reply(job: Job, wait: float) -> Response:
    """200 with the result, 202 while there is none, or the job's refusal.

    No part of the state depends on private rows.
    """
    if wait > 0 and not job.future.done():
        waiting = asyncio.wrap_future(job.future)
        waiting.add_done_callback(_retrieve)
        await asyncio.wait([waiting], timeout=wait)
    state = {
        "job": job.id,
        "kind": job.kind,
        "status": job.status,
        "done": job.done,
        "total": job.total,
    }
    if not job.future.done():
        return JSONResponse(state, 202)
    refusal = job.future.exception()
    if isinstance(refusal, Refused):
        raise Refused(refusal.code, str(refusal))
    return JSONResponse({**state, "status": "done", "result": job.future.result()})


def sent(file: BinaryIO, media: str, headers: Mapping[str, str] | None = None) -> Response:
    """A file as a reply, which passes through memory in pieces. It is closed at the end."""

    def pieces() -> Iterator[bytes]:
        with file:
            while piece := file.read(MIB):
                yield piece

    length = {"content-length": str(os.fstat(file.fileno()).st_size)}
    return StreamingResponse(pieces(), media_type=media, headers={**(headers or {}), **length})


def _retrieve(waiting: asyncio.Future[Any]) -> None:
    """Look at an outcome that comes after its request has ended, so that asyncio reports none."""
    if not waiting.cancelled():
        waiting.exception()
