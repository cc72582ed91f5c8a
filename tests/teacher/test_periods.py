"""Periods of one plan: the records may be others in each, and the certificate covers them all."""

import itertools

import numpy as np
import pytest

from labelwall.experiment.plan.planner import Choice, Goal, View
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.auditor.mechanisms import check_plan
from labelwall.teacher.ledger.auditor.reading import Problem
from labelwall.teacher.mechanisms.sums import PrivateLinear, Score
from labelwall.teacher.records.private_records import Records
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import COUNT, Weights
from labelwall.wall.messages import ExtractorSpec
from tests.make import ZeroNoise, rows, teach
from tests.teacher import laws

SIGMA, REACH, DELTA = 2.0, 13, 1e-5
SPEC = ExtractorSpec("raw", (6,), 3)
LINEAR = PrivateLinear(steps=2, noise_multiplier=1.0)


def plan_of(*mechanisms, asked: int = 1) -> Plan:
    """Of a period for each."""
    slots = tuple(Slot(m.fields(), m.releases(asked, asked)) for m in mechanisms)
    return Plan(1e9, DELTA, slots, "row", len(slots))


def transcript(
    first: int | None, second: tuple[int, int] | None, sigmas: tuple[float, float]
) -> np.ndarray:
    """The law of two scores' counts (right, wrong), written from its definition.

    ``first``: the count that the record adds to in the first period, ``second`` in the second one,
    by what the first answer made the caller ask; None where the record is not there.
    """
    size = 2 * REACH + 1

    def counts(place: int | None, sigma: float) -> np.ndarray:
        wide, noise = np.zeros((2, size + 2)), laws.gaussian(sigma, REACH)
        for count in range(2):
            start = 2 if count == place else 1
            wide[count, start : start + size] = noise
        return np.outer(*wide)  # of (right, wrong)

    released = counts(first, sigmas[0])
    asked = np.add.outer(np.arange(size + 2), -np.arange(size + 2)) > 0  # the caller's next model
    later = [counts(None if second is None else second[m], sigmas[1]) for m in range(2)]
    return np.concatenate([np.outer(released[asked == m], later[m]).ravel() for m in range(2)])


@pytest.mark.parametrize("sigmas", [(SIGMA, SIGMA), (1.2, SIGMA)])
def test_no_record_of_either_period_tells_more_than_the_plan_certifies(sigmas):
    plan, without = plan_of(*(Score(sigma=s) for s in sigmas)), transcript(None, None, sigmas)
    certified, alone = certified_epsilon(plan), certified_epsilon(plan.up_to(1))
    worst = {}
    for first in (None, 0, 1):
        for second in (None, *itertools.product((0, 1), repeat=2)):
            law = transcript(first, second, sigmas)
            assert laws.hockey_stick(law, without, certified) <= DELTA
            present = (first is not None) + (second is not None)
            worst[present] = max(worst.get(present, 0.0), laws.hockey_stick(law, without, alone))
    # That of one period is enough for a record of one, and not for one of both.
    assert worst[1] <= DELTA < worst[2]


def test_a_removed_record_adds_nothing_from_then_on_and_a_new_one_from_its_first_sum(tmp_path):
    noisier = LINEAR.noisier(3.0)
    plan, zeros = plan_of(LINEAR, noisier, noisier, asked=2), np.zeros((7, 3), dtype=np.int16)
    x, y, ids = rows(9, 1), np.arange(9) % 3, np.arange(9)
    months = [slice(0, 6), slice(1, 6), slice(1, 9)]  # one leaves, then three arrive
    sums = []
    for slot, there in enumerate(months):
        records = Records(x[there], y[there], ids[there])
        teacher = teach(tmp_path / "one", plan, records, SPEC, ZeroNoise())
        answer = teacher.count(Weights(zeros, slot))
        assert answer.receipt.charged == {"sum": 1}  # the same matrix, of other records
        fresh = teach(tmp_path / f"fresh{slot}", plan, records, SPEC, ZeroNoise())
        alone = fresh.count(Weights(zeros, slot)).counts
        np.testing.assert_array_equal(answer.counts, alone)
        sums.append(answer.counts)
    assert [int(s[0, -1]) // COUNT for s in sums] == [6, 5, 8]
    again = teacher.count(Weights(zeros, 0))
    assert again.receipt.charged == {"sum": 0}
    np.testing.assert_array_equal(again.counts, sums[0])  # what was released stays


def test_periods_have_as_many_slots():
    noisier = LINEAR.noisier(2.0)
    plan = plan_of(LINEAR, noisier, noisier)
    assert [plan.period_of(slot) for slot in range(3)] == [1, 2, 3]
    assert plan.up_to(2) == plan_of(LINEAR, noisier)
    slots = plan.slots
    for wrong, periods in ((slots[:2], 3), (slots, 2), (slots, 0), (slots, -1)):
        with pytest.raises(InvalidInput, match="a divisor of the plan's number of slots"):
            Plan(1.0, DELTA, wrong, "row", periods)
    text = {**plan.to_json(), "epsilon": 1.0, "slots": [_listed(slot) for slot in slots]}
    assert len(check_plan(text)) == 3
    with pytest.raises(Problem, match="as many slots each"):
        check_plan({**text, "slots": text["slots"][:2]})
    with pytest.raises(Problem, match="as many slots each"):
        check_plan({**text, "periods": 2})


def _listed(slot: Slot) -> dict:
    releases = [vars(release) for release in slot.releases]
    return {"mechanism": slot.mechanism, "releases": releases}


def test_a_forecast_is_of_the_first_part():
    goal = Goal(1.0, DELTA, 100, 50, 1, periods=4)
    view = View("raw", 0, 6, 0, 50, 3, 100)
    assert [r.cap for r in Choice(1.0, view, LINEAR, 2, 2, 50.0, 0.5).plan(goal).releases()] == [8]
