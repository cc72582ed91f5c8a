"""The routes of analysts: extractors, labels and counts. Each submits a job to the queue."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from ...wall.errors import InvalidInput
from ...wall.matrices import MATRICES
from ...wall.messages import Queries
from ...wall.wire import MAX_ROWS, NPY, SAFETENSORS, decode
from . import models
from .auth import Analyst, service_for
from .extractors import received
from .jobs import EmbeddingJob, QueryJob, TaskJob, distinct_rows, job_id
from .keys import Key
from .limits import MIB
from .requests import (
    PENDING,
    PROBLEMS,
    Idempotency,
    PathSha256,
    Sha256,
    Slot,
    Wait,
    binary,
    media_of,
    reply,
)
from .service import Service

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
    body = await service.bodies.read(request, config.max_body * MIB)
    if not known:
        allowed.uploads.take(key.name, len(body))
    extractor = await run_in_threadpool(received, body, media_of(request), sha256, config, task)
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
    return await service.bodies.read(request, service.settings.config.max_body * MIB)


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
    job = TaskJob(
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
