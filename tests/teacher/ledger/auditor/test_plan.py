"""The auditor's own list of mechanisms and the registry's say the same, in both directions."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from dataclasses import fields as fields_of
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwall.teacher.accounting.curves import check_release
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.auditor import mechanisms as audited_plan
from labelwall.teacher.ledger.auditor.entries import Problem
from labelwall.teacher.ledger.auditor.mechanisms import (
    KINDS,
    PERSONS,
    check_plan,
    check_slot,
    priced,
)
from labelwall.teacher.ledger.auditor.results import STEPS
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.registry import MECHANISMS, AnyMechanism, from_slot
from labelwall.wall.errors import InvalidInput, LabelwallError
from labelwall.wall.guarantee import UNITS
from tests.make import plan_of
from tests.teacher.ledger.auditor import honest_ledgers
from tests.teacher.ledger.auditor.audit_reading import drawable
from tests.teacher.shards import tiny

EXAMPLES = {m.kind: m for m in honest_ledgers.MECHANISMS}
EDGES = [
    None, True, False, "", "cnn", "linear", "rbf", "cosine", "queries", "local", "component",
    "laplace", "exponential", "exponential_paper", "grid", "interactive", "none", -1, 0, 1, 2, 30,
    62, 63, 64, 65, 256, 257, 1000, 1001, 1023, 1024, 1025, 4096, 4097, 10_000, 10_001, 100_000,
    100_001, 10**6, 10**6 + 1, 10**9, 10**9 + 1, 2**31, 2**31 + 1, -1.0, 0.0, 1e-10, 1e-9, 1e-7,
    1e-6, 0.0009, 1e-3, 0.5, 0.999, 0.9999, 1.0, 1.0000001, 2.5, 100.0, 100.5, 1000.0, 1000.1, 1e5,
    1.1e5, 1e6, 1.1e6, 1e9, 1.1e9, 1e300, math.nan, math.inf, -math.inf, [], [1], {},
]  # fmt: skip


def recorded(mechanism: AnyMechanism, asked: int = 5, answered: int = 3) -> dict[str, Any]:
    """A slot as a ledger's first entry records it."""
    plan = Plan(1.0, 0.5, (Slot(mechanism.fields(), mechanism.releases(asked, answered)),))
    return json.loads(json.dumps(plan.to_json()))["slots"][0]


def registry_takes(slot: dict[str, Any]) -> bool:
    """Whether the teacher makes a mechanism of a slot, draws from it and prices it."""
    try:
        plan = Plan.from_json({"epsilon": 1.0, "delta": 0.5, "slots": [slot], "unit": "row"})
        from_slot(plan.slots[0])
        for release in plan.releases():
            check_release(release)
    except (LabelwallError, KeyError, TypeError, ValueError, OverflowError):
        return False
    return True


def auditor_takes(slot: dict[str, Any]) -> bool:
    try:
        check_slot(slot)
    except Problem:
        return False
    return True


def test_both_lists_hold_the_same_kinds_and_fields() -> None:
    assert set(KINDS) == set(MECHANISMS) == set(EXAMPLES)
    for kind, mechanism in MECHANISMS.items():
        audited = ["kind", *KINDS[kind].fields, *KINDS[kind].free]
        assert sorted(audited) == sorted(field.name for field in fields_of(mechanism))
    assert {kind for kind, mechanism in MECHANISMS.items() if mechanism.persons} == PERSONS


def values(data: st.DataObject) -> Any:
    number = st.one_of(st.integers(-2, 10**7), st.floats(allow_nan=False, width=32))
    return data.draw(st.one_of(st.sampled_from(EDGES), number))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_a_mechanism_of_any_price_is_taken_by_both_or_by_neither(
    kind: str, data: st.DataObject
) -> None:
    """Its own releases, at fields inside and outside their ranges and types."""
    fields = EXAMPLES[kind].fields()
    if "cells" in fields and "window" in fields:
        fields["window"] = 1  # which must be below the cells, and has no price
    names = st.sampled_from(sorted(KINDS[kind].fields))
    for name in data.draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        fields[name] = values(data)
    try:
        mechanism = MECHANISMS[kind](**fields)
        slot = {"mechanism": fields, "releases": [asdict(r) for r in mechanism.releases(5, 3)]}
    except (LabelwallError, TypeError, ValueError, OverflowError):
        slot = {**recorded(EXAMPLES[kind]), "mechanism": fields}  # the auditor refuses the fields
    assert auditor_takes(slot) == registry_takes(slot)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].free])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_fields_without_a_rule_have_no_price(kind: str, data: st.DataObject) -> None:
    """Whatever the registry takes for them, the releases stay; the auditor takes any scalar."""
    name, value = data.draw(st.sampled_from(KINDS[kind].free)), values(data)
    slot = recorded(EXAMPLES[kind])
    slot["mechanism"][name] = value
    assert auditor_takes(slot) == (not isinstance(value, list | dict))
    try:
        mechanism = MECHANISMS[kind](**slot["mechanism"])
    except (LabelwallError, TypeError, ValueError, OverflowError):
        return
    assert mechanism.releases(5, 3) == EXAMPLES[kind].releases(5, 3)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_releases_of_any_price_are_taken_by_both_or_by_neither(
    kind: str, data: st.DataObject
) -> None:
    slot = recorded(EXAMPLES[kind])
    release = data.draw(st.sampled_from(slot["releases"]))
    where = data.draw(st.sampled_from([release, release["parameters"]]))
    name = data.draw(st.sampled_from(sorted(where)))
    old = where[name]
    near = [old, *([float(old), old * 2, bool(old), str(old)] if type(old) in (int, float) else [])]
    where[name] = data.draw(
        st.sampled_from([*near, *EDGES, "argmax", "pure", "gaussian", "aggregate", {"epsilon": 0}])
    )
    assert auditor_takes(slot) == registry_takes(slot)


@pytest.mark.parametrize("kind", KINDS)
def test_a_slot_of_other_fields_or_releases_is_taken_by_neither(kind: str) -> None:
    slot = recorded(EXAMPLES[kind])
    own, other = slot["releases"], recorded(IndKnn(rho=0.1, sigma_count=9.0))["releases"]
    for releases in ([], own[::-1], own * 2, own[:-1], other):
        if releases != own:
            assert not auditor_takes({**slot, "releases": releases})
            assert not registry_takes({**slot, "releases": releases})
    for name in slot["mechanism"]:
        fields = {key: value for key, value in slot["mechanism"].items() if key != name}
        assert not auditor_takes({**slot, "mechanism": fields})
        assert not auditor_takes({**slot, "mechanism": {**slot["mechanism"], name + "x": 1}})


@pytest.mark.parametrize("mechanism", honest_ledgers.MECHANISMS, ids=lambda m: m.kind)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(value=st.one_of(
    st.sampled_from([True, 1.0, None, "1", [], [True], [[1]], [0, 1, 1, 159], [0, 3, 1, -1]]),
    st.sampled_from([2**31 - 1, 2**31, 10**30, STEPS, 123456789]),
    st.integers(-10**7, 10**7),
    st.lists(st.integers(-10**6, 10**6), max_size=5),
    st.lists(st.integers(-1, 4), min_size=4, max_size=4),
))  # fmt: skip
def test_the_sets_of_results_are_those_of_another_reading(
    mechanism: AnyMechanism, value: Any
) -> None:
    """Against what the fuzz says that a mechanism can draw, for three queries in one entry."""
    whole = type(value) is int or (
        type(value) is list and bool(value) and all(type(v) is int for v in value)
    )
    for release in priced(mechanism.fields()):
        typed = whole and (release.name != "screen" or type(value) is int)
        expected = typed and drawable(mechanism, release.name, value, 3)
        assert release.results.holds(value, 3) == expected, release.results.words


def test_what_is_drawn_lies_in_the_sets() -> None:
    """The sets' edges, by hand: noise of 14 deviations beyond what votes can add up to."""
    (mean,) = priced(replace(EXAMPLES["private_knn_mean"], sigma_mean=2.0).fields())
    edge = 20 * STEPS + 14 * 2 * 2 * STEPS + 1
    held = [mean.results.holds(value, 1) for value in (edge, edge + 1, -edge, -edge - 1)]
    assert held == [True, False, True, False]
    screen, median = priced(EXAMPLES["private_knn_median"].fields())
    middles = [value for value in range(-5, STEPS + 5) if median.results.holds(value, 1)]
    assert middles == [256, 768, 1280, 1792, 2304, 2816, 3328, 3840]
    assert [value for value in range(-5, 5) if screen.results.holds(value, 1)] == [0, 1]


def written(plan: Plan) -> dict[str, Any]:
    """A plan as a ledger's text holds it, within the auditor's range of epsilon."""
    found: dict[str, Any] = json.loads(json.dumps(plan.to_json()))
    return {**found, "epsilon": 1.0}


def test_a_plan_is_read_as_it_was_written() -> None:
    for unit in UNITS:
        plan = Plan.from_json(written(plan_of(tiny.MECHANISMS["private_knn"], 10, unit=unit)))
        assert plan.unit == unit
        assert Plan.from_json(written(plan)) == plan
        assert Plan.from_json(written(plan.pooled(3))).unit == unit
        check_plan(written(plan))


@pytest.mark.parametrize("unit", ["Person", None, 1, ["person"], ""])
def test_no_other_unit_is_read(unit: object) -> None:
    plan = written(plan_of(tiny.MECHANISMS["private_knn"], 10))
    with pytest.raises((TypeError, InvalidInput)):
        Plan.from_json({**plan, "unit": unit})
    with pytest.raises(Problem, match="unit"):
        check_plan({**plan, "unit": unit})


def test_a_kind_whose_price_does_not_hold_for_persons_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audited_plan, "PERSONS", frozenset({"ind_knn"}))
    plan = written(plan_of(tiny.MECHANISMS["private_knn"], 10, unit="person"))
    with pytest.raises(Problem, match="whose price holds for persons"):
        check_plan(plan)
