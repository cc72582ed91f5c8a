"""The auditor's own list of what a plan for persons may hold, and how a plan names its unit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from labelwall.teacher.accounting.plan import Plan
from labelwall.teacher.ledger.auditor import entries
from labelwall.teacher.ledger.auditor.entries import check_plan
from labelwall.teacher.ledger.auditor.values import Problem
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.wall.errors import InvalidInput
from labelwall.wall.unit import UNITS
from tests.teacher.shards import tiny


def written(plan: Plan) -> dict:
    """A plan as a ledger's text holds it, within the auditor's range of epsilon."""
    found: dict = json.loads(json.dumps(plan.to_json()))
    return {**found, "epsilon": 1.0}


@pytest.mark.parametrize("name", tiny.MECHANISMS)
def test_the_auditor_and_the_mechanisms_agree_on_persons(name: str) -> None:
    mechanism = tiny.MECHANISMS[name]
    plan = written(tiny.plan_of(mechanism, 10, "person"))
    assert plan["unit"] == "person"
    assert type(mechanism).persons
    check_plan(plan)


def test_each_kind_is_listed_once() -> None:
    assert sorted(entries._FOR_PERSONS) == sorted(
        kind for kind, known in MECHANISMS.items() if known.persons
    )


def test_a_kind_that_is_not_listed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_FOR_PERSONS", ("ind_knn",))
    plan = written(tiny.plan_of(tiny.MECHANISMS["private_knn"], 10, "person"))
    with pytest.raises(Problem, match="whose price holds for persons"):
        check_plan(plan)


@pytest.mark.parametrize("unit", ["row", "Person", None, 1, ["person"], ""])
def test_no_other_unit_is_read(unit: object) -> None:
    """A plan for rows names no unit, so that there is one text of it."""
    plan = written(tiny.plan_of(tiny.MECHANISMS["private_knn"], 10))
    assert "unit" not in plan
    with pytest.raises(KeyError):
        Plan.from_json({**plan, "unit": unit})
    with pytest.raises(Problem, match="unit"):
        check_plan({**plan, "unit": unit})


def test_a_plan_is_read_as_it_was_written() -> None:
    for unit in UNITS:
        plan = Plan.from_json(written(tiny.plan_of(tiny.MECHANISMS["private_knn"], 10, unit)))
        assert plan.unit == unit
        assert Plan.from_json(written(plan)) == plan
        assert Plan.from_json(written(plan.pooled(3))).unit == unit
    with pytest.raises(InvalidInput, match=r"privacy\.unit"):
        replace(plan, unit="household")
