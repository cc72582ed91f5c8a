"""The FastAPI application: routes, one form of error, a log line and a count per request."""

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
from labelwall.teacher.service.jobs import refused
from labelwall.teacher.service.metrics import Metrics
from labelwall.teacher.service.page import Pages, page
from labelwall.teacher.service.routes import PROBLEMS, VERSION, Custodian, router
from labelwall.teacher.service.state import Service
from labelwall.wall.errors import InvalidInput, LedgerMismatch, Refused

Log = Callable[..., None]
KEY_CHECK_INTERVAL = 30.0  # seconds, so that keys are marked expired without any request
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")


def log_line(event: str, **fields: object) -> None:
    """Write one JSON object to stderr.

    Fields are names, patterns and counts: no body, no address with parameters, no duration.
    """
    time = datetime.now(UTC).isoformat(timespec="seconds")
    print(json.dumps({"time": time, "event": event, **fields}), file=sys.stderr, flush=True)


def create_app(service: Service, report: Callable[[], None], log: Log = log_line) -> FastAPI:
    """The application over a service. ``report`` records unexpected failures for the custodian."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.queue.start()
        log("started", ledger_position=service.queue.snapshot.position)
        checking = asyncio.create_task(_check_keys(service))
        try:
            yield
        finally:
            checking.cancel()
            service.queue.close()
            if service.analysts is not None:
                service.analysts.close()
            log("stopped", ledger_position=service.queue.snapshot.position)

    app = FastAPI(
        title="labelwall",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/v1/openapi.json",
    )
    metrics = Metrics(service)
    app.state.service = service
    app.state.pages = Pages()
    app.include_router(router)
    app.include_router(page)

    @app.get("/v1/metrics", response_class=Response, responses=PROBLEMS)
    async def figures(_: Custodian) -> Response:
        """Prometheus metrics, for the custodian. They count the custodian's requests, too."""
        return Response(metrics.text(), media_type="text/plain")

    _add_exception_handlers(app)
    app.middleware("http")(_observed(metrics, report, log))
    return app


async def _check_keys(service: Service) -> None:
    """Store which keys have expired, periodically. If that fails, each request reports it."""
    while True:
        with suppress(LedgerMismatch):
            service.auth.keys()
        await asyncio.sleep(KEY_CHECK_INTERVAL)


def _add_exception_handlers(app: FastAPI) -> None:
    """Give every refusal the same form. None repeats what was sent."""

    async def on_refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _response(error)

    async def invalid(_: Request, error: Exception) -> Response:
        return _response(Refused("invalid_input", str(error)))

    async def malformed(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        places = {".".join(str(part) for part in entry["loc"][:2]) for entry in error.errors()}
        names = ", ".join(sorted(places))
        text = f"these parts of the request are missing or out of range: {names}."
        return _response(Refused("invalid_request", text))

    async def unknown(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        refusal = refused("not_found" if error.status_code == 404 else "invalid_request")
        content = problem(refusal)[1]
        return JSONResponse(content, error.status_code, headers=error.headers)  # type: ignore[arg-type]

    async def no_ledger(_: Request, __: Exception) -> Response:
        return _response(refused("ledger_refused"))

    app.add_exception_handler(Refused, on_refused)
    app.add_exception_handler(LedgerMismatch, no_ledger)
    app.add_exception_handler(InvalidInput, invalid)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, unknown)


def _response(refusal: Refused) -> Response:
    status, content, headers = problem(refusal)
    return JSONResponse(content, status, headers=headers)


def _observed(metrics: Metrics, report: Callable[[], None], log: Log) -> Any:
    """Middleware: every other failure becomes one constant; each request is counted and logged."""

    async def observe(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        try:
            response = await call_next(request)
        except Exception:
            report()
            response = _response(refused("teacher_failed"))
        route = request.scope.get("route")
        pattern = getattr(route, "path", "none") if route is not None else "none"
        method = request.method if request.method in METHODS else "other"
        metrics.count_request(method, pattern, response.status_code)
        caller = getattr(request.state, "caller", None)
        log("request", method=method, route=pattern, status=response.status_code, caller=caller)
        return response

    return observe
