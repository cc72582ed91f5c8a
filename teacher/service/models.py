"""The service's requests and replies, for its OpenAPI document.

Every number is released, or a parameter of the plan or of the caller.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ...wall.messages import Receipt
from ...wall.wire import MAX_ROWS
from .usage import ReleaseLeft

Person = Annotated[str, Field(min_length=1, max_length=256)]
Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Problem(BaseModel):
    """Why a request was refused: a constant text, or the caller's own parameter."""

    code: str
    message: str


class Health(BaseModel):
    status: str
    version: str


class Result(BaseModel):
    """The result of a finished job.

    Labels (by attribute where rows have attributes, in steps where they have a value) and outcomes
    of queries; noisy counts by cell and class, or one row of noisy sums (null: cap reached); the
    extractor that is ready; or the number of records in the request.
    """

    labels: list[int] | list[list[int]] | None = None
    outcomes: list[int] | None = None
    counts: list[list[int]] | None = None
    receipt: Receipt | None = None
    extractor: str | None = None
    records: int | None = None


class Job(BaseModel):
    """The state of a request.

    ``status``: queued, running, done or failed. ``done`` of ``total``: the request's own distinct
    queries that are answered; for other requests 0 of 1 until done. No reply contains progress over
    private rows.
    """

    job: str
    kind: str
    status: str
    done: int
    total: int
    result: Result | None = None


class Spent(BaseModel):
    """What is spent of a ledger.

    ``charged``: new queries noted for the caller, or for the analyst whose ledger it is.
    """

    dataset: str
    adversary: str
    releases: list[ReleaseLeft]
    ledger_position: int
    ledger_head: str
    charged: int


class Budget(Spent):
    """The plan and what is spent of it.

    ``epsilon`` is certified against the ``adversary`` for any queries and for the ``unit`` of
    privacy (row, or person: all rows of one); null where nothing is certified. ``queries``: this
    key's own cap on new queries, null for none.
    """

    unsafe: bool
    epsilon: float | None
    delta: float
    unit: str
    plan: dict[str, object]
    queries: int | None


class Charge(BaseModel):
    """A call charged for ``queries`` new queries after the ledger's entry ``ledger_position``."""

    caller: str
    slot: int
    queries: int
    ledger_position: int
    adversary: str


class AnalystBudget(Spent):
    """What is spent of an analyst's own ledger."""

    name: str


class Analysts(BaseModel):
    """The analysts with a ledger of their own.

    ``epsilon``: certified against the ``adversary``, for the ``unit`` of privacy; ``pooled``:
    epsilon at the same delta if that many of them pool their answers. Where all share one budget,
    ``analysts`` and ``pooled`` are empty.
    """

    adversary: str
    unit: str
    epsilon: float | None
    delta: float
    analysts: list[AnalystBudget]
    pooled: dict[int, float]


class Removal(BaseModel):
    """Ids of records to remove, present or not; of persons where those are the unit of privacy."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: Annotated[list[Id | Person], Field(max_length=MAX_ROWS)]
