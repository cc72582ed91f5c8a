"""The FastAPI application: the routes, one shape of error, a log line and a count for every request."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from labelwall.teacher.service.auth import problem
from labelwall.teacher.service.jobs import failed
from labelwall.teacher.service.metrics import Metrics
from labelwall.teacher.service.page import Pages, page
from labelwall.teacher.service.routes import PROBLEMS, VERSION, Custodian, router
from labelwall.teacher.service.state import Service
from labelwall.wall.errors import InvalidInput, LedgerMismatch, Refused

Log = Callable[..., None]
LOOKS_AT_KEYS = 30.0  # seconds between two, so that a key expires though nobody asks
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")


def log_line(event: str, **fields: object) -> None:
    """One JSON object on stderr. Callers give names, patterns and counts: no body, no address with parameters, no duration."""
    print(
        json.dumps(
            {"time": datetime.now(UTC).isoformat(timespec="seconds"), "event": event, **fields}
        ),
        file=sys.stderr,
        flush=True,
    )


def create_app(service: Service, report: Callable[[], None], log: Log = log_line) -> FastAPI:
    """The application over a service. ``report``: hears of an unexpected failure, for the custodian alone."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.desk.start()
        log("started", ledger_position=service.desk.figures.position)
        looking = asyncio.create_task(_look_at_keys(service))
        try:
            yield
        finally:
            looking.cancel()
            service.desk.close()  # the step at work is finished and stored, what waits is refused
            if service.analysts is not None:
                service.analysts.close()
            log("stopped", ledger_position=service.desk.figures.position)

    app = FastAPI(
        title="labelwall",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    app.state.service, app.state.page, metrics = service, Pages(), Metrics(service)
    app.include_router(router)
    app.include_router(page)

    @app.get("/v1/metrics", response_class=Response, responses=PROBLEMS)
    async def figures(_: Custodian) -> Response:
        """Figures for Prometheus, for the custodian, whose own requests they count, too."""
        return Response(metrics.text(), media_type="text/plain")

    _say_problems(app)
    app.middleware("http")(_watched(metrics, report, log))
    return app


async def _look_at_keys(service: Service) -> None:
    """Again and again, so that what expires is written down. Where that fails, each request hears of it."""
    while True:
        with suppress(LedgerMismatch):
            service.guard.keys()
        await asyncio.sleep(LOOKS_AT_KEYS)


def _say_problems(app: FastAPI) -> None:
    """Every refusal has the same form, and none repeats what was sent."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _response(error)

    async def invalid(_: Request, error: Exception) -> Response:
        return _response(Refused("invalid_input", str(error)))

    async def malformed(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        places = sorted(
            {".".join(str(part) for part in entry["loc"][:2]) for entry in error.errors()}
        )
        return _response(
            Refused(
                "invalid_request",
                f"these parts of the request are missing or out of range: {', '.join(places)}.",
            )
        )

    async def unknown(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal = failed("not_found" if error.status_code == 404 else "invalid_request")
        content = problem(refusal)[1]
        return JSONResponse(content, error.status_code, headers=error.headers)  # type: ignore[arg-type]

    async def no_ledger(_: Request, __: Exception) -> Response:
        return _response(failed("ledger_refused"))

    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(LedgerMismatch, no_ledger)
    app.add_exception_handler(InvalidInput, invalid)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, unknown)


def _response(refusal: Refused) -> Response:
    status, content, headers = problem(refusal)
    return JSONResponse(content, status, headers=headers)


def _watched(metrics: Metrics, report: Callable[[], None], log: Log) -> Any:
    """Middleware: whatever else goes wrong is one constant outside; each request is counted and leaves a line."""

    async def watch(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        try:
            response = await call_next(request)
        except Exception:
            report()
            response = _response(failed("teacher_failed"))
        route = request.scope.get("route")
        pattern = getattr(route, "path", "none") if route is not None else "none"
        method = request.method if request.method in METHODS else "other"
        metrics.answered(method, pattern, response.status_code)
        caller = getattr(request.state, "caller", None)
        log("request", method=method, route=pattern, status=response.status_code, caller=caller)
        return response

    return watch
