"""The private side's settings: where the rows are, and what may be spent on what.

Loads without torch, so that `plan` answers at once.
"""

from dataclasses import dataclass, field
from pathlib import Path

from ...wall.computing import Computing
from ...wall.datasets.data_config import SOURCES, DataConfig
from ...wall.errors import InvalidInput
from ..accounting.plan import Plan
from ..ledger.url import LedgerUrl
from ..mechanisms.registry import AnyMechanism
from ..mechanisms.votes import PrivateKnn
from ..shards.scale_config import ScaleConfig
from .groups import BudgetConfig, CapsConfig, EvaluateConfig, PrivacyConfig, RoundConfig
from .schedule import Schedule
from .solver import solved


@dataclass(frozen=True, kw_only=True)
class PrivateSide(Computing):
    """What a teacher, and the custodian's directory, need.

    Args:
        data: where private, public and test rows come from.
        budget: (epsilon, delta) for the whole run.
        privacy: what they hold for: rows, or persons with several rows.
        mechanism: the private mechanism of the rounds that name none.
        caps: caps of that mechanism, over those rounds.
        rounds: the rounds, in order, or how many alike; '[{queries: 300}, {}]' asks 300 rows first.
        evaluate: a score on the private records.
        teacher: URL of the service that answers (`labelwall serve`), or a list of those of several
            custodians, whose records are disjoint; in this process when null. API keys are taken
            from the environment variable LABELWALL_KEY, separated by commas.
        custodian_dir: the private side's directory; when null ROWS.custodian beside one's own
            private rows, RUN_DIR.custodian for published data sets. One budget per directory.
        ledger: place of the data set's ledger: a file in custodian_dir when null, or a PostgreSQL
            server, postgresql://ROLE@HOST:PORT/DATABASE?schema=NAME, without a password (PGPASSWORD
            or ~/.pgpass).
        anchor: a file away from the custodian's directory, or a schema of a PostgreSQL server (an
            address like a ledger's), that lets one copy of the ledger continue and refuses all
            others; none when null.
        scale: where the private rows are stored and searched.
    """

    data: DataConfig
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    mechanism: AnyMechanism = field(default_factory=PrivateKnn)
    caps: CapsConfig = field(default_factory=CapsConfig)
    rounds: list[RoundConfig]
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    teacher: str | list[str] | None = None
    custodian_dir: str | None = None
    ledger: str | None = None
    anchor: str | None = None
    scale: ScaleConfig = field(default_factory=ScaleConfig)

    def __post_init__(self) -> None:
        for mechanism in self.schedule.mechanisms():
            if self.scale.shards:
                mechanism.require_sharded()
        self.evaluate.require_two(self.data.labels, self.data.classes)
        if self.budget.periods > 1 and self.scale.shards:
            raise InvalidInput("budget.periods", "1 with scale.shards", self.budget.periods)
        if self.privacy.unit == "person" and self.teacher is None:  # else the rows are others'
            self._require_persons()
        _ = self.ledger_url, self.anchor_place  # raise InvalidInput

    def _require_persons(self) -> None:
        where = SOURCES[self.data.source].persons
        if where is None:
            rule = f"row for the source {self.data.source!r}"
            raise InvalidInput("privacy.unit", rule, self.privacy.unit)
        if where == "setting" and not self.data.person:
            raise InvalidInput.missing("data.person", "privacy.unit is person")
        if where != "setting" and self.data.person:
            raise InvalidInput.needless("data.person", "arrays have persons in private_person")

    @property
    def schedule(self) -> Schedule:
        """What is asked and paid for. Raises InvalidInput."""
        return Schedule(
            budget=self.budget,
            privacy=self.privacy,
            mechanism=self.mechanism,
            caps=self.caps,
            rounds=self.rounds,
            evaluate=self.evaluate,
            labels=self.data.labels,
            custodians=len(self.teacher) if isinstance(self.teacher, list) else 1,
        )

    @property
    def open(self) -> bool:
        return self.schedule.open

    def plan(self) -> Plan:
        """What a ledger fixes before the first release."""
        return solved(self.schedule).plan()

    @property
    def directory(self) -> Path | None:
        """The custodian's directory, where the settings name it."""
        return None if self.custodian_dir is None else Path(self.custodian_dir)

    @property
    def ledger_url(self) -> LedgerUrl | None:
        """None: a file of the directory."""
        return None if self.ledger is None else LedgerUrl.parse(self.ledger)

    @property
    def anchor_place(self) -> Path | LedgerUrl | None:
        if self.anchor is None:
            return None
        return LedgerUrl.parse(self.anchor, "anchor") if "://" in self.anchor else Path(self.anchor)
