"""Groups of settings of a run, each with its own rules, and the rules between groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from ...teacher.mechanisms.registry import MECHANISMS, AnyMechanism
from ...wall.datasets.config import SOURCES, DataConfig
from ...wall.errors import InvalidInput
from ...wall.guarantee import UNITS, Unit

STAGES = "efficientnet_lite0_stages"
FEATURES = ("auto", "hog", "raw", "efficientnet_lite0", STAGES, "box")
TIMM = "timm/"  # with a model's name: further features


@dataclass(frozen=True)
class BudgetConfig:
    """The guarantee that the whole run may spend.

    Args:
        epsilon: cap on the certified epsilon (dimensionless, natural logarithm).
        delta: failure probability; fix it without looking at the number of private rows.
    """

    epsilon: float = 1.0
    delta: float = 1e-5


@dataclass(frozen=True)
class PrivacyConfig:
    """What the guarantee protects.

    Args:
        unit: row (a record is one row) or person (a record is all rows of a person, who is named by
            data.person or private_person).
    """

    unit: Literal["row", "person"] = "row"

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InvalidInput("privacy.unit", " or ".join(UNITS), self.unit)


@dataclass(frozen=True)
class CapsConfig:
    """The most releases that the plan pays for, over all rounds that share them.

    Args:
        asked: queries screened, a count; the rounds' total when null. For ind_knn no cap: the
            queries that its noise is planned for. A query is a round's histogram for reverse_knn,
            a step for private_linear, a round's batch for radius and batch_knn.
        answered: queries answered with a label after screening, a count; as asked when null.
    """

    asked: int | None = None
    answered: int | None = None

    def __post_init__(self) -> None:
        for name in ("asked", "answered"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"caps.{name}", "at least 1", value)


@dataclass(frozen=True)
class RoundConfig:
    """One round: ask, train, send features back.

    Args:
        queries: public inputs asked in this round, a count. reverse_knn and private_linear ask all
            of them when null: their price does not depend on the count.
        mechanism: this round's own mechanism; the run's when null.
        caps: caps of the round's own mechanism.
    """

    queries: int | None = None
    mechanism: AnyMechanism | None = None
    caps: CapsConfig = field(default_factory=CapsConfig)

    def __post_init__(self) -> None:
        if self.queries is not None and self.queries < 1:
            raise InvalidInput("rounds.queries", "at least 1", self.queries)
        if self.mechanism is None and self.caps != CapsConfig():
            raise InvalidInput(
                "rounds.caps", "given together with the round's own mechanism", self.caps
            )


@dataclass(frozen=True)
class FirstFeatures:
    """The settings that say which features the first round asks with; see ``Config``.

    Raises InvalidInput for an unknown name, for weights with anything but a timm model, unless a
    box is given for "box" alone, with low < high, finite, and unless ``whiten`` is a count, and 0
    for "box", which declares scales.
    """

    features: str = "auto"
    weights: str | None = None
    box: list[list[float]] = field(default_factory=list)
    whiten: int = 0

    def __post_init__(self) -> None:
        name, box = self.features, self.box
        if name not in FEATURES and not name.startswith(TIMM):
            raise InvalidInput("features", f"one of {', '.join(FEATURES)}, {TIMM}NAME", name)
        if self.weights is not None and not name.startswith(TIMM):
            raise InvalidInput("weights", f"given with features: {TIMM}NAME alone", self.weights)
        if (name == "box") != bool(box):
            raise InvalidInput("box", "given with features: box, and with nothing else", box)
        for side in box:
            if len(side) != 2 or not all(map(math.isfinite, side)) or side[0] >= side[1]:
                raise InvalidInput("box", "a list of [low, high] with low < high, finite", side)
        if self.whiten < 0 or (self.whiten and name == "box"):
            raise InvalidInput("whiten", "a count, and 0 with features: box", self.whiten)


@dataclass(frozen=True)
class Computing:
    """The settings by which features are computed; no result depends on them. See ``Config``."""

    batch_size: int = 256
    workers: int = 2
    device: str = "cpu"
    threads: int = 2


def check_labels(data: DataConfig, mechanism: AnyMechanism) -> None:
    """Raises InvalidInput unless the mechanism answers with what rows have as labels."""
    if mechanism.label_space != data.labels:
        fitting = [kind for kind, known in MECHANISMS.items() if known.label_space == data.labels]
        rule = f"one of {', '.join(fitting)} for data.labels: {data.labels}"
        raise InvalidInput("mechanism.kind", rule, mechanism.kind)


def check_persons(data: DataConfig, unit: Unit) -> None:
    """Raises InvalidInput unless the data set says whose a row is, where the unit is a person."""
    if unit == "row":
        return
    where = SOURCES[data.source].persons
    if where is None:
        raise InvalidInput("privacy.unit", f"row for the source {data.source!r}", unit)
    if (where == "setting") != bool(data.person):
        rule = "given with privacy.unit: person" if where == "setting" else "empty for arrays"
        raise InvalidInput("data.person", rule, data.person)
