"""The custodian's routes that change the records."""

from __future__ import annotations

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from ...wall.errors import Refused
from ...wall.wire import MAX_ROWS, SAFETENSORS, decode
from ..records.persons import codes_of
from ..records.sources import received
from . import models
from .jobs import TaskJob, job_id
from .route_parts import (
    MIB,
    PENDING,
    PROBLEMS,
    Custodian,
    Wait,
    app_service,
    binary,
    media_of,
    reply,
)

REMOVAL_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": models.Removal.model_json_schema()}},
    }
}
RECORDS_BODY = binary(
    "`inputs` as for queries, `labels` int64 [n], `ids` int64 [n], and `persons` int64 [n] where "
    "the unit of privacy is a person",
    SAFETENSORS,
)
router = APIRouter(prefix="/v1", responses=PROBLEMS)


@router.post("/records", response_model=models.Job, responses=PENDING, openapi_extra=RECORDS_BODY)
async def add_records(request: Request, key: Custodian, wait: Wait = 0.0) -> Response:
    """Add records. Rows that are present with the same content are left unchanged.

    Where the unit of privacy is a person, `persons` (int64, one for each row) says whose they are.
    """
    service = app_service(request)
    body = await service.record_bodies.read(request, service.config.max_request * MIB)
    unit = service.plan.unit
    names = ("inputs", "labels", "ids", *(["persons"] if unit == "person" else []))
    rows = service.config.max_rows
    found = await run_in_threadpool(decode, body, media_of(request), names, rows)
    records = received(found)

    def work() -> dict[str, object]:
        (service.analysts or service.teacher).add(records)
        return {"records": len(records.ids)}

    identity = job_id(key.name, "add", {}, body)
    job = TaskJob(identity, key.name, "add", 1, None, len(body), from_custodian=True, work=work)
    return await reply(service.queue.submit(job, repeatable=False), wait)


@router.post(
    "/records/removals", response_model=models.Job, responses=PENDING, openapi_extra=REMOVAL_BODY
)
async def remove_records(request: Request, key: Custodian, wait: Wait = 0.0) -> Response:
    """Remove records by id and delete their data. An unknown id is no error.

    Where the unit of privacy is a person, ids are persons', numbers or texts: all their rows go.
    """
    service = app_service(request)
    # FastAPI would read the whole body, and before the key is checked.
    body = await service.record_bodies.read(request, service.config.max_request * MIB)
    try:
        removal = models.Removal.model_validate_json(body)
    except ValidationError as error:
        text = (
            f"the body must be a JSON object with `ids`, a list of at most {MAX_ROWS} "
            "whole numbers of 64 bits."
        )
        raise Refused("invalid_request", text) from error
    by_person = service.plan.unit == "person"
    if not by_person and any(isinstance(each, str) for each in removal.ids):
        raise Refused("invalid_request", "`ids` of rows must be whole numbers of 64 bits.")
    texts = [str(each) for each in removal.ids]
    ids = codes_of(texts) if by_person else np.array(removal.ids, dtype=np.int64)

    def work() -> dict[str, object]:
        (service.analysts or service.teacher).remove(ids)
        return {"records": len(ids)}

    identity = job_id(key.name, "remove", {}, ids.tobytes())
    job = TaskJob(identity, key.name, "remove", 1, None, ids.nbytes, from_custodian=True, work=work)
    return await reply(service.queue.submit(job, repeatable=False), wait)
