"""The routes under /v1: queries, which become jobs; what can be read; changes of the records."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from ...wall.errors import InvalidInput, Refused
from ...wall.matrices import MATRICES
from ...wall.messages import Queries
from ...wall.wire import MAX_ROWS, NPY, SAFETENSORS, decode
from ..records.persons import codes_of
from ..records.sources import received
from . import models
from .auth import Analyst, Anyone, Custodian, OfAnalyst, app_service, service_for
from .config import MIB
from .extractors import accepted
from .jobs import EmbeddingJob, Job, QueryJob, Result, distinct_rows, job_id
from .keys import Key
from .refusals import STATUSES
from .service import Service

VERSION = "1"
MAX_WAIT = 30.0  # seconds that a request stays open for its job
LEDGER = "application/vnd.sqlite3"

PROBLEMS: dict[int | str, dict[str, Any]] = {code: {"model": models.Problem} for code in STATUSES}
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


PENDING: dict[str, Any] = {
    "response_model": models.Job,
    "responses": {202: {"model": models.Job, "description": "the job is not finished"}},
}
BINARY = {"type": "string", "format": "binary"}


def as_job(description: str, *media: str, schema: object = BINARY) -> dict[str, Any]:
    """The OpenAPI description of a request with a body that becomes a job."""
    content = {name: {"schema": schema} for name in media}
    body = {"required": True, "description": description, "content": content}
    return {**PENDING, "openapi_extra": {"requestBody": body}}


router = APIRouter(prefix="/v1", responses=PROBLEMS)


@router.get("/health")
async def health() -> models.Health:
    """Whether the service runs. Needs no key."""
    return models.Health(status="ok", version=VERSION)


@router.get("/budget")
def budget(request: Request, key: Anyone, analyst: OfAnalyst = None) -> models.Budget:
    """The plan, its certificate and adversary, and what is spent of its caps."""
    service = service_for(request, key, analyst)
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
def analysts(request: Request, _: Custodian) -> models.Analysts:
    """Analysts with their own budget, what each has spent, and epsilon if they pool answers."""
    service = app_service(request)
    services = {} if service.analysts is None else service.analysts.services()
    return models.Analysts(
        adversary=service.adversary,
        unit=service.plan.unit,
        epsilon=service.certified,
        delta=service.plan.delta,
        analysts=[
            models.AnalystBudget(name=name, **_spent(own, name)) for name, own in services.items()
        ],
        pooled=service.pooled_epsilons(),
    )


def _spent(service: Service, name: str) -> dict[str, Any]:
    """What is spent of a ledger, and new queries noted for a caller: the fields of models.Spent."""
    snapshot = service.queue.snapshot
    return {
        "dataset": service.dataset,
        "adversary": service.adversary,
        "releases": snapshot.releases,
        "ledger_position": snapshot.position,
        "ledger_head": snapshot.head,
        "charged": service.queue.usage.charged[name],
    }


@router.get("/receipts")
def receipts(
    request: Request,
    key: Anyone,
    newest: Annotated[int, Query(ge=1, le=10000)] = 1000,
    analyst: OfAnalyst = None,
) -> list[models.Charge]:
    """The calls that were charged, oldest first: an analyst's own, or all for a custodian."""
    service = service_for(request, key, analyst)
    caller = None if key.role == "custodian" else key.name
    return [
        models.Charge(
            caller=charge.caller or "",
            slot=charge.slot or 0,
            queries=charge.size,
            ledger_position=charge.position or 0,
            adversary=service.adversary,
        )
        for charge in service.queue.usage.calls(caller, newest)
    ]


@router.get(
    "/ledger",
    response_class=Response,
    responses={200: {"content": {LEDGER: {"schema": {"format": "binary"}}}}},
)
def ledger(request: Request, key: Anyone, analyst: OfAnalyst = None) -> Response:
    """A copy of the ledger for auditors (SQLite): every entry, nothing private."""
    service = service_for(request, key, analyst)
    with service.shared.copying.by(key.name):
        service.shared.copies.require(key.name)
        copy = service.copies.open()
        size = os.fstat(copy.fileno()).st_size
        service.shared.copies.spend(key.name, size)

    def pieces() -> Iterator[bytes]:
        with copy:
            while piece := copy.read(MIB):
                yield piece

    return StreamingResponse(pieces(), media_type=LEDGER, headers={"content-length": str(size)})


@router.get("/jobs/{job}", **PENDING)
async def job_state(request: Request, key: Anyone, job: PathSha256, wait: Wait = 0.0) -> Response:
    """The state of a job of this key and how many of its queries are answered, or its result."""
    service = await run_in_threadpool(service_for, request, key)
    return await reply(service.queue.find(key.name, job), wait)


async def reply(job: Job, wait: float) -> Response:
    """200 with the result, 202 while there is none, or the job's refusal.

    No part of the state depends on private rows.
    """
    if wait > 0 and not job.future.done():
        waiting = asyncio.wrap_future(job.future)
        # asyncio would report an outcome after the request's end that nobody looked at
        waiting.add_done_callback(lambda over: over.cancelled() or over.exception())
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


@router.post(
    "/records",
    **as_job(
        "`inputs` as for queries, `labels` int64 [n], `ids` int64 [n], and `persons` int64 [n] "
        "where the unit of privacy is a person",
        SAFETENSORS,
    ),
)
async def add_records(request: Request, key: Custodian, wait: Wait = 0.0) -> Response:
    """Add records. Rows that are present with the same content are left unchanged.

    Where the unit of privacy is a person, `persons` (int64, one for each row) says whose they are.
    """
    service = app_service(request)
    body = await service.record_bodies.read(request)
    by_person = service.plan.unit == "person"
    names = ("inputs", "labels", "ids", *(["persons"] if by_person else []))
    records = received(await run_in_threadpool(decode, body, _media(request), names))

    def work() -> Result:
        (service.analysts or service.teacher).add(records)
        return {"records": len(records.ids)}

    return await _changed(service, key, "add", body, work, wait)


@router.post(
    "/records/removals",
    **as_job("ids", "application/json", schema=models.Removal.model_json_schema()),
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

    def work() -> Result:
        (service.analysts or service.teacher).remove(ids)
        return {"records": len(ids)}

    return await _changed(service, key, "remove", ids.tobytes(), work, wait)


async def _changed(
    service: Service, key: Key, kind: str, content: bytes, work: Callable[[], Result], wait: float
) -> Response:
    """The reply to a change of the records by a job."""
    identity, size = job_id(key.name, kind, {}, content), len(content)
    job = Job(identity, key.name, kind, size=size, from_custodian=True, repeatable=False, work=work)
    return await reply(service.queue.submit(job), wait)


@router.put(
    "/extractors/{sha256}",
    **as_job(
        "`fields` (JSON), `weights` (safetensors of the named network), `axes` (int16 [d, k]) and, "
        "where a mechanism needs them, `landmarks` (int8 [m, k]), all as uint8 [n]",
        SAFETENSORS,
    ),
)
async def send_extractor(
    request: Request, key: Analyst, sha256: PathSha256, wait: Wait = 0.0
) -> Response:
    """Send a feature map by name and safetensors.

    The private records are embedded with it; nothing is released. One that is there is kept.
    """
    service = await run_in_threadpool(service_for, request, key)
    known, shared = sha256 in service.extractors, service.shared
    if not known:
        shared.extractors.take(key.name)
    body = await service.bodies.read(request)
    if not known:
        shared.uploads.take(key.name, len(body))
    media = _media(request)
    extractor = await run_in_threadpool(accepted, body, media, sha256, service.settings)

    def work() -> Result:
        service.extractors.keep(extractor, key.name)
        return {"extractor": sha256}

    identity = job_id(key.name, "extractor", {}, sha256.encode())
    job = EmbeddingJob(
        identity, key.name, "extractor", extractor=extractor, size=len(body), work=work
    )
    if known:
        job.finish(work())
        return await reply(job, wait)
    await run_in_threadpool(service.queue.networks.test, extractor.spec, key.name)
    return await reply(service.queue.submit(job), wait)


@dataclass(frozen=True)
class Asked:
    """A request that may let the ledger grow. ``job``: the fields that its job has in any case."""

    service: Service
    key: Key
    body: bytes
    media: str
    wait: float
    job: dict[str, Any]


async def _asked(
    request: Request,
    key: Analyst,
    extractor: Sha256,
    slot: Slot = 0,
    wait: Wait = 0.0,
    idempotency_key: Idempotency = None,
) -> Asked:
    service = await run_in_threadpool(service_for, request, key)
    service.shared.growth.require(key.name)
    body, media = await service.bodies.read(request), _media(request)
    kind, named = request.url.path.rpartition("/")[2], idempotency_key
    parameters: dict[str, object] = {"slot": slot, "extractor": extractor, "media": media}
    job = {
        "id": await run_in_threadpool(job_id, key.name, kind, parameters, body, named),
        "caller": key.name,
        "kind": kind,
        "extractor": service.extractors.get(extractor),
        "size": len(body),
        "slot": slot,
    }
    return Asked(service, key, body, media, wait, job)


@router.post(
    "/labels",
    **as_job(
        "`inputs`: uint8 [n, height, width, channels] or float32 [n, dimensions]", SAFETENSORS, NPY
    ),
)
async def ask(asked: Annotated[Asked, Depends(_asked)]) -> Response:
    """Ask for noisy labels of public inputs. A repeated query gets its stored answer for free.

    Receipts add up: over all `job`s, each counted once, `charged` sums to at most what the ledger
    charged.
    """
    service, slot = asked.service, asked.job["slot"]

    def prepare() -> QueryJob:
        inputs = decode(asked.body, asked.media, ("inputs",), MAX_ROWS)["inputs"]
        if inputs.shape[1:] != service.settings.task.input_shape:
            rule = f"rows of shape {list(service.settings.task.input_shape)}"
            raise InvalidInput("queries.inputs", rule, list(inputs.shape[1:]))
        Queries(inputs, slot)
        rows, inverse = distinct_rows(inputs)
        own = {**asked.job, "total": len(rows), "quota": asked.key.queries}
        return QueryJob(**own, rows=rows, inverse=inverse, single_batch=service.teacher.whole(slot))

    return await reply(service.queue.submit(await run_in_threadpool(prepare)), asked.wait)


@router.post("/cells", **as_job("`centers`: int8 [cells, dimensions]", SAFETENSORS, NPY))
@router.post("/weights", **as_job("`weights`: int16 [dimensions + 1, outputs]", SAFETENSORS, NPY))
async def count(asked: Annotated[Asked, Depends(_asked)]) -> Response:
    """Ask for noisy counts of all records by a public matrix: one release for the whole matrix.

    Cells: every record's vote in its nearest cells. Weights: the sum of every record's gradient.
    Receipts add up as for labels.
    """
    queue, kind = asked.service.queue, MATRICES[asked.job["kind"]]
    arrays = await run_in_threadpool(decode, asked.body, asked.media, (kind.array,))
    matrix = kind(arrays[kind.array], asked.job["slot"])
    caller, quota = asked.key.name, asked.key.queries
    job = Job(**asked.job, work=lambda: queue.count(caller, matrix, quota))
    return await reply(queue.submit(job), asked.wait)


def _media(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
