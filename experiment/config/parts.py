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
    """What a teacher, and the custodian's directory, need.

    Args:
        data: where rows come from.
        budget: the guarantee.
        unit: what it protects.
        plan: the plan. Of a ledger's plan it takes the numbers that the configuration leaves to
            the budget; None: they are calibrated now.
        scale: where the rows are stored and searched.
        computing: how features are computed.
        directory: the custodian's, where the configuration names it.
        ledger: its address on a server; None: a file of the directory.
        anchor: the place of the ledger's anchor.
        url: of the service that answers in place of a teacher here.
    """

    data: DataConfig
    budget: BudgetConfig
    unit: Unit
    plan: Callable[[Plan | None], Plan]
    scale: ScaleConfig
    computing: Computing
    directory: Path | None
    ledger: LedgerUrl | None
    anchor: Path | LedgerUrl | None
    url: str | None


@dataclass(frozen=True)
class Round:
    """What asking and training need of a round.

    Args:
        number: counted from 1.
        slot: the entry of the plan that pays.
        queries: rows to ask about; None: all.
        once: whether it has one price, whatever the number of rows.
        form: what its mechanism asks, with the noise that the budget decides.
        seed: of its public randomness.
    """

    number: int
    slot: int
    queries: int | None
    once: bool
    form: QueryForm
    seed: int


@dataclass(frozen=True)
class PublicSide:
    """What asking and training need.

    Args:
        rounds: in order.
        first: what the first round's features follow from.
        student: the network and its training.
        typical: whether typical rows are asked, not random ones.
        seed: public randomness.
        computing: how features are computed.
    """

    rounds: list[Round]
    first: FirstFeatures
    student: StudentConfig
    typical: bool
    seed: int
    computing: Computing
