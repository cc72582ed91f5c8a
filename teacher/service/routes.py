"""The routes under /v1 that read: health, budgets, receipts, ledgers and jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from . import models
from .route_parts import (
    PENDING,
    PROBLEMS,
    VERSION,
    Anyone,
    Custodian,
    OfAnalyst,
    PathSha256,
    Wait,
    app_service,
    reply,
    sent,
    service_for,
)
from .state import (
    Service,
    analyst_services,
    export_ledger,
    pooled_epsilons,
    releases_left,
)

LEDGER = "application/vnd.sqlite3"
router = APIRouter(prefix="/v1", responses=PROBLEMS)


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
    return sent(await run_in_threadpool(export_ledger, service), LEDGER)


@router.get("/jobs/{job}", response_model=models.Job, responses=PENDING)
async def job_state(request: Request, key: Anyone, job: PathSha256, wait: Wait = 0.0) -> Response:
    """The state of a job of this key and how many of its queries are answered, or its result."""
    service = await service_for(request, key)
    return await reply(service.queue.find(key.name, job), wait)
