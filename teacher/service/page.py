"""The custodian's page at /: no scripts, and two buttons that export and audit the ledger.

It shows what is spent, which is public, and what is for the custodian only: who holds keys, who was
charged how much, how many records were added and removed, and progress over private rows. Nothing
on it is computed from votes or features. With a budget for each analyst, the page lists the
analysts, and each has a page.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..accounting.accountant import odometer
from ..accounting.conversion import round_up
from ..ledger.auditor.auditor import Finding
from ..ledger.tables import ADDED, CHARGED, REMOVED, events
from ..private_files import ERRORS
from ..records import record_updates
from .auth import BrowserCustodian, OfAnalyst, service_for
from .keys import Key, Keys
from .requests import file_reply
from .service import Service

MAX_CHANGES = 20  # changes of the records listed
FOLDER = Path(__file__).parent

page = APIRouter(include_in_schema=False)


@page.get("/")
async def show(request: Request, key: BrowserCustodian, analyst: OfAnalyst = None) -> Response:
    """The page."""
    return await _document(request, await service_for(request, key, analyst), analyst)


@page.post("/export")
async def export(request: Request, key: BrowserCustodian, analyst: OfAnalyst = None) -> Response:
    """The auditors' copy of the ledger, as a file."""
    service = await service_for(request, key, analyst)
    named = {"content-disposition": 'attachment; filename="ledger.sqlite"'}
    copy = await run_in_threadpool(service.copies.open)
    return file_reply(copy, {**named, **request.app.state.pages.headers})


@page.post("/audit")
async def audit_now(request: Request, key: BrowserCustodian, analyst: OfAnalyst = None) -> Response:
    """The page with an audit of the current ledger."""
    service = await service_for(request, key, analyst)
    finding = await run_in_threadpool(service.copies.audit)
    return await _document(request, service, analyst, finding)


async def _document(
    request: Request, service: Service, analyst: str | None, finding: Finding | None = None
) -> Response:
    pages: Pages = request.app.state.pages
    text = await run_in_threadpool(pages.render, service, analyst, finding)
    return HTMLResponse(text, headers=pages.headers)


class Pages:
    """The pages of a service, one per ledger.

    ``headers`` allow no content but the page's own style, and forbid caching and framing.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        environment = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._template = environment.get_template("page.html")
        self._style = (FOLDER / "page.css").read_text()
        digest = base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()
        self.headers = {
            "content-security-policy": f"default-src 'none'; style-src 'sha256-{digest}'; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
        }

    def render(self, service: Service, analyst: str | None, finding: Finding | None) -> str:
        """The page of one ledger, ``analyst``'s own where each has one, as HTML.

        Raises LedgerMismatch where the ledger cannot be read.
        """
        snapshot, analysts = service.queue.snapshot, service.analysts
        own = {} if analysts is None else analysts.services()
        added, removed = service.ledger.in_custody(record_updates.counts)
        changes = service.ledger.in_custody(
            lambda opened: events(opened, ADDED, REMOVED, newest=MAX_CHANGES)
        )
        return self._template.render(
            style=Markup(self._style),
            service=service,
            analyst=analyst,
            analysts=None if analysts is None else own,
            pooled=service.pooled_epsilons(),
            spent=_spent(service),
            snapshot=snapshot,
            callers=_callers(self._keys, [service, *own.values()]),
            added=added,
            removed=removed,
            changes=[(_minute(each.time), each.kind, each.size) for each in reversed(changes)],
            failed=_last_failure(service.directory),
            at_work=service.queue.at_work,
            scale=service.settings.scale,
            finding=finding,
        )


def _spent(service: Service) -> float:
    """Epsilon spent, a reading; at full caps another certificate may be smaller."""
    limit = service.plan.epsilon if service.certified is None else service.certified
    counts = tuple(release.spent for release in service.releases_left())
    return round_up(min(odometer(service.plan, counts), limit)) if counts else 0.0


def _callers(keys: Keys, services: list[Service]) -> list[dict[str, object]]:
    """All who hold a key or were charged, by name."""
    charged, last = Counter[str](), dict[str | None, str]()
    for service in services:
        charged.update(dict(service.queue.usage.charged))  # a copy: the writer's thread changes it
        noted = service.ledger.in_custody(lambda opened: events(opened, CHARGED))
        last |= {event.caller: _minute(event.time) for event in noted}
    by_name, now = defaultdict[str, list[Key]](list), time.time()
    for key in keys.listed().values():
        by_name[key.name].append(key)
    shown = []
    for name in sorted({*by_name, *charged}):
        valid = next((key for key in by_name[name] if key.is_valid(now)), None)
        newest = valid or (by_name[name][-1] if by_name[name] else None)
        shown.append(
            {
                "name": name,
                "role": newest.role if newest else "no key",
                "valid": valid is not None,
                "until": _until(valid),
                "charged": charged[name],
                "queries": newest.queries if newest else None,
                "last": last.get(name, "–"),
            }
        )
    return shown


def _until(key: Key | None) -> str:
    if key is None:
        return "–"
    return "no end" if key.expires is None else _minute(key.expires)[:10]


def _last_failure(directory: Path) -> str:
    log = directory / ERRORS
    return _minute(log.stat().st_mtime) if log.exists() else "never"


def _minute(seconds: float) -> str:
    """A time (seconds since 1970, UTC) as text, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
