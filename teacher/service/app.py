"""The FastAPI application: routes, one form of error, and a log line and a count per request.

There are no durations in logs or metrics: these can depend on records.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...wall.errors import InvalidInput, LedgerMismatch, Refused
from .auth import Callers, Custodian
from .keys import Keys, KeysDamaged
from .page import page
from .queue import RequestQueue
from .refusals import refused, response
from .routes import PROBLEMS, VERSION, router
from .server import ConnectionLimits
from .service import Service

Log = Callable[..., None]
UPKEEP_INTERVAL = 30.0  # seconds, so that keys are marked expired without any request
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")


def log_line(event: str, **fields: object) -> None:
    """Write one JSON object to stderr.

    Fields are names, patterns and counts: no body, no address with parameters, no duration.
    """
    time = datetime.now(UTC).isoformat(timespec="seconds")
    print(json.dumps({"time": time, "event": event, **fields}), file=sys.stderr, flush=True)


def create_app(service: Service, keys: Keys, log: Log = log_line) -> FastAPI:
    """The application over a service. Raises LedgerMismatch for a damaged key file."""
    keys.listed()  # stores which have expired
    config = service.settings.config

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # asyncio's own report would quote what a connection sent.
        asyncio.get_running_loop().set_exception_handler(lambda *_: log("connection failed"))
        service.queue.start()
        log("started", ledger_position=service.queue.snapshot.position)
        upkeep = asyncio.create_task(_keep_up(keys))
        try:
            yield
        finally:
            upkeep.cancel()
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
        redirect_slashes=False,  # a redirect repeats the Host that was sent
    )
    app.state.service = service
    app.state.callers = Callers(keys, config.requests_per_second)
    app.state.connections = ConnectionLimits(config.connections_by_address)
    app.include_router(router)
    app.include_router(page)
    metrics = Metrics(service)

    @app.get("/v1/metrics", response_class=Response, responses=PROBLEMS)
    async def figures(_: Custodian) -> Response:
        """Prometheus metrics, for the custodian. They count the custodian's requests, too."""
        return Response(generate_latest(metrics.registry), media_type="text/plain")

    async def refuse(_: Request, error: Exception) -> Response:
        if isinstance(error, KeysDamaged):
            service.shared.report()
        return _reply_to(error)

    for kind in (Refused, InvalidInput, LedgerMismatch, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, refuse)
    watch = {"limits": app.state.connections, "report": service.shared.report, "log": log}
    app.add_middleware(Observed, requests=metrics.requests, **watch)
    return app


async def _keep_up(keys: Keys) -> None:
    """Store which keys have expired and return free memory, periodically.

    A failure to store is reported by each request. No moment depends on a record.
    """
    while True:
        with suppress(LedgerMismatch):
            keys.listed()
        await asyncio.to_thread(return_free_memory)
        await asyncio.sleep(UPKEEP_INTERVAL)


def return_free_memory() -> None:
    """Return the heap's free pages to the system, where the C library is glibc.

    By itself it returns those at the end alone, and what a service keeps lies between what it
    frees.
    """
    with suppress(AttributeError):  # another library
        ctypes.CDLL(None).malloc_trim(0)


def _reply_to(error: Exception) -> Response:
    """The one form of every refusal. It does not repeat what was sent."""
    if isinstance(error, HTTPException):
        code = "not_found" if error.status_code == 404 else "invalid_request"
        reply = response(refused(code), error.status_code)
        reply.headers.update(error.headers or {})
        return reply
    if isinstance(error, RequestValidationError):
        places = {".".join(str(part) for part in entry["loc"][:2]) for entry in error.errors()}
        names = ", ".join(sorted(places))
        text = f"these parts of the request are missing or out of range: {names}."
        return response(Refused("invalid_request", text))
    if isinstance(error, LedgerMismatch):
        damaged = isinstance(error, KeysDamaged)
        return response(refused("keys_unreadable" if damaged else "ledger_refused"))
    return response(error if isinstance(error, Refused) else Refused("invalid_input", str(error)))


class Metrics:
    """Counts of requests and of the ledger's entries, in Prometheus' registry."""

    def __init__(self, service: Service) -> None:
        self.registry, self._service = CollectorRegistry(), service
        labels = ["method", "route", "status"]  # route: the pattern, not the requested address
        name, text = "labelwall_requests", "Requests answered"
        self.requests = Counter(name, text, labels, registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """The metrics that are computed when read."""
        analysts, register = self._service.analysts, self._service.queue
        names, ledgers = list[str](), dict[tuple[str, ...], RequestQueue]({(): register})
        if analysts is not None:
            names = ["analyst"]
            ledgers |= {(name,): own.queue for name, own in analysts.open_services().items()}
        labels = [*names, "slot", "release"]
        spent = GaugeMetricFamily("labelwall_releases_spent", "Releases charged", labels=labels)
        left = GaugeMetricFamily("labelwall_releases_left", "Releases not charged", labels=labels)
        for name, queue in ledgers.items():
            for each in queue.snapshot.releases:
                spent.add_metric([*name, str(each.slot), each.release], each.spent)
                left.add_metric([*name, str(each.slot), each.release], each.left)
        yield from (spent, left)
        for metric, text, value in (
            ("ledger_position", "Number of the ledger's newest entry", register.snapshot.position),
            ("waiting", "Requests for the teacher", sum(q.waiting for q in ledgers.values())),
        ):
            yield GaugeMetricFamily(f"labelwall_{metric}", text, value=value)


class Observed:
    """Middleware: every other failure becomes one constant; each request is counted and logged.

    A client that goes away before its request is complete is no failure: it has status 499.
    """

    def __init__(
        self,
        app: ASGIApp,
        requests: Counter,
        limits: ConnectionLimits,
        report: Callable[[], None],
        log: Log,
    ) -> None:
        self._app, self._requests, self._limits = app, requests, limits
        self._report, self._log = report, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, observed)
        except ClientDisconnect:
            status = 499
        except asyncio.CancelledError:  # the time for the last requests is over
            if not status:
                await response(refused("shutting_down"))(scope, receive, observed)
        except Exception:
            self._report()
            if not status:
                await response(refused("teacher_failed"))(scope, receive, observed)
        finally:
            self._end(scope, status)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:
            # Two programs on the way could read two different requests.
            rule = "`content-length` and `transfer-encoding` must not be sent together."
            reply = response(Refused("invalid_request", rule))
            reply.headers["connection"] = "close"
            await reply(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _end(self, scope: Scope, status: int) -> None:
        state = scope.get("state", {})
        if "admitted" in state:
            self._limits.end(*state["admitted"])
        pattern = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(method, pattern, str(status)).inc()
        caller = state.get("caller")
        self._log("request", method=method, route=pattern, status=status, caller=caller)
