"""The custodian's page at /, without scripts.

It shows what is spent, which is public, and what is for the custodian only: who holds keys, who was
charged how much, how many records were added and removed, and progress over private rows. Nothing
on it is computed from votes or features. With a budget for each analyst, the page lists the
analysts, and each has a page.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections import Counter
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..accounting.accountant import odometer
from ..accounting.conversion import round_up
from ..ledger import tables
from ..private_files import ERRORS
from ..records import record_updates
from .auth import BrowserCustodian, OfAnalyst, service_for
from .keys import Keys, minute
from .service import Service

MAX_CHANGES = 20  # changes of the records listed
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
ENVIRONMENT.filters |= {"minute": minute, "commas": "{:,}".format}
TEMPLATE = ENVIRONMENT.get_template("page.html")

page = APIRouter(include_in_schema=False)


@page.get("/")
def show(request: Request, key: BrowserCustodian, analyst: OfAnalyst = None) -> Response:
    """The page of one ledger, ``analyst``'s own where each has one.

    Raises LedgerMismatch where the ledger cannot be read.
    """
    service = service_for(request, key, analyst)
    analysts, log = service.analysts, service.directory / ERRORS
    own = {} if analysts is None else analysts.services()
    kinds = tables.ADDED, tables.REMOVED
    text = TEMPLATE.render(
        style=Markup(STYLE),
        service=service,
        snapshot=service.queue.snapshot,
        at_work=service.queue.at_work,
        analyst=analyst,
        analysts=None if analysts is None else own,
        pooled=service.pooled_epsilons(),
        spent=_spent(service),
        callers=_callers(request.app.state.callers.keys, [service, *own.values()]),
        updates=service.ledger.in_custody(record_updates.counts),
        changes=service.ledger.in_custody(
            lambda opened: tables.events(opened, *kinds, newest=MAX_CHANGES)
        ),
        failed=log.stat().st_mtime if log.exists() else None,
    )
    return HTMLResponse(text, headers=HEADERS)


def _spent(service: Service) -> float:
    """Epsilon spent, a reading; at full caps another certificate may be smaller."""
    limit = service.plan.epsilon if service.certified is None else service.certified
    counts = tuple(release.spent for release in service.queue.snapshot.releases)
    return round_up(min(odometer(service.plan, counts), limit)) if counts else 0.0


def _callers(keys: Keys, services: list[Service]) -> list[dict[str, object]]:
    """All who hold a key or were charged, by name: the valid key, or else the newest."""
    charged, last, now = Counter[str](), dict[str, int](), time.time()
    for service in services:
        charged.update(service.queue.usage.charged)
        last |= service.queue.usage.last
    listed = sorted(keys.listed().values(), key=lambda key: key.is_valid(now))
    key_of = {key.name: key for key in listed}  # the last one of a name
    return [
        {
            "name": name,
            "key": key_of.get(name),
            "valid": name in key_of and key_of[name].is_valid(now),
            "charged": charged[name],
            "last": last.get(name),
        }
        for name in sorted({*key_of, *charged})
    ]
