"""The contract of a mechanism: declarations, price and draw."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np

from ...wall.errors import InvalidInput
from ...wall.guarantee import Unit
from ...wall.messages import ABSTAINED, Outcome, Value
from ...wall.questions import LabelKind, QueryForm, RowForm
from ..accounting.plan import Release, Slot
from .fields import check, params

if TYPE_CHECKING:
    from ..noise.entropy import Entropy
    from .voters import Keys, Voters


class Charging(Enum):
    """How answers are paid for (teacher/charging.py)."""

    PER_QUERY = "by the query"  # each release of a query is charged before it is drawn
    PER_BATCH = "by the batch"  # one charge for all queries of a call, which is never split
    PREPAID = "in advance"  # one charge for all answers ever; every record has a budget (ind_knn)


@dataclass(frozen=True)
class Mechanism(metaclass=ABCMeta):
    """A frozen dataclass of publishable fields (fields.py), and ``kind``, a Literal with a default.

    The fields are fixed without looking at private rows. The randomness (``draw``) and the privacy
    curve (``releases``) come from the same fields.

    Class attributes:
        label_space: what a row has: a class, attributes or a value (wall/label_kinds.py).
        charging: how answers are paid for.
        open: whether it only stands for one that is still to be chosen (registry.py).
        of_persons: values of fields that are null, if the unit of privacy is a person.
        persons: whether its price holds for all rows of a person together (docs/privacy.md,
            section 22).
        updated: whether a plan may keep parts for later periods, with other records (section 21).
        scores: whether it is a private score of a public model, and answers nothing.
        rehearsed: whether rehearsals on public rows can find its settings.
        limit: the field that no count of votes exceeds, if there is one.
        leaves_classifier: whether its sums leave a classifier beside the student.
    """

    label_space: ClassVar[LabelKind] = "class"
    charging: ClassVar[Charging] = Charging.PER_QUERY
    open: ClassVar[bool] = False
    of_persons: ClassVar[Mapping[str, int]] = {}
    persons: ClassVar[bool] = False
    updated: ClassVar[bool] = False
    scores: ClassVar[bool] = False
    leaves_classifier: ClassVar[bool] = False
    rehearsed: ClassVar[bool] = False
    limit: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Raise InvalidInput for a field out of its range; kinds add rules between fields."""
        check(self)

    @property
    @abstractmethod
    def kind(self) -> str:
        """The name of the mechanism, in settings, ledgers and reports."""

    @property
    @abstractmethod
    def stages(self) -> tuple[str, ...]:
        """Names of the releases of one query, in order; each is charged before it is drawn."""

    @property
    def query_form(self) -> QueryForm:
        """The form of a query: a row, or a matrix of a kind."""
        return RowForm()

    @property
    def once_a_round(self) -> bool:
        """Whether a round's price does not depend on how many rows it asks."""
        return self.query_form.matrix is not None or self.charging is Charging.PER_BATCH

    @property
    def charges_a_round(self) -> int:
        """Number of charges of a round, if ``once_a_round``."""
        return 1

    @property
    def needs(self) -> tuple[tuple[Literal["linear", "cnn"], int], ...]:
        """(kind, number) of PATE's classifiers, linear on features or cnn on images, each of which
        is trained on its own shard.
        """
        return ()

    @property
    def screened(self) -> bool:
        """Whether a noisy screening decides which queries are answered."""
        return False

    @property
    def passed_by_noise(self) -> float | None:
        """The probability with which a query passes the screening if no record votes on it; None
        where there is no screening, or classifiers vote.
        """
        return None

    @property
    def noise_of_neighbours(self) -> float | None:
        """The deviation of the number of neighbours that its first stage releases; None where it
        releases none.
        """
        return None

    def sized_for(self, records: int, classes: int, rows: int, votes: int | None) -> Self:
        """With the settings that follow from a PUBLIC guess of the number of ``records``, and from
        the numbers of classes and of public ``rows``. ``votes``: ``limit``, where it is given.
        """
        return self

    @property
    def max_votes(self) -> int:
        """The largest number of votes on a query, public: the value of ``limit``."""
        return int(vars(self)[self.limit])

    @property
    def reuses(self) -> bool:
        """Whether answers, which were paid for, vote on later queries at no cost."""
        return bool(vars(self).get("reuse", False))

    @property
    def rate(self) -> float:
        """The probability with which a record is sampled for a release; 1 if all may vote."""
        return float(vars(self).get("sample_rate", 1.0))

    def require_sharded(self) -> None:
        """Raise InvalidInput for networks: no process has the images of all shards."""
        if any(kind == "cnn" for kind, _ in self.needs):
            rule = "0 for PATE's networks (mechanism.classifier: cnn)"
            raise InvalidInput("scale.shards", rule, self.kind)

    def require_unit(self, unit: Unit) -> None:
        """Raise InvalidInput if the price does not hold for the unit of privacy."""
        if unit != "row" and not self.persons:
            raise InvalidInput("privacy.unit", f"row for {self.kind}", unit)

    def for_unit(self, unit: Unit) -> Self:
        """Fill in the null fields that the unit of privacy decides."""
        null = [name for name in self.of_persons if vars(self)[name] is None]
        return replace(self, **{n: self.of_persons[n] for n in null}) if unit == "person" else self

    def require_batch(self, queries: int, dimensions: int) -> None:
        """Raise InvalidInput, before anything is charged, for a batch that can not be answered."""
        return

    def fields(self) -> dict[str, object]:
        """The publishable fields, as a ledger records them."""
        return asdict(self)

    @property
    def calibrated(self) -> tuple[str, ...]:
        """The fields that the budget decides if they are null (calibration.py)."""
        return tuple(name for name, setting in params(type(self)).items() if setting.calibrated)

    @property
    def uncalibrated(self) -> tuple[str, ...]:
        """Fields of ``calibrated`` that are null, and that the releases need."""
        return tuple(name for name in self.calibrated if vars(self)[name] is None)

    def with_noise(self, level: float, asked: int) -> Self:
        """Fill in the ``uncalibrated`` fields for one noise level; given ones stay.

        ``level``: dimensionless and positive, the noise of a release over its sensitivity: its L2
        sensitivity for Gaussian noise, 1 / epsilon for pure DP. The price never grows with it.
        ``asked``: queries of the plan, a count.
        """
        return self

    def noisier(self, factor: float) -> Self:
        """Multiply the noise, as later periods of a plan may have it (``updated``)."""
        return self

    def with_values(self, **values: float) -> Self:
        """Fill in the ``uncalibrated`` fields from ``values``, none above the field's range."""
        highest = {name: params(type(self))[name].le for name in self.uncalibrated}
        return replace(self, **{n: min(values[n], le or values[n]) for n, le in highest.items()})

    def recorded(self, fields: Mapping[str, object], unit: Unit = "row") -> Self:
        """Fill in the null numbers that the budget or the unit decides from a ledger's record."""
        if fields.get("kind") != self.kind:
            return self
        names = (*self.calibrated, *(self.of_persons if unit != "row" else ()))
        values = {name: fields.get(name) for name in names if vars(self)[name] is None}
        return replace(self, **{n: v for n, v in values.items() if isinstance(v, int | float)})

    def require(self, name: str) -> float:
        """A calibrated field. Raises InvalidInput if it is null: calibration fills it in."""
        value: float | None = vars(self)[name]
        if value is None:
            raise InvalidInput.missing(f"mechanism.{name}", "it is not solved from the budget yet")
        return value

    @abstractmethod
    def releases(self, asked: int, answered: int) -> tuple[Release, ...]:
        """The price: what at most ``asked`` queries with at most ``answered`` labels release.

        Raises InvalidInput where a field is missing that ``with_noise`` fills in.
        """

    def tally(self, voters: Voters) -> np.ndarray | None:
        """Counts of the records for the draws of all stages: int64 [n_queries, m].

        None if the index keeps them. No draw decides them, so they are computed before a charge.
        They are private: never stored nor sent.
        """
        return None

    def draw(self, stage: str, voters: Voters, keys: Keys, entropy: Entropy) -> np.ndarray:
        """Released values of one stage: int64 [n_queries], or [n_queries, m] for lists.

        ``voters``: the records and the queries; ``keys``: the queries' identities, charged for
        this stage already.
        """
        raise NotImplementedError

    def next_stage(self, results: Mapping[str, Value]) -> str | None:
        """The release a query still needs, given what it has; None when it is settled."""
        return next((stage for stage in self.stages if stage not in results), None)

    def outcome(self, results: Mapping[str, Value]) -> tuple[Outcome, Value]:
        """(outcome, label) of a settled query; a list if rows have attributes."""
        value = results.get(self.stages[-1])
        if value is None:
            return Outcome.ABSTAINED, ABSTAINED
        return Outcome.ANSWERED, self.label(value)

    def label(self, value: Any) -> Value:
        """The label that a value of the last stage means: post-processing."""
        return value  # type: ignore[no-any-return]

    def clique(self, results: Sequence[Mapping[str, Value]]) -> int:
        """The largest number of a batch's answers that one record can change; 0 for no batch."""
        return 0


M = TypeVar("M", bound=Mechanism)


@dataclass(frozen=True)
class Priced(Generic[M]):
    """A mechanism of a plan, and the counts of queries and answers that its slot pays for.

    ``share``: part of the budget, relative to other mechanisms that miss numbers. ``later``: number
    of further periods, which ask as much. ``factor``: multiplies the noise of those.
    """

    mechanism: M
    asked: int
    answered: int
    share: float = 1.0
    later: int = 0
    factor: float = 1.0

    def slot(self) -> Slot:
        """The plan's slot. Raises InvalidInput if a number is missing."""
        return Slot(self.mechanism.fields(), self.mechanism.releases(self.asked, self.answered))

    def periods(self) -> tuple[Slot, ...]:
        """The slots of all periods."""
        noisier = replace(self, mechanism=self.mechanism.noisier(self.factor))
        return self.slot(), *[noisier.slot()] * self.later
