"""The custodian's page at /: one document made here, without scripts; its two buttons export the ledger and audit it.

It shows what the ledger says, which is public, and what is the custodian's own: who holds keys, who was charged for what, how
many records came and went, and how far the work on private rows is. Nothing on it is computed from votes or features. Where
each analyst has a budget, there is one for each, below the list of them.
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

from labelwall.teacher.ledger import event_times
from labelwall.teacher.ledger.auditor.auditor import Finding
from labelwall.teacher.ledger.event_times import EventTime
from labelwall.teacher.records import record_updates as updates
from labelwall.teacher.service.charts import Chart, minute
from labelwall.teacher.service.history import History, Round
from labelwall.teacher.service.keys import Key
from labelwall.teacher.service.routes import LEDGER, OfAnalyst, own, the
from labelwall.teacher.service.state import (
    Service,
    audited,
    exported,
    left_of,
    opened,
    pooled_epsilons,
)
from labelwall.wall.messages import Outcome

NEWEST = 40  # extractors listed; older ones are counted together
CHANGES = 20  # of the records, listed
FOLDER = Path(__file__).parent

page = APIRouter(include_in_schema=False)


async def keeper(request: Request) -> Key:
    """The custodian in front of a browser."""
    return the(request).guard.keeper(request)


Keeper = Annotated[Key, Depends(keeper)]


@page.get("/")
async def show(request: Request, key: Keeper, analyst: OfAnalyst = None) -> Response:
    """What was spent, by whom, on what."""
    return await _document(request, await own(request, key, analyst), analyst)


@page.post("/export")
async def export(request: Request, key: Keeper, analyst: OfAnalyst = None) -> Response:
    """The auditors' copy of the ledger, as a file."""
    headers = {
        "content-disposition": 'attachment; filename="ledger.sqlite"',
        **request.app.state.page.headers,
    }
    found = await run_in_threadpool(exported, await own(request, key, analyst))
    return Response(found, media_type=LEDGER, headers=headers)


@page.post("/audit")
async def audit_now(request: Request, key: Keeper, analyst: OfAnalyst = None) -> Response:
    """The page with an audit of the ledger as it is now."""
    service = await own(request, key, analyst)
    return await _document(request, service, analyst, await run_in_threadpool(audited, service))


async def _document(
    request: Request, service: Service, analyst: str | None, finding: Finding | None = None
) -> Response:
    pages: Pages = request.app.state.page
    return HTMLResponse(
        await run_in_threadpool(pages.of(service, analyst).render, finding), headers=pages.headers
    )


class Pages:
    """The documents of a service, one for each ledger. ``headers``: nothing but its own style is used, and it is kept in no cache
    or frame."""

    def __init__(self) -> None:
        self._pages: dict[str, Page] = {}
        loader = FileSystemLoader(FOLDER)
        environment = Environment(
            loader=loader,
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._template, self._style = (
            environment.get_template("page.html"),
            (FOLDER / "page.css").read_text(),
        )
        digest = base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()
        policy = f"default-src 'none'; style-src 'sha256-{digest}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        self.headers = {
            "content-security-policy": policy,
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
            "cross-origin-opener-policy": "same-origin",
            "cross-origin-resource-policy": "same-origin",
        }

    def of(self, service: Service, analyst: str | None) -> Page:
        """The document of one ledger, which is ``analyst``'s where each has one."""
        return self._pages.setdefault(
            service.dataset, Page(service, analyst, self._template, self._style)
        )


class Page:
    """The document of one ledger."""

    def __init__(
        self, service: Service, analyst: str | None, template: Template, style: str
    ) -> None:
        self._service, self._analyst, self._template, self._style = (
            service,
            analyst,
            template,
            style,
        )
        self._history = History(service.ledger, service.plan)
        self._chart = Chart(
            service.plan,
            service.plan.epsilon if service.certified is None else service.certified,
            self._history,
        )
        self._alone = threading.Lock()  # the history grows while a page is made

    def render(self, finding: Finding | None) -> str:
        """The document. Raises LedgerMismatch where the ledger can not be read."""
        with self._alone:
            return self._rendered(finding)

    def _rendered(self, finding: Finding | None) -> str:
        service, figures = self._service, self._service.desk.figures
        if service.analysts is None:
            self._history.catch_up()
        added, removed = service.ledger.in_custody(updates.counts)
        changes, charged = service.ledger.in_custody(_moments)
        total = sum((entry.outcomes for entry in self._history.rounds), Counter[Outcome]())
        releases = [
            (slot, release)
            for slot, entry in enumerate(service.plan.slots)
            for release in entry.releases
        ]
        return self._template.render(
            style=Markup(self._style),
            dataset=service.dataset,
            unsafe=service.unsafe,
            certified=service.certified,
            adversary=service.adversary,
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
                (
                    slot,
                    service.plan.slots[slot].mechanism["kind"],
                    r.name,
                    figures.spent[slot, r.name],
                    r.cap,
                )
                for slot, r in releases
            ],
            outcomes=_outcomes(total),
            rounds=self._rounds(),
            earlier=max(0, len(self._history.rounds) - NEWEST),
            callers=self._callers(charged),
            added=added,
            removed=removed,
            position=figures.position,
            head=figures.head,
            waiting=service.desk.waiting,
            at_work=service.desk.at_work,
            scale=service.scale,
            finding=finding,
        )

    def _analysts(self) -> list[dict[str, object]]:
        """Everybody with a ledger: the share of its caps that is used, release by release."""
        return [
            {
                "name": name,
                "spent": [
                    (left.slot, left.release, left.spent, left.cap) for left in left_of(of_analyst)
                ],
                "charged": of_analyst.desk.calls.charged[name],
            }
            for name, of_analyst in opened(self._service).items()
        ]

    def _rounds(self) -> list[dict[str, object]]:
        """The newest extractors first."""
        callers: dict[int, Counter[str]] = defaultdict(Counter)
        for call in self._service.desk.calls.listed():
            used = self._history.round_after(call.position)
            if used is not None:
                callers[used.first][call.caller] += call.queries
        numbered = list(enumerate(self._history.rounds, 1))[-NEWEST:]
        return [_round(number, used, callers[used.first]) for number, used in reversed(numbered)]

    def _callers(self, noted: Sequence[EventTime]) -> list[dict[str, object]]:
        """Everybody who holds a key or was charged, by name."""
        charged = Counter(
            dict(self._service.desk.calls.charged)
        )  # a copy: the writer's thread goes on
        last = {moment.caller: moment.time for moment in noted}
        for name, of_analyst in opened(self._service).items():
            charged[name] += of_analyst.desk.calls.charged[name]
            last |= {
                moment.caller: moment.time for moment in of_analyst.ledger.in_custody(_moments)[1]
            }
        keys, now = defaultdict[str, list[Key]](list), datetime.now(UTC).timestamp()
        for key in self._service.guard.keys().values():
            keys[key.name].append(key)
        shown = []
        for name in sorted({*keys, *charged}):
            valid = next((key for key in keys[name] if key.valid(now)), None)
            newest = valid or (keys[name][-1] if keys[name] else None)
            shown.append(
                {
                    "name": name,
                    "role": newest.role if newest else "no key",
                    "valid": valid is not None,
                    "charged": charged[name],
                    "queries": newest.queries if newest else None,
                    "last": minute(last[name]) if name in last else None,
                }
            )
        return shown


def _moments(connection: sa.Connection) -> tuple[list[EventTime], list[EventTime]]:
    """(the newest changes of the records, all notes of charges). Private."""
    changes = event_times.listed(connection, event_times.ADDED, event_times.REMOVED, newest=CHANGES)
    return changes, event_times.listed(connection, event_times.CHARGED)


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
