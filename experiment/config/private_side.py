"""The private side's settings: where the rows are, and what may be spent on what.

A plan and its noise follow from them alone. Loads without torch, so that `plan` answers at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from ...teacher.accounting.plan import Plan
from ...teacher.ledger.url import LedgerUrl
from ...teacher.mechanisms.base import Charging, Priced
from ...teacher.mechanisms.registry import MECHANISMS, AnyMechanism
from ...teacher.mechanisms.sums import LinearSums, Score, ScoreAttributes, ScoreValue
from ...teacher.mechanisms.votes import PrivateKnn
from ...teacher.shards.config import ScaleConfig
from ...wall.computing import Computing
from ...wall.datasets.config import SOURCES, DataConfig
from ...wall.errors import InvalidInput
from ...wall.progress import Progress, no_progress
from ...wall.questions import CellsForm, Round, Scoring
from .groups import BudgetConfig, CapsConfig, EvaluateConfig, PrivacyConfig, RoundConfig

MOST_ROUNDS = 1_000
SCORES = {known.label_space: known for known in (Score, ScoreAttributes, ScoreValue)}


@dataclass(frozen=True, kw_only=True)
class PrivateSide(Computing):
    """What a teacher, and the custodian's directory, need.

    Args:
        data: where private, public and test rows come from.
        budget: (epsilon, delta) for the whole run.
        privacy: what they hold for: rows, or persons with several rows.
        mechanism: the private mechanism of the rounds that name none.
        caps: caps of that mechanism, over those rounds.
        rounds: the rounds, in order.
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
        if not 0 < len(self.rounds) <= MOST_ROUNDS:
            rule = f"a list of at least one round, and at most {MOST_ROUNDS:,}"
            raise InvalidInput("rounds", rule, f"{len(self.rounds)}")
        labels, unit = self.data.labels, self.privacy.unit
        for number, entry in enumerate(self.rounds, start=1):
            mechanism = self.mechanism_of(number)
            if entry.queries is None and not mechanism.once_a_round:
                raise InvalidInput("rounds.queries", "a count for this mechanism, at least 1", None)
            scores = isinstance(mechanism, Score)
            if not mechanism.open and (mechanism.label_space != labels or scores):
                fit = (known for known in MECHANISMS.values() if not issubclass(known, Score))
                kinds = [str(known.kind) for known in fit if known.label_space == labels]
                rule = f"one of {', '.join(kinds)} for data.labels: {labels}"
                raise InvalidInput("mechanism.kind", rule, mechanism.kind)
            if not mechanism.open:
                mechanism.require_unit(unit)
            if self.scale.shards:
                mechanism.require_sharded()
        if self.budget.periods > 1:
            self._require_updates()
        if unit == "person":
            self._require_persons()
        if self.open:
            self._check_open()
        _ = self.ledger_url, self.anchor_place  # raise InvalidInput
        Plan(self.budget.epsilon, self.budget.delta, ())  # the budget's own rules
        self.priced()  # caps that the mechanisms have

    def _require_updates(self) -> None:
        able = [kind for kind, known in MECHANISMS.items() if known.updated and known is not Score]
        kinds = [m.kind for m in self.mechanisms() if not (m.updated or m.open)]
        if kinds:
            rule = f"1 for {kinds[0]}; with more {' or '.join(able)}"
            raise InvalidInput("budget.periods", rule, self.budget.periods)
        if self.scale.shards:
            raise InvalidInput("budget.periods", "1 with scale.shards", self.budget.periods)

    def _require_persons(self) -> None:
        where = SOURCES[self.data.source].persons
        if where is None:
            rule = f"row for the source {self.data.source!r}"
            raise InvalidInput("privacy.unit", rule, self.privacy.unit)
        if (where == "setting") != bool(self.data.person):
            rule = "given with privacy.unit: person" if where == "setting" else "empty for arrays"
            raise InvalidInput("data.person", rule, self.data.person)

    def _check_open(self) -> None:
        own = [r.mechanism.kind for r in self.rounds if r.mechanism is not None]
        if own:
            rule = f"left out, with mechanism.kind: {self.mechanism.kind} for all rounds"
            raise InvalidInput("rounds.mechanism", rule, own)
        if self.caps != CapsConfig():
            rule = f"left out with {self.mechanism.kind}, which chooses them"
            raise InvalidInput("caps", rule, self.caps)

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
        if self.anchor is None or "://" not in self.anchor:
            return None if self.anchor is None else Path(self.anchor)
        return LedgerUrl.parse(self.anchor, "anchor")

    @property
    def open(self) -> bool:
        """Whether the mechanism is still to be chosen (experiment/plan/search.py)."""
        return any(mechanism.open for mechanism in self.mechanisms())

    def mechanism_of(self, number: int) -> AnyMechanism:
        """The mechanism of round ``number``, counted from 1 over all periods, for the unit of
        privacy.
        """
        mechanism = self.rounds[(number - 1) % len(self.rounds)].mechanism or self.mechanism
        return mechanism.for_unit(self.privacy.unit)

    def slots(self) -> list[int]:
        """The plan's slot that pays for each round: first that of the shared mechanism, then one
        for each round with its own.
        """
        own = [r.mechanism is not None for r in self.rounds]
        first_own = 0 if all(own) else 1
        return [first_own + sum(own[:position]) if mine else 0 for position, mine in enumerate(own)]

    def _paid(self) -> list[list[RoundConfig]]:
        shared = [r for r in self.rounds if r.mechanism is None]
        own = [[r] for r in self.rounds if r.mechanism is not None]
        return [shared, *own] if shared else own

    def mechanisms(self) -> list[AnyMechanism]:
        """The mechanism of each slot of the plan, in order, as it is given."""
        asking = [rounds[0].mechanism or self.mechanism for rounds in self._paid()]
        score = SCORES[self.data.labels](sigma=self.evaluate.sigma)
        return [*asking, score] if self.scored else asking

    @property
    def scored(self) -> bool:
        """Whether the last slot of the plan pays for a private score."""
        return self.evaluate.share > 0

    def plan(self) -> Plan:
        """The releases with caps that the ledger fixes before the first; with noise ``solved``."""
        budget, priced = self.budget, self.solved().priced()
        periods = zip(*(entry.periods() for entry in priced), strict=True)
        slots = tuple(slot for period in periods for slot in period)
        return Plan(budget.epsilon, budget.delta, slots, self.privacy.unit, budget.periods)

    def plan_beside(self, known: Plan) -> Plan:
        """The plan, with those numbers, or the method, of a ledger's that are left open here."""
        budget, unit = self.budget, self.privacy.unit
        if self.open:
            slots = known.slots if known.periods == budget.periods else ()
            return Plan(budget.epsilon, budget.delta, slots, unit, budget.periods)
        return self.recorded(known).plan()

    def solved(self, progress: Progress = no_progress) -> Self:
        """With every number that the budget decides, which may take a minute."""
        priced = self.priced()
        if not any(entry.mechanism.uncalibrated for entry in priced):
            return self
        from ...teacher.mechanisms.calibration import calibrate  # the import takes a second

        epsilon, delta = self.budget.epsilon, self.budget.delta
        return self.with_mechanisms(calibrate(priced, epsilon, delta, progress))

    def recorded(self, known: Plan) -> Self:
        """With the missing numbers that a ledger's plan has for the same mechanisms.

        Another version may solve otherwise; what was fixed before the first release stays.
        """
        own, unit, periods = self.mechanisms(), self.privacy.unit, self.budget.periods
        if (len(known.slots), known.periods) != (len(own) * periods, periods):
            return self
        pairs = zip(own, known.up_to(1).slots, strict=True)
        return self.with_mechanisms([m.recorded(slot.mechanism, unit) for m, slot in pairs])

    def asked_rounds(self, seed: int) -> list[Round]:
        """The rounds of all periods as the public side asks them, with the noise that the budget
        decides.

        ``seed``: of public randomness.
        """
        solved, rounds, size = self.solved(), list[Round](), len(self.mechanisms())
        periods = self.budget.periods
        for place in range(periods * len(self.rounds)):
            (period, within), number = divmod(place, len(self.rounds)), place + 1
            mechanism, entry = solved.mechanism_of(number), self.rounds[within]
            if period:
                mechanism = mechanism.noisier(self.budget.later_noise)
            once, form = mechanism.once_a_round, mechanism.query_form.summed(self.custodians)
            paid, drawn = period * size + self.slots()[within], seed * 1000 + number
            asked = Round(
                number=number,
                slot=paid,
                queries=entry.queries,
                once=once,
                form=form,
                seed=drawn,
                as_before=within > 0 and form == rounds[-1].form,
                period=period + 1,
                periods=periods,
            )
            rounds.append(asked)
        return rounds

    @property
    def custodians(self) -> int:
        """How many are asked."""
        return len(self.teacher) if isinstance(self.teacher, list) else 1

    def asked_score(self, period: int = 1) -> Scoring | None:
        """What a period's private score is asked by; None without one."""
        if not self.scored:
            return None
        mechanisms = self.solved().mechanisms()
        score = mechanisms[-1].for_unit(self.privacy.unit)
        if period > 1:
            score = score.noisier(self.budget.later_noise)
        form, slot = score.query_form.summed(self.custodians), period * len(mechanisms) - 1
        assert isinstance(form, CellsForm)
        return Scoring(slot=slot, form=form, choose=self.evaluate.choose)

    def with_mechanisms(self, mechanisms: Sequence[AnyMechanism]) -> Self:
        rounds = [
            r if r.mechanism is None else replace(r, mechanism=mechanisms[slot])
            for r, slot in zip(self.rounds, self.slots(), strict=True)
        ]
        shared = any(r.mechanism is None for r in self.rounds)
        evaluate = self.evaluate
        if self.scored:
            evaluate = replace(evaluate, sigma=vars(mechanisms[-1])["sigma"])
        mechanism = mechanisms[0] if shared else self.mechanism
        return replace(self, mechanism=mechanism, rounds=rounds, evaluate=evaluate)

    def priced(self) -> list[Priced]:
        """What each slot of the plan pays for. Raises InvalidInput for a cap that it has not."""
        priced = [self._priced(rounds) for rounds in self._paid()]
        if self.scored:
            priced = self._with_score(priced)
        later, factor = self.budget.periods - 1, self.budget.later_noise
        return [replace(entry, later=later, factor=factor) for entry in priced]

    def _with_score(self, priced: Sequence[Priced]) -> list[Priced]:
        score, share = self.mechanisms()[-1].for_unit(self.privacy.unit), self.evaluate.share
        models = 1
        if self.evaluate.choose:  # sums leave a classifier beside the student
            asked = (self.mechanism_of(number + 1) for number in range(len(self.rounds)))
            models = sum(2 if isinstance(mechanism, LinearSums) else 1 for mechanism in asked)
        rest = [replace(entry, share=entry.share * (1 - share)) for entry in priced]
        return [*rest, Priced(score, models, models, share)]

    def _priced(self, rounds: Sequence[RoundConfig]) -> Priced:
        own = rounds[0].mechanism
        mechanism = (own or self.mechanism).for_unit(self.privacy.unit)
        caps = self.caps if own is None else rounds[0].caps
        total = len(rounds) * mechanism.charges_a_round
        if not mechanism.once_a_round:
            total = sum(r.queries or 0 for r in rounds)
        asked = total if caps.asked is None else caps.asked
        answered = asked if caps.answered is None else caps.answered
        if mechanism.charging is Charging.PREPAID and caps.answered is not None:
            rule = f"left out with {mechanism.kind}, which answers every query"
            raise InvalidInput("caps.answered", rule, caps.answered)
        share = len(rounds) / len(self.rounds)
        return Priced(mechanism, asked, min(asked, answered), share)


def solved_numbers(given: PrivateSide, solved: PrivateSide | None = None) -> list[dict[str, float]]:
    """For each slot the numbers that the ``given`` settings leave to the budget."""
    pairs = zip(given.priced(), (solved or given.solved()).priced(), strict=True)
    return [{n: known.mechanism.require(n) for n in e.mechanism.uncalibrated} for e, known in pairs]


def solved_line(solved: Sequence[dict[str, float]]) -> str | None:
    """``solved_numbers`` in one line; None where there are none."""
    slots = [
        ", ".join(f"{name} {value:g}" for name, value in numbers.items())
        + (f" (slot {slot})" if len(solved) > 1 else "")
        for slot, numbers in enumerate(solved)
        if numbers
    ]
    return f"noise from the budget: {'; '.join(slots)}" if slots else None
