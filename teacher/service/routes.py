"""The routes under /v1: queries, which become jobs; what can be read; changes of the records."""

import asyncio
import hashlib
import os
import secrets
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError

from ...wall.errors import InvalidInput, Refused
from ...wall.guarantee import NAME
from ...wall.matrices import MATRICES
from ...wall.messages import Queries, canonical_json
from ...wall.wire import MAX_ROWS, SAFETENSORS, decode
from ..records.persons import codes_of
from ..records.record_updates import received
from . import replies
from .callers import Analyst, Anyone, Custodian
from .extractors import accepted
from .queue import HALF, Job, Result
from .service import Service
from .service_config import MIB

VERSION = "1"
MAX_WAIT = 30.0  # seconds that a request stays open for its job
LEDGER = "application/vnd.sqlite3"

Wait = Annotated[
    float, Query(ge=0, le=MAX_WAIT, description="seconds to wait for the job to finish")
]
Slot = Annotated[int, Query(ge=0, lt=1 << 16, description="which entry of the plan pays")]
Sha256 = Annotated[
    str, Query(pattern="^[0-9a-f]{64}$", description="identity of an extractor that was sent")
]
PathSha256 = Annotated[str, PathParameter(pattern="^[0-9a-f]{64}$")]
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
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"model": replies.Refusal} for code in replies.STATUSES
}
PENDING: dict[str, Any] = {
    "response_model": replies.JobState,
    "responses": {202: {"model": replies.JobState, "description": "the job is not finished"}},
}
BINARY = {"type": "string", "format": "binary"}


def as_job(description: str, media: str = SAFETENSORS, schema: object = BINARY) -> dict[str, Any]:
    """The OpenAPI description of a request with a body that becomes a job."""
    content = {media: {"schema": schema}}
    body = {"required": True, "description": description, "content": content}
    return {**PENDING, "openapi_extra": {"requestBody": body}}


router = APIRouter(prefix="/v1", responses=PROBLEMS)


@router.get("/health")
async def health() -> dict[str, str]:
    """Whether the service runs. Needs no key."""
    return {"status": "ok", "version": VERSION}


@router.get("/budget")
def budget(request: Request, key: Anyone, analyst: OfAnalyst = None) -> replies.Budget:
    """The plan, its certificate and adversary, and what is spent of its caps."""
    service = app_service(request).of(key, analyst)
    return replies.Budget(
        **_spent(service, key.name),
        unsafe=service.unsafe,
        epsilon=service.certified,
        delta=service.plan.delta,
        unit=service.plan.unit,
        plan=service.plan.to_json(),
        queries=key.queries,
        features=dict(service.settings.features),
    )


@router.get("/analysts")
def analysts(request: Request, _: Custodian) -> replies.AnalystsSpent:
    """Analysts with their own budget, what each has spent, and epsilon if they pool answers."""
    service = app_service(request)
    services = {} if service.analysts is None else service.analysts.services()
    return replies.AnalystsSpent(
        adversary=service.adversary,
        unit=service.plan.unit,
        epsilon=service.certified,
        delta=service.plan.delta,
        analysts=[replies.Spent(**_spent(own, name)) for name, own in services.items()],
        pooled=service.pooled_epsilons(),
    )


def _spent(service: Service, name: str) -> dict[str, Any]:
    snapshot = service.queue.snapshot
    return {
        "name": name,
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
) -> list[replies.NotedCharge]:
    """The calls that were charged, oldest first: an analyst's own, or all for a custodian."""
    service = app_service(request).of(key, analyst)
    caller = None if key.role == "custodian" else key.name
    return [
        replies.NotedCharge(
            caller=charge.caller or "",
            slot=charge.slot or 0,
            queries=charge.size,
            ledger_position=charge.position or 0,
            adversary=service.adversary,
        )
        for charge in service.queue.usage.calls(caller, newest)
    ]


@router.get(
    "/ledger", response_class=Response, responses={200: {"content": {LEDGER: {"schema": BINARY}}}}
)
def ledger(request: Request, key: Anyone, analyst: OfAnalyst = None) -> Response:
    """A copy of the ledger for auditors (SQLite): every entry, nothing private."""
    service = app_service(request).of(key, analyst)
    with service.shared.copying.by(key.name):
        service.shared.copies.require(key.name)
        copy = service.ledger_copy()
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
    service = await run_in_threadpool(app_service(request).of, key)
    return await reply(service.queue.find(key.name, job), wait)


async def reply(job: Job, wait: float) -> Response:
    """200 with the result, 202 while there is none, or the job's refusal.

    No part of the state depends on private rows.
    """
    if wait > 0 and not job.future.done():
        await asyncio.wait([asyncio.wrap_future(job.future)], timeout=wait)
    state: dict[str, object] = {"job": job.id, "kind": job.kind, "status": job.status}
    state |= {"done": job.done, "total": job.total}
    if not job.future.done():
        return JSONResponse(state, 202)
    outcome = job.future.result()
    if isinstance(outcome, Refused):
        raise Refused(outcome.code, str(outcome))
    return JSONResponse({**state, "status": "done", "result": outcome})


@router.post(
    "/records",
    **as_job(
        "`inputs` as for queries, `labels` int64 [n], `ids` int64 [n], and `persons` int64 [n] "
        "where the unit of privacy is a person"
    ),
)
@router.post(
    "/records/removals",
    **as_job("ids", "application/json", replies.Removal.model_json_schema()),
)
async def change_records(request: Request, key: Custodian, wait: Wait = 0.0) -> Response:
    """Add records, or remove them by id and delete their data. A repeated change changes nothing.

    Where the unit of privacy is a person, `persons` says whose the rows are, and the ids to remove
    are persons', numbers or texts: all their rows go.
    """
    service = app_service(request)
    # FastAPI would read the whole body, and before the key is checked.
    body = await service.record_bodies.read(request)
    by_person, holder = service.plan.unit == "person", service.analysts or service.teacher
    if request.url.path.endswith("removals"):
        ids = _removed_ids(body, by_person)
        kind, body = "remove", ids.tobytes()

        def work() -> Result:
            holder.remove(ids)
            return {"records": len(ids)}
    else:
        kind, names = "add", ("inputs", "labels", "ids", *(["persons"] if by_person else []))
        records = received(await run_in_threadpool(decode, body, _media(request), names))

        def work() -> Result:
            holder.add(records)
            return {"records": len(records.ids)}

    identity, size = job_id(key.name, kind, {}, body), len(body)
    job = Job(identity, key.name, kind, size=size, from_custodian=True, work=work)
    return await reply(service.queue.submit(job), wait)


def _removed_ids(body: bytes, by_person: bool) -> np.ndarray:
    try:
        removal = replies.Removal.model_validate_json(body)
    except ValidationError as error:
        text = (
            f"the body must be a JSON object with `ids`, a list of at most {MAX_ROWS} "
            "whole numbers of 64 bits."
        )
        raise Refused("invalid_request", text) from error
    if by_person:
        return codes_of([str(each) for each in removal.ids])
    if any(isinstance(each, str) for each in removal.ids):
        raise Refused("invalid_request", "`ids` of rows must be whole numbers of 64 bits.")
    return np.array(removal.ids, dtype=np.int64)


@router.put(
    "/extractors/{sha256}",
    **as_job(
        "`fields` (JSON), `weights` (safetensors of the named network), `axes` (int16 [d, k]) and, "
        "where a mechanism needs them, `landmarks` (int8 [m, k]), all as uint8 [n]"
    ),
)
async def send_extractor(
    request: Request, key: Analyst, sha256: PathSha256, wait: Wait = 0.0
) -> Response:
    """Send a feature map by name and safetensors.

    The private records are embedded with it; nothing is released. One that is there is kept.
    """
    service = await run_in_threadpool(app_service(request).of, key)
    received, shared = sha256 in service.extractors, service.shared
    if not received:
        shared.extractors.take(key.name)
    body = await service.bodies.read(request)
    if not received:
        shared.uploads.take(key.name, len(body))
    spec = await run_in_threadpool(accepted, body, _media(request), sha256, service.settings)

    def work() -> Result:
        service.extractors.keep(spec, key.name)
        return {"extractor": sha256}

    identity = job_id(key.name, "extractor", {}, sha256.encode())
    fields: dict[str, Any] = {"extractor": spec, "size": len(body), "work": work}
    job = Job(identity, key.name, "extractor", embeds=True, **fields)
    if received:
        job.finish(work())
    else:
        await run_in_threadpool(service.extractors.test, spec, key.name)
        job = service.queue.submit(job)
    return await reply(job, wait)


@router.post(
    "/labels",
    **as_job("`inputs`: uint8 [n, height, width, channels] or float32 [n, dimensions]"),
)
@router.post("/cells", **as_job("`centers`: int8 [cells, dimensions]"))
@router.post("/weights", **as_job("`weights`: int16 [dimensions + 1, outputs]"))
async def ask(
    request: Request,
    key: Analyst,
    extractor: Sha256,
    slot: Slot = 0,
    wait: Wait = 0.0,
    idempotency_key: Idempotency = None,
) -> Response:
    """Ask for noisy labels of public inputs, or for counts of all records by a public matrix.

    A repeated query gets its stored answer for free; a matrix is one query. Cells: every record's
    vote in its nearest cells. Weights: the sum of every record's gradient. Receipts add up: over
    all `job`s, each counted once, `charged` sums to at most what the ledger charged.
    """
    service = await run_in_threadpool(app_service(request).of, key)
    service.shared.growth.require(key.name)
    body, media = await service.bodies.read(request), _media(request)
    kind, queue = request.url.path.rpartition("/")[2], service.queue

    def prepared() -> Job:
        parameters: dict[str, object] = {"slot": slot, "extractor": extractor}
        fields: dict[str, Any] = {
            "id": job_id(key.name, kind, parameters, body, idempotency_key),
            "caller": key.name,
            "kind": kind,
            "extractor": service.extractors.get(extractor),
            "size": len(body),
            "slot": slot,
        }
        if kind in MATRICES:
            form = MATRICES[kind]
            matrix = form(decode(body, media, (form.array,))[form.array], slot)
            return Job(**fields, work=lambda: queue.count(key.name, matrix, key.queries))
        inputs = decode(body, media, ("inputs",), MAX_ROWS)["inputs"]
        if inputs.shape[1:] != service.settings.task.input_shape:
            rule = f"rows of shape {list(service.settings.task.input_shape)}"
            raise InvalidInput("queries.inputs", rule, list(inputs.shape[1:]))
        Queries(inputs, slot)
        rows, inverse = distinct_rows(inputs)
        fields |= {"rows": rows, "inverse": inverse, "quota": key.queries}
        return Job(**fields, total=len(rows))

    return await reply(queue.submit(await run_in_threadpool(prepared)), wait)


def job_id(
    caller: str, kind: str, parameters: dict[str, object], body: bytes, call: str | None = ""
) -> str:
    """The identity of a request (64 hex digits): a half for caller and content, one for the call.

    ``call``: the name that the caller gave to it, None for a new call.
    """
    content = hashlib.sha256(canonical_json([caller, kind, parameters]) + b"\0" + body).hexdigest()
    named = secrets.token_hex(HALF) if call is None else call
    return content[:HALF] + hashlib.sha256(named.encode()).hexdigest()[:HALF]


def distinct_rows(inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct rows by their bytes, in order of appearance; int64 [n] index of each row there)."""
    numbers: dict[bytes, int] = {}
    inverse = [numbers.setdefault(row.tobytes(), len(numbers)) for row in inputs]
    first = np.unique(inverse, return_index=True)[1]
    return inputs[first], np.array(inverse, dtype=np.int64)


def app_service(request: Request) -> Service:
    return request.app.state.service


def _media(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
