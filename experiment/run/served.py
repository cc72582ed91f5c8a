"""A configuration that takes its budget, mechanism, score and features from services."""

from contextlib import closing
from dataclasses import replace

from ...student.public_settings import ServedFeatures
from ...teacher.accounting.plan import Plan
from ...teacher.custody.groups import (
    BudgetConfig,
    CapsConfig,
    EvaluateConfig,
    PrivacyConfig,
    RoundConfig,
)
from ...teacher.mechanisms.base import Charging, Mechanism
from ...teacher.mechanisms.registry import from_slot
from ...wall.client import RETRIED, RemoteTeacher
from ...wall.console import Console
from ...wall.datasets.texts import model_name
from ...wall.errors import InvalidInput, LabelwallError, LedgerMismatch, Refused
from ...wall.questions import MatrixForm
from ..config.config import Config
from ..config.settings import may_become
from ..config.tuning import SCORE
from .teachers import budget_of, keys_of


def service_plan(teacher: str | list[str] | None) -> tuple[Plan, ServedFeatures]:
    """The plan of the first service that answers, and what its custodian's configuration asks
    with. Raises Refused, InvalidInput without keys.
    """
    down = LabelwallError("no service answers.")
    for url, key in keys_of(teacher).items():
        with closing(RemoteTeacher(url, key, say=Console().say)) as remote:
            try:
                budget = remote.budget(budget_of)
                return budget["plan"], budget["features"]
            except Refused as error:
                if error.code not in (*RETRIED, "no_service"):
                    raise
                down = error
    raise down


def served(config: Config, plan: Plan, offered: ServedFeatures) -> Config:
    """An open configuration with the budget, mechanism and score of services' ``plan``, as many
    rounds as it pays for, and the ``offered`` features unless it names others.

    Raises InvalidInput for a plan that costs more than the configuration says, for texts that
    another model reads than the custodian's, for weights that only the custodian has, or where only
    the configuration can say what is asked; LedgerMismatch for a plan of several mechanisms.
    """
    if plan.epsilon > config.budget.epsilon:
        rule = f"at least {plan.epsilon:g}, as the service's plan costs"
        raise InvalidInput("budget.epsilon", rule, config.budget.epsilon)
    if model_name(config.data.text_features) != offered.text_features:
        rule = f"{offered.text_features}, or its folder, as the service's configuration has"
        raise InvalidInput("data.text_features", rule, config.data.text_features)
    slots = plan.up_to(1).slots
    mechanism, *others = map(from_slot, slots)
    if not may_become(config.mechanism, mechanism):
        raise InvalidInput.needless("mechanism", f"the service's plan uses {mechanism.kind}")
    score = others.pop() if others and others[-1].scores else None
    if others:
        raise LedgerMismatch("the service has several mechanisms. Ask for its configuration.")
    releases, evaluate = slots[0].releases, EvaluateConfig()
    if score is not None:
        evaluate = EvaluateConfig(
            share=SCORE,
            choose=slots[-1].releases[0].cap > 1,
            sigma=score.require("sigma"),
            thresholds=vars(score).get("thresholds", 0),
        )
    if mechanism.once_a_round:
        count = releases[0].cap // mechanism.charges_a_round
        config = replace(config, rounds=[RoundConfig()] * count)
    caps, rounds = CapsConfig(), config.rounds
    if mechanism.charging is not Charging.PREPAID:  # whose price does not count queries
        caps, rounds = split_rounds(config, mechanism, releases[0].cap, releases[-1].cap)
    if config.features in ("auto", offered.features):
        if offered.weights and config.weights is None:
            why = f"--features {offered.features} needs the custodian's file {offered.weights}"
            raise InvalidInput.missing("weights", why)
        config = replace(
            config,
            features=offered.features,
            box=offered.box,
            whiten=config.whiten or offered.whiten,
            by_count=offered.by_count,
        )
    return replace(
        config,
        data=replace(config.data, white=config.data.white or offered.white),
        budget=BudgetConfig(
            epsilon=plan.epsilon, delta=plan.delta, periods=plan.periods, reserve=_reserve(plan)
        ),
        privacy=PrivacyConfig(unit=plan.unit),
        mechanism=mechanism,
        caps=caps,
        rounds=rounds,
        evaluate=evaluate,
    )


def _reserve(plan: Plan) -> float | None:
    """The updates' share of the budget, which noise tells to about three digits; None where all
    periods have as much.
    """
    later = plan.periods - 1
    forms = (
        from_slot(plan.slots[period * len(plan.slots) // plan.periods]).query_form
        for period in (0, later)
    )
    first, last = (form.deviation if isinstance(form, MatrixForm) else 1.0 for form in forms)
    return round(later / ((last / first) ** 2 + later), 3) if first != last else None


def split_rounds(
    config: Config, mechanism: Mechanism, asked: int, answered: int
) -> tuple[CapsConfig, list[RoundConfig]]:
    """What all rounds ask by one mechanism."""
    count, rounds = len(config.rounds), [RoundConfig(queries=r.queries) for r in config.rounds]
    if mechanism.once_a_round:
        return CapsConfig(), rounds
    prepaid = mechanism.charging is Charging.PREPAID  # and answers whatever is asked
    # The first rounds ask one query more where not all can ask as many
    rounds = [RoundConfig(queries=(asked + count - 1 - n) // count) for n in range(count)]
    return CapsConfig(asked=asked, answered=None if prepaid else answered), rounds
