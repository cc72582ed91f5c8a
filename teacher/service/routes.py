"""The routes under /v1. Each checks the caller and the body, and submits a job to the queue."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import ValidationError

from labelwall.teacher.records.persons import codes_of
from labelwall.teacher.records.sources import received
from labelwall.teacher.service import models
from labelwall.teacher.service.auth import STATUS
from labelwall.teacher.service.jobs import (
    Extractor,
    Job,
    QueryJob,
    TaskJob,
    distinct_rows,
    job_id,
    refused,
)
from labelwall.teacher.service.keys import Key
from labelwall.teacher.service.state import (
    Service,
    analyst_services,
    export_ledger,
    pooled_epsilons,
    releases_left,
)
from labelwall.wall.adversary import NAME
from labelwall.wall.errors import InvalidInput, Refused
from labelwall.wall.matrices import MATRICES
from labelwall.wall.messages import Queries
from labelwall.wall.wire import MAX_ROWS, NPY, SAFETENSORS, decode, decode_extractor

VERSION = "1"
MAX_WAIT = 30.0  # seconds that a request stays open for its job
MIB = 1 << 20

PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": models.Problem} for code in sorted({*STATUS.values(), 405})
}
router = APIRouter(prefix="/v1", responses=PROBLEMS)
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


def _binary(description: str, *media: str) -> dict[str, Any]:
    """The OpenAPI description of a body that is not JSON."""
    content = {name: {"schema": {"type": "string", "format": "binary"}} for name in media}
    return {"requestBody": {"required": True, "description": description, "content": content}}


LEDGER = "application/vnd.sqlite3"
PENDING: dict[int | str, dict[str, Any]] = {
    202: {"model": models.Job, "description": "the job is not finished"}
}
ROWS_BODY = _binary(
    "`inputs`: uint8 [n, height, width, channels] or float32 [n, dimensions]", SAFETENSORS, NPY
)
MATRIX_BODIES = {
    "cells": _binary("`centers`: int8 [cells, dimensions]", SAFETENSORS, NPY),
    "weights": _binary("`weights`: int16 [dimensions + 1, classes]", SAFETENSORS, NPY),
}
EXTRACTOR_BODY = _binary(
    "`fields` (JSON), `weights` (safetensors of the named network) and `axes` (int16 [d, k]), "
    "all as uint8 [n]",
    SAFETENSORS,
)
REMOVAL_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": models.Removal.model_json_schema()}},
    }
}
RECORDS_BODY = _binary(
    "`inputs` as for queries, `labels` int64 [n], `ids` int64 [n], and `persons` int64 [n] where "
    "the unit of privacy is a person",
    SAFETENSORS,
)


def _media(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


@router.get("/health")
async def health() -> models.Health:
    """Whether the service runs. Needs no key."""
    return models.Health(status="ok", version=VERSION)


@router.get("/budget")
async def budget(request: Request, key: Anyone, analyst: OfAnalyst = None) -> models.Budget:
    """The plan, its certificate and adversary, and what is spent of its caps."""
    service = await service_for(request, key, analyst)
    snapshot = service.queue.snapshot
    return models.Budget(
        dataset=service.dataset,
        unsafe=service.unsafe,
        epsilon=service.certified,
        delta=service.plan.delta,
        adversary=service.adversary,
        unit=service.plan.unit,
        plan=service.plan.to_json(),
        releases=releases_left(service),
        ledger_position=snapshot.position,
        ledger_head=snapshot.head,
        queries=key.queries,
        charged=service.queue.usage.charged[key.name],
    )


@router.get("/analysts")
async def analysts(request: Request, _: Custodian) -> models.Analysts:
    """Analysts with their own budget, what each has spent, and epsilon if they pool answers."""
    service = app_service(request)
    services = await run_in_threadpool(analyst_services, service)
    return models.Analysts(
        adversary=service.adversary,
        unit=service.plan.unit,
        epsilon=service.certified,
        delta=service.plan.delta,
        analysts=[_analyst_budget(name, each) for name, each in services.items()],
        pooled=await run_in_threadpool(pooled_epsilons, service),
    )


def _analyst_budget(name: str, service: Service) -> models.AnalystBudget:
    snapshot = service.queue.snapshot
    return models.AnalystBudget(
        name=name,
        dataset=service.dataset,
        adversary=service.adversary,
        releases=releases_left(service),
        ledger_position=snapshot.position,
        ledger_head=snapshot.head,
        charged=service.queue.usage.charged[name],
    )


@router.get("/receipts")
async def receipts(
    request: Request,
    key: Anyone,
    newest: Annotated[int, Query(ge=1, le=10000)] = 1000,
    analyst: OfAnalyst = None,
) -> list[models.Charge]:
    """The calls that were charged, oldest first: an analyst's own, or all for a custodian."""
    service = await service_for(request, key, analyst)
    caller = None if key.role == "custodian" else key.name
    return [
        models.Charge(
            caller=call.caller,
            slot=call.slot,
            queries=call.queries,
            ledger_position=call.position,
            adversary=service.adversary,
        )
        for call in await run_in_threadpool(service.queue.usage.calls, caller, newest)
    ]


@router.get(
    "/ledger",
    response_class=Response,
    responses={200: {"content": {LEDGER: {"schema": {"format": "binary"}}}}},
)
async def ledger(request: Request, key: Anyone, analyst: OfAnalyst = None) -> Response:
    """A copy of the ledger for auditors (SQLite): every entry, nothing private."""
    service = await service_for(request, key, analyst)
    return Response(await run_in_threadpool(export_ledger, service), media_type=LEDGER)


@router.put(
    "/extractors/{sha256}",
    response_model=models.Job,
    responses=PENDING,
    openapi_extra=EXTRACTOR_BODY,
)
async def send_extractor(
    request: Request, key: Analyst, sha256: PathSha256, wait: Wait = 0.0
) -> Response:
    """Send a feature map by name and safetensors.

    The private records are embedded with it; nothing is released.
    """
    service = await service_for(request, key)
    known, allowed = sha256 in service.extractors, service.allowances
    if not known:
        allowed.extractors.take(key.name)
    body = await service.bodies.read(request, service.config.max_extractor * MIB)
    if not known:
        allowed.uploads.take(key.name, len(body))
    extractor = await run_in_threadpool(_received, service, body, _media(request), sha256)
    if not known:
        await run_in_threadpool(service.queue.test, extractor.spec, key.name)

    def work() -> dict[str, object]:
        service.keep(extractor, key.name)
        return {"extractor": sha256}

    identity = job_id(key.name, "extractor", {}, sha256.encode())
    job = TaskJob(identity, key.name, "extractor", 1, extractor, len(body), work=work)
    return await _reply(service.queue.submit(job, repeatable=False), wait)


def _received(service: Service, body: bytes, media: str, sha256: str) -> Extractor:
    """A received extractor, if this service accepts it. Sizes are checked before it is built."""
    spec = decode_extractor(body, media, service.config.max_extractor * MIB)
    if spec.backbone not in service.config.backbones:
        rule = f"one of {', '.join(service.config.backbones)}"
        raise InvalidInput("extractor.backbone", rule, spec.backbone)
    shapes = spec.input_shape, spec.num_classes
    expected = service.task.input_shape, service.task.num_classes
    if shapes != expected:
        name = "extractor.input_shape, num_classes"
        raise InvalidInput(name, f"the data set's {expected}", shapes)
    if spec.sha256() != sha256:
        raise InvalidInput("sha256", "the identity of the extractor that was sent", sha256)
    return Extractor(spec, sha256)


def _extractor(service: Service, sha256: str) -> Extractor:
    found = service.extractors.get(sha256)
    if found is None:
        raise refused("unknown_extractor")
    return found


@router.post("/labels", response_model=models.Job, responses=PENDING, openapi_extra=ROWS_BODY)
async def ask(
    request: Request,
    key: Analyst,
    extractor: Sha256,
    slot: Slot = 0,
    wait: Wait = 0.0,
    idempotency_key: Idempotency = None,
) -> Response:
    """Ask for noisy labels of public inputs. A repeated query gets its stored answer for free.

    Receipts add up: over all `job`s, each counted once, `charged` sums to at most what the ledger
    charged.
    """
    service = await service_for(request, key)
    service.allowances.growth.require(key.name)
    body = await service.bodies.read(request, service.config.max_request * MIB)
    used = _extractor(service, extractor)
    parameters = {"slot": slot, "extractor": extractor, "media": _media(request)}
    content = job_id(key.name, "labels", parameters, body)

    def prepare() -> QueryJob:
        inputs = decode(body, _media(request), ("inputs",), service.config.max_rows)["inputs"]
        if inputs.shape[1:] != service.task.input_shape:
            rule = f"rows of shape {list(service.task.input_shape)}"
            raise InvalidInput("queries.inputs", rule, list(inputs.shape[1:]))
        Queries(inputs, slot)
        rows, inverse = distinct_rows(inputs)
        return QueryJob(
            id=_call_id(content, idempotency_key),
            caller=key.name,
            kind="labels",
            total=len(rows),
            extractor=used,
            size=len(body),
            content=content,
            slot=slot,
            rows=rows,
            inverse=inverse,
            single_batch=service.teacher.whole(slot),
            quota=key.queries,
        )

    return await _reply(service.queue.submit(await run_in_threadpool(prepare)), wait)


@router.post(
    "/cells", response_model=models.Job, responses=PENDING, openapi_extra=MATRIX_BODIES["cells"]
)
@router.post(
    "/weights", response_model=models.Job, responses=PENDING, openapi_extra=MATRIX_BODIES["weights"]
)
async def count(
    request: Request,
    key: Analyst,
    extractor: Sha256,
    slot: Slot = 0,
    wait: Wait = 0.0,
    idempotency_key: Idempotency = None,
) -> Response:
    """Ask for noisy counts of all records by a public matrix: one release for the whole matrix.

    Cells: every record's vote in its nearest cells. Weights: the sum of every record's gradient.
    Receipts add up as for labels.
    """
    service = await service_for(request, key)
    service.allowances.growth.require(key.name)
    body = await service.bodies.read(request, service.config.max_request * MIB)
    used, made = _extractor(service, extractor), MATRICES[request.url.path.rpartition("/")[2]]
    found = await run_in_threadpool(decode, body, _media(request), (made.array,))
    matrix = made(found[made.array], slot)
    parameters = {"slot": slot, "extractor": extractor, "media": _media(request)}
    content = job_id(key.name, made.kind, parameters, body)
    job = TaskJob(
        id=_call_id(content, idempotency_key),
        caller=key.name,
        kind=made.kind,
        total=1,
        extractor=used,
        size=len(body),
        content=content,
        slot=slot,
        work=lambda: service.queue.count(key.name, matrix, key.queries),
    )
    return await _reply(service.queue.submit(job), wait)


def _call_id(content: str, idempotency_key: str | None) -> str:
    """The identity of a call for some content. Without an idempotency key it is unique."""
    call = secrets.token_hex(32) if idempotency_key is None else idempotency_key
    return hashlib.sha256(f"{content} {call}".encode()).hexdigest()


@router.post("/records", response_model=models.Job, responses=PENDING, openapi_extra=RECORDS_BODY)
async def add_records(request: Request, key: Custodian, wait: Wait = 0.0) -> Response:
    """Add records. Rows that are present with the same content are left unchanged.

    Where the unit of privacy is a person, `persons` (int64, one for each row) says whose they are.
    """
    service = app_service(request)
    body = await service.record_bodies.read(request, service.config.max_request * MIB)
    unit = service.plan.unit
    names = ("inputs", "labels", "ids", *(["persons"] if unit == "person" else []))
    found = await run_in_threadpool(decode, body, _media(request), names, service.config.max_rows)
    records = received(found)

    def work() -> dict[str, object]:
        (service.analysts or service.teacher).add(records)
        return {"records": len(records.ids)}

    identity = job_id(key.name, "add", {}, body)
    job = TaskJob(identity, key.name, "add", 1, None, len(body), from_custodian=True, work=work)
    return await _reply(service.queue.submit(job, repeatable=False), wait)


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
    return await _reply(service.queue.submit(job, repeatable=False), wait)


@router.get("/jobs/{job}", response_model=models.Job, responses=PENDING)
async def job_state(request: Request, key: Anyone, job: PathSha256, wait: Wait = 0.0) -> Response:
    """The state of a job of this key and how many of its queries are answered, or its result."""
    service = await service_for(request, key)
    return await _reply(service.queue.find(key.name, job), wait)


async def _reply(job: Job, wait: float) -> Response:
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


def _retrieve(waiting: asyncio.Future[Any]) -> None:
    """Look at an outcome that comes after its request has ended, so that asyncio reports none."""
    if not waiting.cancelled():
        waiting.exception()
