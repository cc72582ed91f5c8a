"""The FastAPI application: the routes, the custodian's page and metrics, one form of error, and a
log line and a count per request.

The page has no scripts and is for the custodian alone: it shows progress over private rows, and how
many came and went. No log or metric has a duration: these can depend on records.
"""

import asyncio
import base64
import ctypes
import hashlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import prometheus_client
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...wall.errors import InvalidInput, LedgerMismatch, Refused
from ..accounting.accountant import odometer
from ..accounting.conversion import round_up
from ..ledger import ledger_tables
from ..private_files import ERRORS
from ..records import record_updates
from .callers import BrowserCustodian, Custodian
from .keys import Keys, KeysDamaged, minute
from .queue import RequestQueue
from .replies import refused, response
from .routes import PROBLEMS, VERSION, OfAnalyst, app_service, router
from .server import Connection, ConnectionLimits
from .service import Service

Log = Callable[..., None]
UPKEEP_INTERVAL = 30.0  # seconds, so that keys are marked expired without any request
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
MAX_CHANGES = 20  # changes of the records on the page
DAYS = 30  # of the history of charges on the page
FOLDER = Path(__file__).parent
STYLE = (FOLDER / "page.css").read_text()
DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
# No content but the page's own style; no caching and no framing.
HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{DIGEST}'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
ENVIRONMENT = Environment(
    loader=FileSystemLoader(FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters |= {"minute": minute, "commas": "{:,}".format, "sum_of": Counter.total}
TEMPLATE = ENVIRONMENT.get_template("page.html")


def log_line(event: str, **fields: object) -> None:
    """Write one JSON object to stderr.

    Fields are names, patterns and counts: no body, no address with parameters, no duration.
    """
    time = datetime.now(UTC).isoformat(timespec="seconds")
    print(json.dumps({"time": time, "event": event, **fields}), file=sys.stderr, flush=True)


def create_app(service: Service, keys: Keys, log: Log = log_line) -> FastAPI:
    """The application over a service. Raises LedgerMismatch for a damaged key file."""
    keys.listed()  # stores which have expired

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
            service.close()
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
    app.state.service, app.state.keys = service, keys
    app.state.connections = ConnectionLimits(service.settings.config.connections_by_address)
    app.include_router(router)
    app.get("/", include_in_schema=False)(page)
    registry = prometheus_client.CollectorRegistry()
    labels = ["method", "route", "status"]  # route: the pattern, not the requested address
    requests = prometheus_client.Counter(
        "labelwall_requests", "Requests answered", labels, registry=registry
    )

    @app.get("/v1/metrics", response_class=Response, responses=PROBLEMS)
    async def figures(_: Custodian) -> Response:
        """Prometheus metrics, for the custodian. They count the custodian's requests, too."""
        both = map(prometheus_client.generate_latest, (registry, ledger_figures(service)))
        return Response(b"".join(both), media_type="text/plain")

    async def refuse(_: Request, error: Exception) -> Response:
        if isinstance(error, KeysDamaged):
            service.shared.report()
        return _reply_to(error)

    for kind in (Refused, InvalidInput, LedgerMismatch, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, refuse)
    app.add_middleware(Observed, requests, log)
    app.openapi()  # is kept; a stranger's request would wait for it, and all others with it
    return app


async def _keep_up(keys: Keys) -> None:
    """Store which keys have expired and return free memory, at moments that no record decides."""
    while True:
        with suppress(LedgerMismatch):
            keys.listed()
        await asyncio.to_thread(return_free_memory)
        await asyncio.sleep(UPKEEP_INTERVAL)


def return_free_memory() -> None:
    """Return the heap's free pages to the system: glibc returns those at the end alone."""
    with suppress(AttributeError):  # another library
        ctypes.CDLL(None).malloc_trim(0)


def page(request: Request, key: BrowserCustodian, analyst: OfAnalyst = None) -> Response:
    """The page of one ledger: the custodian's, or ``analyst``'s own where each has one."""
    service = app_service(request).of(key, analyst)
    analysts, log = service.analysts, service.directory / ERRORS
    own = {} if analysts is None else analysts.services()
    snapshot = service.queue.snapshot
    # A reading; at full caps another certificate may be smaller.
    limit = service.plan.epsilon if service.certified is None else service.certified
    counts = tuple(release.spent for release in snapshot.releases)
    text = TEMPLATE.render(
        style=Markup(STYLE),
        service=service,
        snapshot=snapshot,
        at_work=service.queue.at_work,
        analyst=analyst,
        analysts=None if analysts is None else own,
        pooled=service.pooled_epsilons(),
        spent=round_up(min(odometer(service.plan, counts), limit)) if counts else 0.0,
        callers=_callers(request.app.state.keys, [service, *own.values()]),
        days=DAYS,
        history=_history([service, *own.values()]),
        updates=service.ledger.in_custody(record_updates.counts),
        changes=service.ledger.in_custody(
            lambda opened: ledger_tables.events(
                opened, ledger_tables.ADDED, ledger_tables.REMOVED, newest=MAX_CHANGES
            )
        ),
        failed=log.stat().st_mtime if log.exists() else None,
    )
    return HTMLResponse(text, headers=HEADERS)


def _callers(keys: Keys, services: list[Service]) -> list[tuple[object, ...]]:
    """(name, its valid key or else the newest, whether that is valid, charged, when last) of all
    who hold a key or were charged.
    """
    charged, last, now = Counter[str](), dict[str, int](), time.time()
    for service in services:
        charged.update(service.queue.usage.charged)
        last |= service.queue.usage.last
    listed = sorted(keys.listed().values(), key=lambda key: key.is_valid(now))
    key_of = {key.name: key for key in listed}  # the last of a name
    valid = {key.name for key in listed if key.is_valid(now)}
    return [
        (name, key_of.get(name), name in valid, charged[name], last.get(name))
        for name in sorted({*key_of, *charged})
    ]


def _history(services: list[Service]) -> dict[str, Counter[str]]:
    """New queries by day and caller over DAYS, the newest day first; only days that have some."""
    found = defaultdict[int, Counter[str]](Counter)
    day = ledger_tables.DAY
    read = partial(ledger_tables.charged_by_day, since=(int(time.time()) // day - DAYS + 1) * day)
    for each in services:
        for at, caller, queries in each.ledger.in_custody(read):
            found[at][caller] += queries
    dates = {at: datetime.fromtimestamp(at * day, UTC).date().isoformat() for at in found}
    return {dates[at]: found[at] for at in sorted(found, reverse=True) if found[at].total()}


def ledger_figures(service: Service) -> prometheus_client.CollectorRegistry:
    """Counts of the ledgers' entries as they are now, by analyst where each has one."""
    registry, own = prometheus_client.CollectorRegistry(), service.analysts
    gauge = partial(prometheus_client.Gauge, registry=registry)
    queues: dict[tuple[str, ...], RequestQueue] = {(): service.queue}
    if own is not None:
        queues |= {(name,): each.queue for name, each in own.opened().items()}
    labels = [*(["analyst"] if own is not None else []), "slot", "release"]
    spent = gauge("labelwall_releases_spent", "Charged", labels)
    left = gauge("labelwall_releases_left", "Not charged", labels)
    for name, queue in queues.items():
        for each in queue.snapshot.releases:
            spent.labels(*name, each.slot, each.release).set(each.spent)
            left.labels(*name, each.slot, each.release).set(each.left)
    gauge("labelwall_ledger_position", "Newest entry").set(service.queue.snapshot.position)
    waiting = sum(queue.waiting for queue in queues.values())
    gauge("labelwall_waiting", "Requests for the teacher").set(waiting)
    return registry


def _reply_to(error: Exception) -> Response:
    """The one form of every refusal. It does not repeat what was sent."""
    if isinstance(error, HTTPException):
        code = "not_found" if error.status_code == 404 else "invalid_request"
        reply = response(refused(code), error.status_code)
        reply.headers.update(error.headers or {})
        return reply
    if isinstance(error, RequestValidationError):
        places = {".".join(str(name) for name in entry["loc"][:2]) for entry in error.errors()}
        names = ", ".join(sorted(places))
        text = f"these parts of the request are missing or out of range: {names}."
        return response(Refused("invalid_request", text))
    if isinstance(error, LedgerMismatch):
        damaged = isinstance(error, KeysDamaged)
        return response(refused("keys_unreadable" if damaged else "ledger_refused"))
    return response(error if isinstance(error, Refused) else Refused("invalid_input", str(error)))


class Observed:
    """Middleware: every other failure becomes one constant; each request is counted and logged.

    A client that goes away before its request is complete is no failure: it has status 499.
    A connection without a valid key is closed after one reply.
    """

    def __init__(self, app: ASGIApp, requests: prometheus_client.Counter, log: Log) -> None:
        self._app, self._requests, self._log = app, requests, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, state = 0, scope.setdefault("state", {})
        connection: Connection | None = state.get("connection")

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if connection is not None and not connection.admitted:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        except ClientDisconnect:
            status = 499
        except asyncio.CancelledError:
            if not status:  # the time for the last requests is over
                await response(refused("shutting_down"))(scope, receive, observed)
        except Exception:
            scope["app"].state.service.shared.report()
            if not status:
                await response(refused("teacher_failed"))(scope, receive, observed)
        finally:
            if "admitted" in state:
                peer, analyst = state["admitted"]
                scope["app"].state.connections.end(peer, analyst)
            pattern = getattr(scope.get("route"), "path", "none")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._requests.labels(method, pattern, str(status)).inc()
            caller = state.get("caller")
            self._log("request", method=method, route=pattern, status=status, caller=caller)
