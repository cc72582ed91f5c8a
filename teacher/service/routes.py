"""The routes under /v1. Each checks the caller and the body, and hands the rest to the desk."""

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

from labelwall.teacher.records.sources import Records
from labelwall.teacher.service import models
from labelwall.teacher.service.auth import STATUS
from labelwall.teacher.service.jobs import Ask, Extractor, Job, Task, distinct, failed, job_id
from labelwall.teacher.service.keys import Key
from labelwall.teacher.service.state import Service, exported, left_of, opened, pooled_epsilons
from labelwall.wall.adversary import NAME
from labelwall.wall.cells import Cells
from labelwall.wall.errors import InvalidInput, Refused
from labelwall.wall.messages import Queries
from labelwall.wall.wire import MAX_ROWS, NPY, SAFETENSORS, decode, decode_extractor

VERSION = "1"
LONGEST_WAIT = 30.0  # seconds that a request stays open for its job
EXTRACTORS_KEPT = 8
MIB = 1 << 20

PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": models.Problem} for code in sorted({*STATUS.values(), 405})
}
router = APIRouter(prefix="/v1", responses=PROBLEMS)
bearer = HTTPBearer(auto_error=False, description="a key of `labelwall keys`")


def the(request: Request) -> Service:
    """The service of the application that got a request."""
    return request.app.state.service


async def own(request: Request, key: Key, analyst: str | None = None) -> Service:
    """The service of a key: the analyst's own where each has one. A custodian's key reads the one of any ``analyst`` who has a
    ledger. Raises Refused for another analyst's, or for one that is none; LedgerMismatch where a ledger can not be opened."""
    service = the(request)
    if analyst is not None and key.role != "custodian":
        raise failed("forbidden")
    if service.analysts is None or (analyst is None and key.role == "custodian"):
        if analyst is not None:
            raise failed("not_found")
        return service
    if analyst is not None and analyst not in await run_in_threadpool(service.analysts.listed):
        raise failed("not_found")
    return await run_in_threadpool(service.analysts.of, key.name if analyst is None else analyst)


async def anyone(request: Request, _: Annotated[object, Depends(bearer)]) -> Key:
    """The holder of any valid key."""
    return the(request).guard.caller(request, ("analyst", "custodian"))


async def analyst(request: Request, _: Annotated[object, Depends(bearer)]) -> Key:
    """The holder of an analyst's key."""
    return the(request).guard.caller(request, ("analyst",))


async def custodian(request: Request, _: Annotated[object, Depends(bearer)]) -> Key:
    """The holder of a custodian's key."""
    return the(request).guard.caller(request, ("custodian",))


Anyone = Annotated[Key, Depends(anyone)]
Analyst = Annotated[Key, Depends(analyst)]
Custodian = Annotated[Key, Depends(custodian)]
Wait = Annotated[
    float, Query(ge=0, le=LONGEST_WAIT, description="seconds to wait for the job to finish")
]
Slot = Annotated[int, Query(ge=0, lt=1 << 16, description="which entry of the plan pays")]
Sha256 = Annotated[
    str, Query(pattern="^[0-9a-f]{64}$", description="identity of an extractor that was sent")
]
OfAnalyst = Annotated[
    str | None,
    Query(
        pattern=f"^{NAME}$", description="for a custodian: whose ledger, where each analyst has one"
    ),
]
Idempotency = Annotated[
    str | None,
    Header(
        pattern="^[A-Za-z0-9_-]{1,64}$",
        description="names a call: sent again with the same body it finds its job and its receipt; without it, or with another "
        "one, the same body is a call of its own, which is charged nothing",
    ),
]
Named = Annotated[str, PathParameter(pattern="^[0-9a-f]{64}$")]


def _binary(description: str, *media: str) -> dict[str, Any]:
    """The OpenAPI text of a body that is not JSON."""
    content = {name: {"schema": {"type": "string", "format": "binary"}} for name in media}
    return {"requestBody": {"required": True, "description": description, "content": content}}


LEDGER = "application/vnd.sqlite3"
PENDING: dict[int | str, dict[str, Any]] = {
    202: {"model": models.Job, "description": "the job is not finished"}
}
ROWS = _binary(
    "`inputs`: uint8 [n, height, width, channels] or float32 [n, dimensions]", SAFETENSORS, NPY
)
CENTRES = _binary("`centers`: int8 [cells, dimensions]", SAFETENSORS, NPY)
EXTRACTOR = _binary(
    "`fields` (JSON), `weights` (safetensors of the named network) and `axes` (int16 [d, k]), all as uint8 [n]",
    SAFETENSORS,
)
REMOVAL = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": models.Removal.model_json_schema()}},
    }
}
RECORDS = _binary("`inputs` as for queries, `labels` int64 [n], `ids` int64 [n]", SAFETENSORS)


def _media(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


@router.get("/health")
async def health() -> models.Health:
    """Whether the service runs. Needs no key."""
    return models.Health(status="ok", version=VERSION)


@router.get("/budget")
async def budget(request: Request, key: Anyone, analyst: OfAnalyst = None) -> models.Budget:
    """The plan, its certificate, against whom that holds, and how far its caps are used up."""
    service = await own(request, key, analyst)
    figures = service.desk.figures
    return models.Budget(
        dataset=service.dataset,
        unsafe=service.unsafe,
        epsilon=service.certified,
        delta=service.plan.delta,
        adversary=service.adversary,
        plan=service.plan.to_json(),
        releases=left_of(service),
        ledger_position=figures.position,
        ledger_head=figures.head,
        queries=key.queries,
        charged=service.desk.calls.charged[key.name],
    )


@router.get("/analysts")
async def analysts(request: Request, _: Custodian) -> models.Analysts:
    """Who has a budget of the own and how far it is spent; and the certificates against analysts who do pool their answers."""
    service = the(request)
    return models.Analysts(
        adversary=service.adversary,
        epsilon=service.certified,
        delta=service.plan.delta,
        analysts=[
            _of_analyst(name, found)
            for name, found in (await run_in_threadpool(opened, service)).items()
        ],
        pooled=await run_in_threadpool(pooled_epsilons, service),
    )


def _of_analyst(name: str, service: Service) -> models.AnalystBudget:
    figures = service.desk.figures
    return models.AnalystBudget(
        name=name,
        dataset=service.dataset,
        adversary=service.adversary,
        releases=left_of(service),
        ledger_position=figures.position,
        ledger_head=figures.head,
        charged=service.desk.calls.charged[name],
    )


@router.get("/receipts")
async def receipts(
    request: Request,
    key: Anyone,
    newest: Annotated[int, Query(ge=1, le=10000)] = 1000,
    analyst: OfAnalyst = None,
) -> list[models.Charge]:
    """The calls that were charged, oldest first: an analyst's own, everybody's for a custodian."""
    service, whose = await own(request, key, analyst), None if key.role == "custodian" else key.name
    return [
        models.Charge(
            caller=c.caller,
            slot=c.slot,
            queries=c.queries,
            ledger_position=c.position,
            adversary=service.adversary,
        )
        for c in await run_in_threadpool(service.desk.calls.listed, whose, newest)
    ]


@router.get(
    "/ledger",
    response_class=Response,
    responses={200: {"content": {LEDGER: {"schema": {"format": "binary"}}}}},
)
async def ledger(request: Request, key: Anyone, analyst: OfAnalyst = None) -> Response:
    """A copy of the ledger for auditors (SQLite): every entry, nothing private."""
    return Response(
        await run_in_threadpool(exported, await own(request, key, analyst)), media_type=LEDGER
    )


@router.put(
    "/extractors/{sha256}", response_model=models.Job, responses=PENDING, openapi_extra=EXTRACTOR
)
async def send_extractor(
    request: Request, key: Analyst, sha256: Named, wait: Wait = 0.0
) -> Response:
    """Send a feature map, by name and safetensors. The private records are embedded with it; nothing is released."""
    service = await own(request, key)
    body = await service.bodies.read(request, service.config.max_extractor * MIB)
    extractor = await run_in_threadpool(_received, service, body, _media(request), sha256)

    def work() -> dict[str, object]:
        service.extractors.pop(sha256, None)
        service.extractors[sha256] = extractor
        for oldest in list(service.extractors)[:-EXTRACTORS_KEPT]:
            service.extractors.pop(oldest, None)
        return {"extractor": sha256}

    job = Task(
        job_id(key.name, "extractor", {}, sha256.encode()),
        key.name,
        "extractor",
        1,
        extractor,
        len(body),
        work=work,
    )
    return await _state_of(service.desk.submit(job, repeatable=False), wait)


def _received(service: Service, body: bytes, media: str, sha256: str) -> Extractor:
    """An extractor that this service takes. What would decide how much memory is used is checked before anything is built."""
    spec = decode_extractor(body, media, service.config.max_extractor * MIB)
    if spec.backbone not in service.config.backbones:
        raise InvalidInput(
            "extractor.backbone", f"one of {', '.join(service.config.backbones)}", spec.backbone
        )
    learned = service.learned.input_shape, service.learned.num_classes
    if (spec.input_shape, spec.num_classes) != learned:
        raise InvalidInput(
            "extractor.input_shape, num_classes",
            f"the data set's {learned}",
            (spec.input_shape, spec.num_classes),
        )
    if spec.sha256() != sha256:
        raise InvalidInput("sha256", "the identity of the extractor that was sent", sha256)
    return Extractor(spec, sha256)


def _known(service: Service, sha256: str) -> Extractor:
    found = service.extractors.get(sha256)
    if found is None:
        raise failed("unknown_extractor")
    return found


@router.post("/labels", response_model=models.Job, responses=PENDING, openapi_extra=ROWS)
async def ask(
    request: Request,
    key: Analyst,
    extractor: Sha256,
    slot: Slot = 0,
    wait: Wait = 0.0,
    idempotency_key: Idempotency = None,
) -> Response:
    """Ask for noisy labels of public inputs. A query that was asked before gets its stored answer and costs nothing.

    Receipts add up: over all `job`s, each counted once, `charged` sums to at most what the ledger charged.
    """
    service = await own(request, key)
    body = await service.bodies.read(request, service.config.max_request * MIB)
    used = _known(service, extractor)
    content = job_id(
        key.name, "labels", {"slot": slot, "extractor": extractor, "media": _media(request)}, body
    )

    def prepare() -> Ask:
        inputs = decode(body, _media(request), ("inputs",), service.config.max_rows)["inputs"]
        if inputs.shape[1:] != service.learned.input_shape:
            rule = f"rows of shape {list(service.learned.input_shape)}"
            raise InvalidInput("queries.inputs", rule, list(inputs.shape[1:]))
        Queries(inputs, slot)
        rows, place = distinct(inputs)
        named = (
            _call(content, idempotency_key),
            key.name,
            "labels",
            len(rows),
            used,
            len(body),
            content,
        )
        asked = Ask(*named, slot=slot, rows=rows, place=place, quota=key.queries)
        asked.whole = service.teacher.whole(slot)
        return asked

    return await _state_of(service.desk.submit(await run_in_threadpool(prepare)), wait)


@router.post("/cells", response_model=models.Job, responses=PENDING, openapi_extra=CENTRES)
async def count(
    request: Request,
    key: Analyst,
    extractor: Sha256,
    slot: Slot = 0,
    wait: Wait = 0.0,
    idempotency_key: Idempotency = None,
) -> Response:
    """Ask for the noisy votes of all records in public cells: one release for the whole set. Receipts add up as for labels."""
    service = await own(request, key)
    body = await service.bodies.read(request, service.config.max_request * MIB)
    used = _known(service, extractor)
    cells = Cells(
        (await run_in_threadpool(decode, body, _media(request), ("centers",)))["centers"], slot
    )
    content = job_id(
        key.name, "cells", {"slot": slot, "extractor": extractor, "media": _media(request)}, body
    )
    named = _call(content, idempotency_key), key.name, "cells", 1, used, len(body), content, slot
    job = Task(*named, work=lambda: service.desk.count(key.name, cells, key.queries))
    return await _state_of(service.desk.submit(job), wait)


def _call(content: str, idempotency_key: str | None) -> str:
    """The identity of a call for some content; one without a key is like no other."""
    call = secrets.token_hex(32) if idempotency_key is None else idempotency_key
    return hashlib.sha256(f"{content} {call}".encode()).hexdigest()


@router.post("/records", response_model=models.Job, responses=PENDING, openapi_extra=RECORDS)
async def add_records(request: Request, key: Custodian, wait: Wait = 0.0) -> Response:
    """Add records. A row that is there already, with the same content, is left alone."""
    service = the(request)
    body = await service.record_bodies.read(request, service.config.max_request * MIB)
    found = await run_in_threadpool(
        decode, body, _media(request), ("inputs", "labels", "ids"), service.config.max_rows
    )
    records = Records(found["inputs"], found["labels"], found["ids"])

    def work() -> dict[str, object]:
        (service.analysts or service.teacher).add(records)
        return {"records": len(records.ids)}

    identity = job_id(key.name, "add", {}, body)
    job = Task(identity, key.name, "add", 1, None, len(body), of_custodian=True, work=work)
    return await _state_of(service.desk.submit(job, repeatable=False), wait)


@router.post(
    "/records/removals", response_model=models.Job, responses=PENDING, openapi_extra=REMOVAL
)
async def remove_records(request: Request, key: Custodian, wait: Wait = 0.0) -> Response:
    """Remove records by their ids; their data is deleted. An id that is not there is no error."""
    service = the(request)
    body = await service.record_bodies.read(
        request, service.config.max_request * MIB
    )  # FastAPI would read it before the key, and all of it
    try:
        removal = models.Removal.model_validate_json(body)
    except ValidationError as error:
        rule = f"the body must be a JSON object with `ids`, a list of at most {MAX_ROWS} whole numbers of 64 bits."
        raise Refused("invalid_request", rule) from error
    ids = np.array(removal.ids, dtype=np.int64)

    def work() -> dict[str, object]:
        (service.analysts or service.teacher).remove(ids)
        return {"records": len(ids)}

    identity = job_id(key.name, "remove", {}, ids.tobytes())
    job = Task(identity, key.name, "remove", 1, None, ids.nbytes, of_custodian=True, work=work)
    return await _state_of(service.desk.submit(job, repeatable=False), wait)


@router.get("/jobs/{job}", response_model=models.Job, responses=PENDING)
async def job_state(request: Request, key: Anyone, job: Named, wait: Wait = 0.0) -> Response:
    """Whether a job of this key waits or is at work, and how many of its own queries are answered; or its result."""
    return await _state_of((await own(request, key)).desk.find(key.name, job), wait)


async def _state_of(job: Job, wait: float) -> Response:
    """200 with the result, 202 while there is none, or the job's refusal. Nothing of the state depends on private rows."""
    if wait > 0 and not job.future.done():
        await asyncio.wait([asyncio.wrap_future(job.future)], timeout=wait)
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
