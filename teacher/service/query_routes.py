"""The routes of analysts: extractors, labels and counts. Each submits a job to the queue."""

from __future__ import annotations

import hashlib
import secrets

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from ...wall.errors import InvalidInput
from ...wall.matrices import MATRICES
from ...wall.messages import Queries
from ...wall.wire import NPY, SAFETENSORS, decode, decode_extractor
from . import models
from .jobs import (
    Extractor,
    QueryJob,
    TaskJob,
    distinct_rows,
    job_id,
    refused,
)
from .route_parts import (
    MIB,
    PENDING,
    PROBLEMS,
    Analyst,
    Idempotency,
    PathSha256,
    Sha256,
    Slot,
    Wait,
    binary,
    media_of,
    reply,
    service_for,
)
from .state import Service

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

    The private records are embedded with it; nothing is released.
    """
    service = await service_for(request, key)
    known, allowed = sha256 in service.extractors, service.allowances
    if not known:
        allowed.extractors.take(key.name)
    body = await service.bodies.read(request, service.config.max_extractor * MIB)
    if not known:
        allowed.uploads.take(key.name, len(body))
    extractor = await run_in_threadpool(_received, service, body, media_of(request), sha256)
    if not known:
        await run_in_threadpool(service.queue.networks.test, extractor.spec, key.name)

    def work() -> dict[str, object]:
        service.keep(extractor, key.name)
        return {"extractor": sha256}

    identity = job_id(key.name, "extractor", {}, sha256.encode())
    job = TaskJob(identity, key.name, "extractor", 1, extractor, len(body), work=work)
    return await reply(service.queue.submit(job, repeatable=False), wait)


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
    parameters = {"slot": slot, "extractor": extractor, "media": media_of(request)}
    content = job_id(key.name, "labels", parameters, body)

    def prepare() -> QueryJob:
        inputs = decode(body, media_of(request), ("inputs",), service.config.max_rows)["inputs"]
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
    service.allowances.growth.require(key.name)
    body = await service.bodies.read(request, service.config.max_request * MIB)
    used, made = _extractor(service, extractor), MATRICES[request.url.path.rpartition("/")[2]]
    found = await run_in_threadpool(decode, body, media_of(request), (made.array,))
    matrix = made(found[made.array], slot)
    parameters = {"slot": slot, "extractor": extractor, "media": media_of(request)}
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
    return await reply(service.queue.submit(job), wait)


def _call_id(content: str, idempotency_key: str | None) -> str:
    """The identity of a call for some content. Without an idempotency key it is unique."""
    call = secrets.token_hex(32) if idempotency_key is None else idempotency_key
    return hashlib.sha256(f"{content} {call}".encode()).hexdigest()
