"""Groups of settings: the budget, what it protects, its rounds, caps and score."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from ...wall.computing import Count
from ...wall.errors import InvalidInput
from ...wall.matrices import MAX_ENTRY
from ..mechanisms.registry import AnyMechanism

MAX_PERIODS = 366


@dataclass(frozen=True)
class BudgetConfig:
    """The guarantee that the whole run may spend.

    Args:
        epsilon: cap on the certified epsilon (dimensionless, natural logarithm).
        delta: failure probability; fix it without looking at the number of private rows.
        periods: parts of it, a count: one for the records as they are first, and one for each later
            `labelwall update` of them.
        reserve: share of it (of its Renyi divergence) that all updates have together; null: equal
            parts.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    periods: Annotated[int, Field(ge=1, le=MAX_PERIODS)] = 1
    reserve: Annotated[float, Field(gt=0, lt=1)] | None = None

    def __post_init__(self) -> None:
        if self.reserve is not None and self.periods == 1:
            why = "it is the share of later periods, and `budget.periods` is 1"
            raise InvalidInput.needless("budget.reserve", why)

    @property
    def first(self) -> float:
        """Share of the first period."""
        return 1 / self.periods if self.reserve is None else 1 - self.reserve

    @property
    def later_noise(self) -> float:
        """Noise of a later period's sums over that of the first one's."""
        reserve = self.reserve
        return math.sqrt((1 - reserve) * (self.periods - 1) / reserve) if reserve else 1.0


@dataclass(frozen=True)
class PrivacyConfig:
    """What the guarantee protects.

    Args:
        unit: row (a record is one row) or person (a record is all rows of a person, who is named by
            data.person or private_person).
    """

    unit: Literal["row", "person"] = "row"


@dataclass(frozen=True)
class CapsConfig:
    """The most releases that the plan pays for, over all rounds that share them.

    Args:
        asked: queries screened, a count; the rounds' total when null. For ind_knn no cap: the
            queries that its noise is planned for. A query is a round's histogram for reverse_knn,
            a step for private_linear, a round's batch for radius and batch_knn.
        answered: queries answered with a label after screening, a count; as asked when null.
    """

    asked: Count | None = None
    answered: Count | None = None


@dataclass(frozen=True)
class EvaluateConfig:
    """A private score: how many private records the result predicts right, with noise, by class or
    attribute; of values the mean squared error.

    Args:
        share: share of the budget that pays for it (of its Renyi divergence); 0: no score.
        choose: whether it chooses the result among the students of all rounds and the classifiers
            that noisy sums leave, each of which is scored, and paid for; else the result alone is
            scored.
        sigma: scale of the noise on every count (records); null: what the budget asks for.
        thresholds: counts are of a 2 x 2 table at each of so many public thresholds of the model's
            probability, 0.5 among them, for AUROC, sensitivity and specificity; of two classes, or
            attribute by attribute. 0: of right and wrong answers.
    """

    share: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    choose: bool = False
    sigma: Annotated[float, Field(gt=0)] | None = None
    thresholds: Annotated[int, Field(ge=0, le=MAX_ENTRY)] = 0

    def __post_init__(self) -> None:
        if self.thresholds and not self.share:
            raise InvalidInput("evaluate.thresholds", "0 without evaluate.share", self.thresholds)

    def require_two(self, kind: str, names: Sequence[str]) -> None:
        """Raise InvalidInput for thresholds of more than two classes, or of values.

        ``kind``: of the labels; ``names``: of the classes, as far as they are known.
        """
        if self.thresholds and (kind == "value" or (kind == "class" and len(names) > 2)):
            rule = "0 for values and for more than two classes, which have no 2 x 2 tables"
            raise InvalidInput("evaluate.thresholds", rule, self.thresholds)


@dataclass(frozen=True)
class RoundConfig:
    """One round: ask, train, send features back.

    Args:
        queries: public inputs asked in this round, a count. reverse_knn and private_linear ask all
            of them when null: their price does not depend on the count.
        mechanism: this round's own mechanism; the run's when null.
        caps: caps of the round's own mechanism.
    """

    queries: Count | None = None
    mechanism: AnyMechanism | None = None
    caps: CapsConfig = field(default_factory=CapsConfig)

    def __post_init__(self) -> None:
        if self.mechanism is None and self.caps != CapsConfig():
            why = "only a round with a mechanism of its own has caps of its own"
            raise InvalidInput.needless("rounds.caps", why)
