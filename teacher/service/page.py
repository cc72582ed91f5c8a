"""The custodian's page at /: no scripts, and two buttons that export and audit the ledger.

It shows the ledger's content, which is public, and what is for the custodian only: who holds keys,
who was charged for what, how many records were added and removed, and progress over private rows.
Nothing on it is computed from votes or features. With a budget for each analyst, the page lists the
analysts, and each has a page.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from ...wall.messages import Outcome
from ..ledger import event_times
from ..ledger.auditor.auditor import Finding
from ..ledger.event_times import EventTime
from ..records import record_updates
from .charts import Chart, minute
from .history import History, Round
from .keys import Key
from .outlook import Outlook, forecast
from .route_parts import OfAnalyst, app_service, sent, service_for
from .routes import LEDGER
from .state import (
    Service,
    analyst_services,
    audit_ledger,
    export_ledger,
    pooled_epsilons,
    releases_left,
)

MAX_ROUNDS = 40  # extractors listed; older ones are only counted
MAX_CHANGES = 20  # changes of the records listed
FOLDER = Path(__file__).parent

page = APIRouter(include_in_schema=False)


async def browser_custodian(request: Request) -> Key:
    """The key of the custodian in a browser."""
    return app_service(request).auth.browser_custodian(request)


BrowserCustodian = Annotated[Key, Depends(browser_custodian)]


@page.get("/")
async def show(request: Request, key: BrowserCustodian, analyst: OfAnalyst = None) -> Response:
    """The page."""
    return await _document(request, await service_for(request, key, analyst), analyst)


@page.post("/export")
async def export(request: Request, key: BrowserCustodian, analyst: OfAnalyst = None) -> Response:
    """The auditors' copy of the ledger, as a file."""
    headers = {
        "content-disposition": 'attachment; filename="ledger.sqlite"',
        **request.app.state.pages.headers,
    }
    copy = await run_in_threadpool(export_ledger, await service_for(request, key, analyst))
    return sent(copy, LEDGER, headers)


@page.post("/audit")
async def audit_now(request: Request, key: BrowserCustodian, analyst: OfAnalyst = None) -> Response:
    """The page with an audit of the current ledger."""
    service = await service_for(request, key, analyst)
    finding = await run_in_threadpool(audit_ledger, service)
    return await _document(request, service, analyst, finding)


async def _document(
    request: Request, service: Service, analyst: str | None, finding: Finding | None = None
) -> Response:
    pages: Pages = request.app.state.pages
    text = await run_in_threadpool(pages.of(service, analyst).render, finding)
    return HTMLResponse(text, headers=pages.headers)


class Pages:
    """The pages of a service, one per ledger.

    ``headers`` allow no content but the page's own style, and forbid caching and framing.
    """

    def __init__(self, outlook: Outlook) -> None:
        self._pages: dict[str, Page] = {}
        self._outlook = outlook
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

    def of(self, service: Service, analyst: str | None) -> Page:
        """The page of one ledger, ``analyst``'s own where each has one."""
        return self._pages.setdefault(
            service.dataset,
            Page(service, analyst, self._template, self._style, self._outlook),
        )


class Page:
    """The page of one ledger."""

    def __init__(
        self,
        service: Service,
        analyst: str | None,
        template: Template,
        style: str,
        outlook: Outlook,
    ) -> None:
        self._service, self._analyst, self._outlook = service, analyst, outlook
        self._template, self._style = template, style
        self._history = History(service.ledger, service.plan)
        limit = service.plan.epsilon if service.certified is None else service.certified
        self._chart = Chart(service.plan, limit, self._history)
        self._lock = threading.Lock()  # the history is updated by each page

    def render(self, finding: Finding | None) -> str:
        """The page as HTML. Raises LedgerMismatch where the ledger cannot be read."""
        with self._lock:
            return self._render(finding)

    def _render(self, finding: Finding | None) -> str:
        service, snapshot = self._service, self._service.queue.snapshot
        if service.analysts is None:
            self._history.catch_up()
        added, removed = service.ledger.in_custody(record_updates.counts)
        changes, charged = service.ledger.in_custody(_events)
        total = sum((entry.outcomes for entry in self._history.rounds), Counter[Outcome]())
        return self._template.render(
            style=Markup(self._style),
            dataset=service.dataset,
            unsafe=service.unsafe,
            certified=service.certified,
            adversary=service.adversary,
            unit=service.plan.unit,
            analyst=self._analyst,
            analysts=None if service.analysts is None else self._analysts(),
            pooled=pooled_epsilons(service),
            delta=service.plan.delta,
            curve=self._chart.by_entry(),
            by_time=self._chart.by_time(charged),
            changes=[
                (minute(change.time), change.kind, change.size) for change in reversed(changes)
            ],
            releases=[
                (slot, entry.mechanism["kind"], r.name, snapshot.spent[slot, r.name], r.cap)
                for slot, entry in enumerate(service.plan.slots)
                for r in entry.releases
            ],
            outcomes=_outcomes(total),
            rounds=self._rounds(),
            earlier=max(0, len(self._history.rounds) - MAX_ROUNDS),
            callers=self._callers(charged),
            ends=self._forecast(charged),
            refused=self._outlook.refused(),
            health=self._outlook.health(service.directory),
            added=added,
            removed=removed,
            position=snapshot.position,
            head=snapshot.head,
            waiting=service.queue.waiting,
            at_work=service.queue.at_work,
            scale=service.scale,
            finding=finding,
        )

    def _forecast(self, charged: Sequence[EventTime]) -> str | None:
        """When the first cap is reached. Notes of charges and calls were written in pairs."""
        calls = self._service.queue.usage.calls(newest=len(charged)) if charged else []
        if self._service.analysts is not None or len(calls) != len(charged):
            return None
        snapshot, slots = self._service.queue.snapshot, [call.slot for call in calls]
        return forecast(self._service.plan, snapshot.remaining, charged, slots)

    def _analysts(self) -> list[dict[str, object]]:
        """The analysts with a ledger, and what is spent of their caps by release."""
        return [
            {
                "name": name,
                "spent": [(r.slot, r.release, r.spent, r.cap) for r in releases_left(service)],
                "charged": service.queue.usage.charged[name],
            }
            for name, service in analyst_services(self._service).items()
        ]

    def _rounds(self) -> list[dict[str, object]]:
        """The newest rounds, latest first."""
        callers: dict[int, Counter[str]] = defaultdict(Counter)
        for call in self._service.queue.usage.calls():
            used = self._history.round_after(call.position)
            if used is not None:
                callers[used.first][call.caller] += call.queries
        numbered = list(enumerate(self._history.rounds, 1))[-MAX_ROUNDS:]
        return [_round(number, used, callers[used.first]) for number, used in reversed(numbered)]

    def _callers(self, noted: Sequence[EventTime]) -> list[dict[str, object]]:
        """All who hold a key or were charged, by name."""
        # A copy, because the writer's thread changes it.
        charged = Counter(dict(self._service.queue.usage.charged))
        last = {event.caller: event.time for event in noted}
        for name, service in analyst_services(self._service).items():
            charged[name] += service.queue.usage.charged[name]
            last |= {event.caller: event.time for event in service.ledger.in_custody(_events)[1]}
        keys, now = defaultdict[str, list[Key]](list), datetime.now(UTC).timestamp()
        for key in self._service.auth.keys().values():
            keys[key.name].append(key)
        shown = []
        for name in sorted({*keys, *charged}):
            valid = next((key for key in keys[name] if key.is_valid(now)), None)
            newest = valid or (keys[name][-1] if keys[name] else None)
            shown.append(
                {
                    "name": name,
                    "role": newest.role if newest else "no key",
                    "valid": valid is not None,
                    "until": _until(valid),
                    "charged": charged[name],
                    "queries": newest.queries if newest else None,
                    "last": minute(last[name]) if name in last else None,
                }
            )
        return shown


def _events(connection: sa.Connection) -> tuple[list[EventTime], list[EventTime]]:
    """(the newest changes of the records, all notes of charges). Private."""
    changes = event_times.listed(
        connection, event_times.ADDED, event_times.REMOVED, newest=MAX_CHANGES
    )
    return changes, event_times.listed(connection, event_times.CHARGED)


def _until(key: Key | None) -> str:
    if key is None:
        return "–"
    return "no end" if key.expires is None else minute(int(key.expires))[:10]


def _round(number: int, used: Round, callers: Counter[str]) -> dict[str, object]:
    return {
        "number": number,
        "backbone": used.backbone,
        "sha256": used.sha256,
        "first": used.first,
        "charged": [(slot, release, count) for (slot, release), count in used.charged.items()],
        "outcomes": _outcomes(used.outcomes),
        "callers": callers.most_common(),
    }


def _outcomes(counts: Counter[Outcome]) -> dict[str, int]:
    return {outcome.name.lower(): counts[outcome] for outcome in Outcome}
