"""What the routes share: the parameters of a request, and the replies to a job and with a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, BinaryIO

from fastapi import Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse, StreamingResponse

from ...wall.errors import Refused
from . import models
from .jobs import Job
from .limits import MIB
from .refusals import STATUSES

VERSION = "1"
MAX_WAIT = 30.0  # seconds that a request stays open for its job
LEDGER = "application/vnd.sqlite3"

PROBLEMS: dict[int | str, dict[str, Any]] = {code: {"model": models.Problem} for code in STATUSES}
PENDING: dict[int | str, dict[str, Any]] = {
    202: {"model": models.Job, "description": "the job is not finished"}
}
Wait = Annotated[
    float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for the job to finish")
]
Slot = Annotated[int, Query(ge=0, lt=1 << 16, description="which entry of the plan pays")]
Sha256 = Annotated[
    str, Query(pattern="^[0-9a-f]{64}$", description="identity of an extractor that was sent")
]
PathSha256 = Annotated[str, PathParameter(pattern="^[0-9a-f]{64}$")]
Idempotency = Annotated[
    str | None,
    Header(
        pattern="^[A-Za-z0-9_-]{1,64}$",
        description="names a call: sent again with the same body it finds its job and its receipt; "
        "without it, or with another one, the same body is a new call, which is charged nothing",
    ),
]


def binary(description: str, *media: str) -> dict[str, Any]:
    """The OpenAPI description of a body that is not JSON."""
    content = {name: {"schema": {"type": "string", "format": "binary"}} for name in media}
    return {"requestBody": {"required": True, "description": description, "content": content}}


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


def file_reply(file: BinaryIO, headers: Mapping[str, str] | None = None) -> Response:
    """A ledger's copy as a reply, read piece by piece, and closed at the end."""

    def pieces() -> Iterator[bytes]:
        with file:
            while piece := file.read(MIB):
                yield piece

    length = {"content-length": str(os.fstat(file.fileno()).st_size)}
    return StreamingResponse(pieces(), media_type=LEDGER, headers={**(headers or {}), **length})


def _retrieve(waiting: asyncio.Future[Any]) -> None:
    """Look at an outcome that comes after its request has ended, so that asyncio reports none."""
    if not waiting.cancelled():
        waiting.exception()
