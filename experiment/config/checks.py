"""Rules between the settings of a configuration."""

from __future__ import annotations

from ...teacher.mechanisms.registry import MECHANISMS, AnyMechanism
from ...wall.datasets.sources import SOURCES, DataConfig
from ...wall.errors import InvalidInput
from ...wall.unit import Unit


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
