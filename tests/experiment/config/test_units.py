"""Settings that the unit of privacy decides, in new plans and in recorded ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labelwall.experiment.config.config import Config
from labelwall.experiment.config.groups import PrivacyConfig, RoundConfig
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.sums import PrivateLinear, PrivateLinearValue, ReverseKnn
from labelwall.wall.datasets.sources import DataConfig

PERSON = PrivacyConfig("person")
LINEAR, CELLS = PrivateLinear(sigma=9.0), ReverseKnn(sigma=9.0)


def configured(mechanism: Mechanism, privacy: PrivacyConfig = PERSON) -> Config:
    bounds = [0.0, 1.0] if mechanism.label_space == "value" else []
    data = DataConfig(source="arrays", path="data.npz", labels=mechanism.label_space, bounds=bounds)
    rounds = [RoundConfig(), RoundConfig(mechanism=replace(mechanism))]
    return Config(data=data, mechanism=mechanism, rounds=rounds, privacy=privacy)


@pytest.mark.parametrize(
    ("mechanism", "name", "number"), [(CELLS, "parts", 4096), (LINEAR, "gain", 2)]
)
def test_a_plan_for_persons_names_what_rows_do_not_have(
    mechanism: Mechanism, name: str, number: int
) -> None:
    new = configured(mechanism)
    assert [slot.mechanism[name] for slot in new.plan().slots] == [number, number]
    rows = configured(mechanism, PrivacyConfig()).plan().slots
    assert all(slot.mechanism[name] is None for slot in rows)


@pytest.mark.parametrize(("mechanism", "name"), [(CELLS, "parts"), (LINEAR, "gain")])
def test_a_recorded_plan_is_kept(mechanism: Mechanism, name: str) -> None:
    """A number that is left out is the ledger's; one that is given is another plan."""
    new, single = configured(mechanism), configured(replace(mechanism, **{name: 1}))
    plan = single.plan()
    assert all(slot.mechanism[name] == 1 for slot in plan.slots)
    assert new.plan() != plan
    assert new.recorded(plan).plan() == plan
    assert new.recorded(new.plan()).plan() == new.plan()
    given = configured(replace(mechanism, **{name: 3}))
    assert given.recorded(plan).plan() == given.plan() != plan
    assert new.as_given(given).plan() == given.plan()


def test_values_of_persons_are_averaged_alone() -> None:
    (slot, _) = configured(PrivateLinearValue(sigma=9.0)).plan().slots
    assert slot.mechanism["gain"] == 1
