"""What the service says, for its OpenAPI document. Every figure is released, or a parameter of the plan or of the caller's."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from labelwall.wall.wire import MAX_ROWS

Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Problem(BaseModel):
    """Why a request was refused. Constant texts, or the caller's own parameter."""

    code: str
    message: str


class Health(BaseModel):
    status: str
    version: str


class Receipt(BaseModel):
    """What a call cost and what is left: counts of releases."""

    asked: int
    served: int
    charged: dict[str, int]
    left: dict[str, int]
    ledger_position: int
    ledger_head: str
    cliques: dict[str, int] = {}
    reused: int = 0
    adversary: str


class Result(BaseModel):
    """What a finished job released: labels (by attribute, where rows have those; steps of a value) and outcomes of queries, or
    noisy counts by cell and class (null: cap reached), or the extractor that is ready, or how many records were named."""

    labels: list[int] | list[list[int]] | None = None
    outcomes: list[int] | None = None
    counts: list[list[int]] | None = None
    receipt: Receipt | None = None
    extractor: str | None = None
    records: int | None = None


class Job(BaseModel):
    """The state of a request. ``status``: queued, running, done or failed. ``done`` of ``total``: the request's own
    distinct queries that are answered; 0 of 1 for any other request, until it is done. How far the work on private rows is
    stands in no reply."""

    job: str
    kind: str
    status: str
    done: int
    total: int
    result: Result | None = None


class ReleaseLeft(BaseModel):
    slot: int
    release: str
    cap: int
    spent: int
    left: int


class Budget(BaseModel):
    """The plan and how far it is spent. ``epsilon`` is certified against the ``adversary``, whatever is asked; null where nothing
    is certified. ``queries``: this key's own cap on new queries, null for none; ``charged``: what it used of it."""

    dataset: str
    unsafe: bool
    epsilon: float | None
    delta: float
    adversary: str
    plan: dict[str, object]
    releases: list[ReleaseLeft]
    ledger_position: int
    ledger_head: str
    queries: int | None
    charged: int


class Charge(BaseModel):
    """A call that was charged: for so many new queries, when the ledger's newest entry was ``ledger_position``."""

    caller: str
    slot: int
    queries: int
    ledger_position: int
    adversary: str


class AnalystBudget(BaseModel):
    """How far an analyst's own ledger is spent. ``charged``: new queries noted for the analyst."""

    name: str
    dataset: str
    adversary: str
    releases: list[ReleaseLeft]
    ledger_position: int
    ledger_head: str
    charged: int


class Analysts(BaseModel):
    """Those who have a ledger of their own. ``epsilon``: certified against the ``adversary``; ``pooled``: at the same delta,
    against so many of them who do pool their answers. Where all share one budget, both lists are empty."""

    adversary: str
    epsilon: float | None
    delta: float
    analysts: list[AnalystBudget]
    pooled: dict[int, float]


class Removal(Strict):
    """Ids of records that leave, present or not."""

    ids: Annotated[list[Id], Field(max_length=MAX_ROWS)]
