"""What each room needs of a run's configuration, which the entry of a run splits into these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...student.config import StudentConfig
from ...teacher.accounting.plan import Plan
from ...teacher.ledger.url import LedgerUrl
from ...teacher.mechanisms.base import QueryForm
from ...teacher.shards.config import ScaleConfig
from ...wall.datasets.config import DataConfig
from ...wall.guarantee import Unit
from .groups import BudgetConfig, Computing, FirstFeatures


@dataclass(frozen=True)
class PrivateSide:
    """What a teacher, and the custodian's directory, need."""

    data: DataConfig
    budget: BudgetConfig
    unit: Unit
    # The plan, with those numbers of a ledger's plan that the configuration leaves to the budget;
    # None: they are calibrated now.
    plan: Callable[[Plan | None], Plan]
    scale: ScaleConfig
    computing: Computing
    directory: Path | None  # the custodian's, where the configuration names it
    ledger: LedgerUrl | None  # None: a file of the directory
    anchor: Path | LedgerUrl | None
    url: str | None  # of the service that answers in place of a teacher here


@dataclass(frozen=True)
class Round:
    """What asking and training need of a round."""

    number: int  # counted from 1
    slot: int  # the entry of the plan that pays
    queries: int | None  # rows to ask about; None: all
    once: bool  # whether it has one price, whatever the number of rows
    form: QueryForm  # what its mechanism asks, with the noise that the budget decides
    seed: int  # of its public randomness


@dataclass(frozen=True)
class PublicSide:
    """What asking and training need."""

    rounds: list[Round]
    first: FirstFeatures
    student: StudentConfig
    typical: bool  # whether typical rows are asked, not random ones
    seed: int  # of public randomness
    computing: Computing
