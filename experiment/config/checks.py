"""Rules between the settings of a configuration."""

from __future__ import annotations

import math

from ...teacher.mechanisms.registry import MECHANISMS, AnyMechanism
from ...wall.datasets.sources import SOURCES, DataConfig
from ...wall.errors import InvalidInput
from ...wall.unit import Unit

STAGES = "efficientnet_lite0_stages"
FEATURES = ("auto", "hog", "raw", "efficientnet_lite0", STAGES, "box")  # of the first round
TIMM = "timm/"  # with a model's name: further features


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


def check_features(features: str, weights: str | None) -> None:
    """Raises InvalidInput for an unknown name, and for weights with anything but a timm model."""
    if features not in FEATURES and not features.startswith(TIMM):
        raise InvalidInput("features", f"one of {', '.join(FEATURES)}, {TIMM}NAME", features)
    if weights is not None and not features.startswith(TIMM):
        raise InvalidInput("weights", f"given with features: {TIMM}NAME alone", weights)


def check_box(features: str, box: list[list[float]]) -> None:
    """Raises InvalidInput unless a box is given for "box" alone, with low < high, finite."""
    if (features == "box") != bool(box):
        raise InvalidInput("box", "given with features: box, and with nothing else", box)
    for side in box:
        if len(side) != 2 or not all(map(math.isfinite, side)) or side[0] >= side[1]:
            raise InvalidInput("box", "a list of [low, high] with low < high, finite", side)


def check_whitening(features: str, whiten: int) -> None:
    """Raises InvalidInput unless ``whiten`` is a count, and 0 for "box", which declares scales."""
    if whiten < 0 or (whiten and features == "box"):
        raise InvalidInput("whiten", "a count, and 0 with features: box", whiten)
