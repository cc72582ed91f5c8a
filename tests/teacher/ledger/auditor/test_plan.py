"""The auditor's own list of mechanisms and the registry's say the same, in both directions."""

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
from labelwall.teacher.ledger.auditor import mechanisms as audited
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.auditor.reading import Problem
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms import sums
from labelwall.teacher.mechanisms.attributes import GnmaxAttributes, PrivateKnnAttributes
from labelwall.teacher.mechanisms.batch import BatchKnn, RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.registry import MECHANISMS, AnyMechanism, from_slot
from labelwall.teacher.mechanisms.values import PrivateKnnMean
from labelwall.wall.errors import InvalidInput, LabelwallError
from tests.ledgers import SPEC, identity
from tests.make import plan_of
from tests.teacher.shards import tiny

EXAMPLES: dict[str, AnyMechanism] = {m.kind: m for m in tiny.ONE_OF_EACH}
EDGES = [
    None, True, False, "", "cnn", "linear", "rbf", "cosine", "queries", "local", "component",
    "laplace", "exponential", "exponential_paper", "grid", "interactive", "none", -1, 0, 1, 2, 30,
    62, 63, 64, 65, 256, 257, 1000, 1001, 1023, 1024, 1025, 4096, 4097, 10_000, 10_001, 100_000,
    100_001, 10**6, 10**6 + 1, 10**9, 10**9 + 1, 2**31, 2**31 + 1, -1.0, 0.0, 1e-10, 1e-9, 1e-7,
    1e-6, 0.0009, 1e-3, 0.5, 0.999, 0.9999, 1.0, 1.0000001, 2.5, 100.0, 100.5, 1000.0, 1000.1, 1e5,
    1.1e5, 1e6, 1.1e6, 1e9, 1.1e9, 1e300, math.nan, math.inf, -math.inf, [], [1], {},
]  # fmt: skip


def recorded(mechanism, asked=5, answered=3):
    """A slot as a ledger's first entry records it."""
    plan = Plan(1.0, 0.5, (Slot(mechanism.fields(), mechanism.releases(asked, answered)),))
    return json.loads(json.dumps(plan.to_json()))["slots"][0]


def registry_takes(slot):
    try:
        plan = Plan.from_json(
            {"epsilon": 1.0, "delta": 0.5, "slots": [slot], "unit": "row", "periods": 1}
        )
        from_slot(plan.slots[0])
        for release in plan.releases():
            check_release(release)
    except (LabelwallError, KeyError, TypeError, ValueError, OverflowError):
        return False
    return True


def auditor_takes(slot):
    try:
        audited.check_slot(slot)
    except (Problem, ValueError):  # of NaN, which no file's text holds
        return False
    return True


def test_both_lists_hold_the_same_kinds_and_fields():
    assert set(audited.KINDS) == set(MECHANISMS) == set(EXAMPLES)
    for kind, mechanism in MECHANISMS.items():
        names = ["kind", *audited.KINDS[kind].fields, *audited.KINDS[kind].free.split()]
        assert sorted(names) == sorted(field.name for field in fields_of(mechanism))
    assert {kind for kind, mechanism in MECHANISMS.items() if mechanism.persons} == audited.PERSONS


def values(data):
    number = st.one_of(st.integers(-2, 10**7), st.floats(allow_nan=False, width=32))
    return data.draw(st.one_of(st.sampled_from(EDGES), number))


@pytest.mark.parametrize("kind", audited.KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_a_mechanism_of_any_price_is_taken_by_both_or_by_neither(kind, data):
    fields = EXAMPLES[kind].fields()
    if "cells" in fields and "window" in fields:
        fields["window"] = 1  # which must be below the cells, and has no price
    names = st.sampled_from(sorted(audited.KINDS[kind].fields))
    for name in data.draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        fields[name] = values(data)
    try:
        mechanism = MECHANISMS[kind](**fields)
        slot = {"mechanism": fields, "releases": [asdict(r) for r in mechanism.releases(5, 3)]}
    except (LabelwallError, TypeError, ValueError, OverflowError):
        slot = {**recorded(EXAMPLES[kind]), "mechanism": fields}  # the auditor refuses the fields
    assert auditor_takes(slot) == registry_takes(slot)


@pytest.mark.parametrize("kind", [kind for kind in audited.KINDS if audited.KINDS[kind].free])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_fields_without_a_rule_have_no_price(kind, data):
    """Whatever the registry takes for them, the releases stay; the auditor takes any scalar."""
    name, value = data.draw(st.sampled_from(audited.KINDS[kind].free.split())), values(data)
    slot = recorded(EXAMPLES[kind])
    slot["mechanism"][name] = value
    finite = not isinstance(value, float) or math.isfinite(value)  # as all numbers of a file are
    assert auditor_takes(slot) == (finite and not isinstance(value, list | dict))
    try:
        mechanism = MECHANISMS[kind](**slot["mechanism"])
    except (LabelwallError, TypeError, ValueError, OverflowError):
        return
    assert mechanism.releases(5, 3) == EXAMPLES[kind].releases(5, 3)


@pytest.mark.parametrize("kind", audited.KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_releases_of_any_price_are_taken_by_both_or_by_neither(kind, data):
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


@pytest.mark.parametrize("kind", audited.KINDS)
def test_a_slot_of_other_fields_or_releases_is_taken_by_neither(kind):
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


LABELS = [0, 2**31 - 1], [-1, 2**31, 10**30, True, 1.0, "1", None, [1]]
TAIL = 14 * 100 * 4096 + 1
SCREEN = [0, 1], [2, -1, True, 1.0, [0]]
SUM, SUMS = 10**12 * 2**20, {"noise_multiplier": 30.0}
SPREAD = {"k": 20, "sample_rate": 0.1}
# By hand: noise of 14 deviations beyond what votes can add up to, for three queries in one entry.
RANGES: list[tuple[AnyMechanism, str, list[Any], list[Any]]] = [
    (EXAMPLES["private_knn"], "screen", *SCREEN),
    *((EXAMPLES[kind], "aggregate", *LABELS) for kind in ("private_knn", "private_radius")),
    *((EXAMPLES[kind], "aggregate", *LABELS) for kind in ("naive_knn", "lnmax", "gnmax")),
    (EXAMPLES["confident_gnmax"], "aggregate", *LABELS),
    (
        PrivateKnnAttributes(sigma_vote=100.0, tau=2, **SPREAD), "counts",
        [[-TAIL] * 62, [20 * 4096 + TAIL]],
        [[-TAIL - 1], [20 * 4096 + TAIL + 1], [], [0] * 63, 0, [1.0], [True], [[1]]],
    ),
    (
        GnmaxAttributes(teachers=20, tau=2, sigma_vote=100.0), "counts",
        [[20 * 4096 + TAIL]], [[20 * 4096 + TAIL + 1]],
    ),
    (
        sums.ReverseKnn(centroids=3, sigma=44.0), "histogram",
        [[-617] * 3, [10**12 + 617] * 6], [[-618] * 3, [10**12 + 618] * 3, [0] * 4, 5, []],
    ),
    (sums.Score(sigma=44.0), "score", [[-617] * 4], [[-618] * 4, [0] * 5, 5, []]),
    (sums.ScoreAttributes(sigma=100.0), "score", [[-TAIL, 0]], [[-TAIL - 1, 0], [0] * 3]),
    (sums.ScoreValue(sigma=100.0), "score", [[-TAIL, 0]], [[-TAIL - 1, 0], [0] * 3]),
    (
        sums.ScoreTables(sigma=44.0, thresholds=2), "score",
        [[-617] * 6, [10**12 + 617] * 9], [[-618] * 6, [0] * 5, 5, []],
    ),
    (
        sums.ScoreTablesAttributes(sigma=100.0, thresholds=2), "score",
        [[-TAIL, 0] * 3], [[-TAIL - 1, 0] * 3, [0] * 9],
    ),
    (sums.PrivateLinear(**SUMS), "sum", [[0] * 21, [SUM] * 9], [[2 * SUM] * 9, 5, [], [0] * 4]),
    (sums.PrivateLinearAttributes(**SUMS), "sum", [[0] * 21], [[0] * (2 * 4001 * 31), [0] * 2]),
    (sums.PrivateLinearValue(**SUMS), "sum", [[0] * 6, [0] * 4002], [[0] * 2, [0] * 4003]),
    (
        IndKnn(rho=0.01, sigma_count=40.0), "individual_budgets",
        [[-561, 0], [10**12 + 561, 2**31 - 1]],
        [[-562, 0], [10**12 + 562, 0], [0, -1], [0, 2**31], [0], [0, 1, 2], 5, [True, 1]],
    ),
    (
        RadiusNeighbours(radius=0.1, epsilon=1.0), "batch",  # (0.1 * 126)^2 is 158.76
        [[7, 1, 159], [7, 3, 159]],
        [[7, 0, 159], [7, 4, 159], [7, 1, 158], [-1, 1, 159]],
    ),
    (
        RadiusNeighbours(radius=0.1, epsilon=1.0, accounting="queries"), "batch",
        [[7, 3, 159]], [[7, 2, 159]],
    ),
    (
        BatchKnn(k=5, epsilon=1.0, conversion="interactive"), "batch",
        [[7, 1, 0], [7, 3, 2**26]], [[7, 1, -1], [7, 1, 2**26 + 1]],
    ),
    (
        BatchKnn(k=5, epsilon=1.0, conversion="none"), "batch",
        [[7, 3, -1]], [[7, 3, 0], [7, 2, -1]],
    ),
    (
        PrivateKnnMean(sigma_mean=2.0, **SPREAD), "mean",
        [20 * 4096 + 14 * 2 * 2 * 4096 + 1, -(20 * 4096 + 14 * 2 * 2 * 4096 + 1)],
        [20 * 4096 + 14 * 2 * 2 * 4096 + 2, -(20 * 4096 + 14 * 2 * 2 * 4096 + 2), 1.0, [1]],
    ),
    (EXAMPLES["private_knn_median"], "screen", *SCREEN),
    (
        EXAMPLES["private_knn_median"], "median",
        [256, 768, 1280, 1792, 2304, 2816, 3328, 3840], [0, 255, 257, 512, 4096, 4352, True, [256]],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", RANGES, ids=lambda case: f"{case[0].kind} {case[1]}")
def test_what_can_be_drawn_may_be_released_and_nothing_else(case):
    mechanism, name, possible, impossible = case
    (release,) = (each for each in audited.priced(mechanism.fields()) if each.name == name)
    assert [release.results.holds(value, 3) for value in possible] == [True] * len(possible)
    assert [release.results.holds(value, 3) for value in impossible] == [False] * len(impossible)


def test_ranges_are_known_of_every_kind():
    assert {case[0].kind for case in RANGES} == set(audited.KINDS)


@pytest.mark.parametrize(
    ("kind", "lengths", "problem"),
    [
        (sums.PrivateLinear, [21, 21, 41], None),
        (sums.PrivateLinearAttributes, [21, 21, 41], None),
        (sums.PrivateLinearValue, [6, 6, 11], None),
        (sums.PrivateLinear, [21, 25, 41], "different lengths"),
    ],
)
def test_sums_have_one_length_for_an_extractor(tmp_path, kind, lengths, problem):
    """A ledger of one release for each length, the last of another extractor's."""
    plan = plan_of(kind(**SUMS), 9, delta=1e-9)
    ledger = Ledger.create(tmp_path / "l.sqlite", dataset="d", plan=plan, unsafe=False)
    for number, length in enumerate(lengths):
        last = number == len(lengths) - 1
        ledger.use_extractor((replace(SPEC, scale=2.0) if last else SPEC).public_fields())
        key = identity(str(number))
        ledger.record(ledger.charge(0, "sum", [key]), {key: [7] * length})
    problems = audit(tmp_path / "l.sqlite").problems
    assert (not problems) if problem is None else any(problem in line for line in problems)


def written(plan):
    """A plan as a ledger's text holds it, within the auditor's range of epsilon."""
    found: dict[str, Any] = json.loads(json.dumps(plan.to_json()))
    return {**found, "epsilon": 1.0}


@pytest.mark.parametrize("unit", ["Person", None, 1, ["person"], ""])
def test_no_other_unit_is_read(unit):
    plan = written(plan_of(tiny.MECHANISMS["private_knn"], 10))
    with pytest.raises((TypeError, InvalidInput)):
        Plan.from_json({**plan, "unit": unit})
    with pytest.raises(Problem, match="unit"):
        audited.check_plan({**plan, "unit": unit})


def test_a_kind_whose_price_does_not_hold_for_persons_is_refused(monkeypatch):
    monkeypatch.setattr(audited, "PERSONS", frozenset({"ind_knn"}))
    plan = written(plan_of(tiny.MECHANISMS["private_knn"], 10, unit="person"))
    with pytest.raises(Problem, match="whose price holds for persons"):
        audited.check_plan(plan)
