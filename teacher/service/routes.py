"""The routes under /v1: queries, which become jobs; what can be read; changes of the records."""

from __future__ import annotations

import os
from typing import Annotated, Any, BinaryIO

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from ...wall.errors import InvalidInput, Refused
from ...wall.matrices import MATRICES
from ...wall.messages import Queries
from ...wall.wire import MAX_ROWS, NPY, SAFETENSORS, decode
from ..records.persons import codes_of
from ..records.sources import received
from . import models
from .auth import Analyst, Anyone, Custodian, OfAnalyst, app_service, service_for
from .extractors import accepted
from .jobs import EmbeddingJob, Job, QueryJob, distinct_rows, job_id
from .keys import Key
from .requests import (
    LEDGER,
    PENDING,
    PROBLEMS,
    VERSION,
    Idempotency,
    PathSha256,
    Sha256,
    Slot,
    Wait,
    binary,
    file_reply,
    media_of,
    reply,
)
from .service import Service

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
ROWS_BODY = binary(
    "`inputs`: uint8 [n, height, width, channels] or float32 [n, dimensions]", SAFETENSORS, NPY
)
MATRIX_BODIES = {
    "cells": binary("`centers`: int8 [cells, dimensions]", SAFETENSORS, NPY),
    "weights": binary("`weights`: int16 [dimensions + 1, outputs]", SAFETENSORS, NPY),
}
EXTRACTOR_BODY = binary(
    "`fields` (JSON), `weights` (safetensors of the named network), `axes` (int16 [d, k]) and, "
    "where a mechanism needs them, `landmarks` (int8 [m, k]), all as uint8 [n]",
    SAFETENSORS,
)
router = APIRouter(prefix="/v1", responses=PROBLEMS)


@router.get("/health")
async def health() -> models.Health:
    """Whether the service runs. Needs no key."""
    return models.Health(status="ok", version=VERSION)


@router.get("/budget")
async def budget(request: Request, key: Anyone, analyst: OfAnalyst = None) -> models.Budget:
    """The plan, its certificate and adversary, and what is spent of its caps."""
    service = await service_for(request, key, analyst)
    return models.Budget(
        **_spent(service, key.name),
        unsafe=service.unsafe,
        epsilon=service.certified,
        delta=service.plan.delta,
        unit=service.plan.unit,
        plan=service.plan.to_json(),
        queries=key.queries,
    )


@router.get("/analysts")
async def analysts(request: Request, _: Custodian) -> models.Analysts:
    """Analysts with their own budget, what each has spent, and epsilon if they pool answers."""
    service = app_service(request)
    services = {}
    if service.analysts is not None:
        services = await run_in_threadpool(service.analysts.services)
    return models.Analysts(
        adversary=service.adversary,
        unit=service.plan.unit,
        epsilon=service.certified,
        delta=service.plan.delta,
        analysts=[
            models.AnalystBudget(name=name, **_spent(own, name)) for name, own in services.items()
        ],
        pooled=await run_in_threadpool(service.pooled_epsilons),
    )


def _spent(service: Service, name: str) -> dict[str, Any]:
    """What is spent of a ledger, and new queries noted for a caller: the fields of models.Spent."""
    snapshot = service.queue.snapshot
    return {
        "dataset": service.dataset,
        "adversary": service.adversary,
        "releases": service.releases_left(),
        "ledger_position": snapshot.position,
        "ledger_head": snapshot.head,
        "charged": service.queue.usage.charged[name],
    }


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
    return file_reply(await run_in_threadpool(ledger_copy, service, key.name))


def ledger_copy(service: Service, caller: str) -> BinaryIO:
    """The ledger's copy, counted in a caller's allowances. Raises Refused."""
    allowed = service.process.allowances.copies
    with service.process.copying.by(caller):
        allowed.require(caller)
        copy = service.copies.open()
        allowed.spend(caller, os.fstat(copy.fileno()).st_size)
        return copy


@router.get("/jobs/{job}", response_model=models.Job, responses=PENDING)
async def job_state(request: Request, key: Anyone, job: PathSha256, wait: Wait = 0.0) -> Response:
    """The state of a job of this key and how many of its queries are answered, or its result."""
    service = await service_for(request, key)
    return await reply(service.queue.find(key.name, job), wait)


@router.post("/records", response_model=models.Job, responses=PENDING, openapi_extra=RECORDS_BODY)
async def add_records(request: Request, key: Custodian, wait: Wait = 0.0) -> Response:
    """Add records. Rows that are present with the same content are left unchanged.

    Where the unit of privacy is a person, `persons` (int64, one for each row) says whose they are.
    """
    service = app_service(request)
    body = await service.record_bodies.read(request)
    by_person = service.plan.unit == "person"
    names = ("inputs", "labels", "ids", *(["persons"] if by_person else []))
    records = received(await run_in_threadpool(decode, body, media_of(request), names))

    def work() -> dict[str, object]:
        (service.analysts or service.teacher).add(records)
        return {"records": len(records.ids)}

    identity = job_id(key.name, "add", {}, body)
    job = Job(identity, key.name, "add", 1, None, len(body), from_custodian=True, work=work)
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
    body = await service.record_bodies.read(request)
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
    job = Job(identity, key.name, "remove", 1, None, ids.nbytes, from_custodian=True, work=work)
    return await reply(service.queue.submit(job, repeatable=False), wait)


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

    The private records are embedded with it; nothing is released. One that is there is kept.
    """
    service = await service_for(request, key)
    known, allowed = sha256 in service.extractors, service.process.allowances
    if not known:
        allowed.extractors.take(key.name)
    config, task = service.settings.config, service.settings.task
    body = await service.bodies.read(request)
    if not known:
        allowed.uploads.take(key.name, len(body))
    extractor = await run_in_threadpool(accepted, body, media_of(request), sha256, config, task)
    identity = job_id(key.name, "extractor", {}, sha256.encode())
    job = EmbeddingJob(identity, key.name, "extractor", 1, extractor, len(body))

    def work() -> dict[str, object]:
        service.extractors.keep(extractor, key.name)
        return {"extractor": sha256}

    if known:
        return await reply(service.queue.add_finished(job, work()), wait)
    await run_in_threadpool(service.queue.networks.test, extractor.spec, key.name)
    job.work = work
    return await reply(service.queue.submit(job, repeatable=False), wait)


async def _body(request: Request, service: Service, key: Key) -> bytes:
    """The body of a request that may let the ledger grow. Raises Refused."""
    service.process.allowances.growth.require(key.name)
    return await service.bodies.read(request)


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
    body = await _body(request, service, key)
    used, media = service.extractors.get(extractor), media_of(request)
    parameters: dict[str, object] = {"slot": slot, "extractor": extractor, "media": media}

    def prepare() -> QueryJob:
        inputs = decode(body, media, ("inputs",), MAX_ROWS)["inputs"]
        if inputs.shape[1:] != service.settings.task.input_shape:
            rule = f"rows of shape {list(service.settings.task.input_shape)}"
            raise InvalidInput("queries.inputs", rule, list(inputs.shape[1:]))
        Queries(inputs, slot)
        rows, inverse = distinct_rows(inputs)
        return QueryJob(
            id=job_id(key.name, "labels", parameters, body, idempotency_key),
            caller=key.name,
            kind="labels",
            total=len(rows),
            extractor=used,
            size=len(body),
            slot=slot,
            rows=rows,
            inverse=inverse,
            single_batch=service.teacher.whole(slot),
            quota=key.queries,
        )

    return await reply(service.queue.submit(await run_in_threadpool(prepare)), wait)


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
    body = await _body(request, service, key)
    used, media = service.extractors.get(extractor), media_of(request)
    matrix_type = MATRICES[request.url.path.rpartition("/")[2]]
    arrays = await run_in_threadpool(decode, body, media, (matrix_type.array,))
    matrix = matrix_type(arrays[matrix_type.array], slot)
    parameters: dict[str, object] = {"slot": slot, "extractor": extractor, "media": media}
    job = Job(
        id=job_id(key.name, matrix_type.kind, parameters, body, idempotency_key),
        caller=key.name,
        kind=matrix_type.kind,
        total=1,
        extractor=used,
        size=len(body),
        slot=slot,
        work=lambda: service.queue.count(key.name, matrix, key.queries),
    )
    return await reply(service.queue.submit(job), wait)
