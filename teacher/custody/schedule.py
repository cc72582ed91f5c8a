"""The schedule: which slot of the plan pays for which round, and at what price.

It is pure: it reads no file, and solves for no number (solver.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ...wall.errors import InvalidInput
from ...wall.questions import CellsForm, LabelKind, Round, Scoring
from ..accounting.plan import Plan
from ..mechanisms.base import Charging, Priced
from ..mechanisms.fields import params
from ..mechanisms.registry import MECHANISMS, AnyMechanism
from .groups import BudgetConfig, CapsConfig, EvaluateConfig, PrivacyConfig, RoundConfig

MOST_ROUNDS = 1_000
SCORES = {
    (kind.label_space, "thresholds" in params(kind)): kind
    for kind in MECHANISMS.values()
    if kind.scores
}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Rounds and a private score, over the periods of a budget.

    ``labels``: what a row has. ``custodians``: how many are asked, each by a ledger of its own.
    The other fields are settings of the same names (settings.py). Numbers that the budget decides
    may be missing; ``plan`` needs them.
    """

    budget: BudgetConfig
    privacy: PrivacyConfig
    mechanism: AnyMechanism
    caps: CapsConfig
    rounds: list[RoundConfig]
    evaluate: EvaluateConfig
    labels: LabelKind
    custodians: int = 1

    def __post_init__(self) -> None:
        """Raise InvalidInput for rounds that can not be asked, or caps that a mechanism lacks."""
        self.evaluate.require_two(self.labels, ())
        if not 0 < len(self.rounds) <= MOST_ROUNDS:
            rule = f"a list of at least one round, and at most {MOST_ROUNDS:,}"
            raise InvalidInput("rounds", rule, f"{len(self.rounds)}")
        for number, entry in enumerate(self.rounds, start=1):
            mechanism = self.mechanism_of(number)
            if entry.queries is None and not mechanism.once_a_round:
                rule, cure = "a count for this mechanism, at least 1", "--rounds '[{queries: 300}]'"
                raise InvalidInput("rounds.queries", rule, None, f"As in {cure}.")
            if mechanism.open:
                continue
            if mechanism.label_space != self.labels or mechanism.scores:
                answering = (k for k in MECHANISMS.values() if not k.scores)
                kinds = [str(kind.kind) for kind in answering if kind.label_space == self.labels]
                rule = f"one of {', '.join(kinds)} for data.labels: {self.labels}"
                raise InvalidInput("mechanism.kind", rule, mechanism.kind)
            mechanism.require_unit(self.privacy.unit)
        if self.budget.periods > 1:
            self._require_updates()
        if self.open:
            self._check_open()
        Plan(self.budget.epsilon, self.budget.delta, ())  # the budget's own rules
        self.priced()  # caps that the mechanisms have

    def _require_updates(self) -> None:
        kinds = [m.kind for m in self.mechanisms() if not (m.updated or m.open)]
        if kinds:
            able = [str(m.kind) for m in MECHANISMS.values() if m.updated and not m.scores]
            rule = f"1 for {kinds[0]}; with more {' or '.join(able)}"
            raise InvalidInput("budget.periods", rule, self.budget.periods)

    def _check_open(self) -> None:
        own = [r.mechanism.kind for r in self.rounds if r.mechanism is not None]
        if own:
            why = f"`mechanism.kind: {self.mechanism.kind}` chooses one for all rounds"
            raise InvalidInput.needless("rounds.mechanism", why)
        if self.caps != CapsConfig():
            why = f"`mechanism.kind: {self.mechanism.kind}` chooses them"
            raise InvalidInput.needless("caps", why)

    @property
    def open(self) -> bool:
        """Whether the mechanism is still to be chosen (experiment/plan/search.py)."""
        return any(mechanism.open for mechanism in self.mechanisms())

    @property
    def scored(self) -> bool:
        """Whether the last slot of a period pays for a private score."""
        return self.evaluate.share > 0

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
        """The rounds that each slot pays for."""
        shared = [r for r in self.rounds if r.mechanism is None]
        own = [[r] for r in self.rounds if r.mechanism is not None]
        return [shared, *own] if shared else own

    def mechanisms(self) -> list[AnyMechanism]:
        """The mechanism of each slot of a period, in order, as it is given."""
        asking = [rounds[0].mechanism or self.mechanism for rounds in self._paid()]
        if not self.scored:
            return asking
        given: dict[str, Any] = {"sigma": self.evaluate.sigma}
        if self.evaluate.thresholds:
            given["thresholds"] = self.evaluate.thresholds
        return [*asking, SCORES[self.labels, "thresholds" in given](**given)]

    def with_mechanisms(self, mechanisms: Sequence[AnyMechanism]) -> Self:
        """The schedule with other ``mechanisms`` of its slots."""
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

    def plan(self) -> Plan:
        """The releases with caps that a ledger fixes before the first. Raises InvalidInput where a
        number is missing.
        """
        budget = self.budget
        periods = zip(*(entry.periods() for entry in self.priced()), strict=True)
        slots = tuple(slot for period in periods for slot in period)
        return Plan(budget.epsilon, budget.delta, slots, self.privacy.unit, budget.periods)

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
        if self.evaluate.choose:
            asked = (self.mechanism_of(number + 1) for number in range(len(self.rounds)))
            models = sum(2 if mechanism.leaves_classifier else 1 for mechanism in asked)
        rest = [replace(entry, share=entry.share * (1 - share)) for entry in priced]
        return [*rest, Priced(mechanism=score, asked=models, answered=models, share=share)]

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
            raise InvalidInput.needless("caps.answered", f"{mechanism.kind} answers every query")
        share = len(rounds) / len(self.rounds)
        answered = min(asked, answered)
        return Priced(mechanism=mechanism, asked=asked, answered=answered, share=share)

    def asked_rounds(self, seed: int) -> list[Round]:
        """The rounds of all periods as the public side asks them.

        ``seed``: of public randomness.
        """
        rounds, size, periods = list[Round](), len(self.mechanisms()), self.budget.periods
        for position in range(periods * len(self.rounds)):
            (period, within), number = divmod(position, len(self.rounds)), position + 1
            mechanism = self.mechanism_of(number)
            if period:
                mechanism = mechanism.noisier(self.budget.later_noise)
            form = mechanism.query_form.summed(self.custodians)
            planned = Round(
                number=number,
                slot=period * size + self.slots()[within],
                queries=self.rounds[within].queries,
                once=mechanism.once_a_round,
                form=form,
                seed=seed * 1000 + number,
                as_before=within > 0 and form == rounds[-1].form,
                period=period + 1,
                periods=periods,
            )
            rounds.append(planned)
        return rounds

    def asked_score(self, period: int = 1) -> Scoring | None:
        """What a period's private score is asked by; None without one."""
        if not self.scored:
            return None
        mechanisms = self.mechanisms()
        score = mechanisms[-1].for_unit(self.privacy.unit)
        if period > 1:
            score = score.noisier(self.budget.later_noise)
        form, slot = score.query_form.summed(self.custodians), period * len(mechanisms) - 1
        assert isinstance(form, CellsForm)
        return Scoring(slot=slot, form=form, choose=self.evaluate.choose)
