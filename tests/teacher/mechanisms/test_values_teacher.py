"""A teacher of values: charges, answers of steps, records that come and go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.private_knn import PrivateKnn
from labelwall.teacher.mechanisms.registry import AnyMechanism
from labelwall.teacher.mechanisms.values import (
    MEDIAN,
    Regression,
)
from labelwall.teacher.mechanisms.votes import SCREEN
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from labelwall.wall.labels.values import STEPS, ValueLabels
from labelwall.wall.messages import ExtractorSpec, Outcome, Queries
from tests.make import plan_of, teach
from tests.teacher.mechanisms.test_values import BOTH, MEAN_OF, MEDIAN_OF, D

SCALE = ValueLabels(-4.0, 4.0)


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)
    return x, SCALE.steps(x[:, 0].astype(np.float64) * 1.5)


def teacher(folder: Path, mechanism: AnyMechanism, cap: int = 50) -> Teacher:
    records = Records(*rows(200, 0), np.arange(200))
    plan = plan_of(mechanism, cap, cap)
    return teach(folder, plan, records, ExtractorSpec("raw", (D,), 1))


@pytest.mark.parametrize("mechanism", BOTH, ids=lambda m: m.kind)
def test_queries_are_charged_answered_with_steps_and_known_after_a_restart(
    tmp_path: Path, mechanism: Regression
) -> None:
    """For any noise: queries that pass are answered, others abstain, nothing is charged twice."""
    answering, x = teacher(tmp_path, mechanism), rows(40, 1)[0]  # type: ignore[arg-type]
    first = answering.answer(Queries(x))
    answered = first.outcomes == Outcome.ANSWERED
    assert ((first.labels >= 0) & (first.labels <= STEPS))[answered].all()
    assert (first.labels[~answered] == -1).all()
    assert first.receipt.charged == {SCREEN: 40, mechanism.aggregate: answered.sum()}
    again = teacher(tmp_path, mechanism).answer(Queries(x))  # type: ignore[arg-type]
    np.testing.assert_array_equal(again.labels, first.labels)
    assert again.receipt.charged == {SCREEN: 0, mechanism.aggregate: 0}
    later = teacher(tmp_path, mechanism).answer(Queries(rows(20, 2)[0]))  # type: ignore[arg-type]
    assert (later.outcomes[10:] == Outcome.CAP_REACHED).all()
    answering.export(tmp_path / "export.sqlite")
    assert audit(tmp_path / "export.sqlite").consistent


def test_answers_follow_the_neighbours(tmp_path: Path) -> None:
    """The noise on a mean of 7 is 0.02 of the range, so an average error of 0.2 is impossible."""
    plain = replace(MEAN_OF, threshold=None, sigma_mean=0.14)
    x, labels = rows(40, 1)
    voters = teacher(tmp_path, plain)
    near = voters.answer(Queries(x)).labels
    assert np.abs(near - labels).mean() < 0.2 * STEPS


def test_records_come_and_go_by_their_steps(tmp_path: Path) -> None:
    answering = teacher(tmp_path, MEAN_OF)
    x = rows(3, 9)[0]
    with pytest.raises(InvalidInput, match=r"records\.labels"):
        answering.add(Records(x, np.full(3, STEPS + 1), np.arange(500, 503)))
    answering.add(Records(x, np.array([0, 9, STEPS]), np.arange(500, 503)))
    assert answering.present(np.arange(498, 503)).tolist() == [False, False, True, True, True]


def test_a_plan_of_classes_and_values_is_refused(tmp_path: Path) -> None:
    mechanisms: list[AnyMechanism] = [MEAN_OF, PrivateKnn(sigma_screen=75.0, sigma_vote=25.0)]
    plan = Plan(1e9, 1e-5, tuple(Slot(m.fields(), m.releases(5, 5)) for m in mechanisms))
    ledger = Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=plan, unsafe=False)
    with pytest.raises(InvalidInput, match="plan"):
        Teacher(lambda: Records(*rows(5, 0), np.arange(5)), ledger, tmp_path, 1, SystemEntropy())


def test_a_list_in_place_of_a_drawn_cell_is_refused(tmp_path: Path) -> None:
    """The median's price is that of one draw, not of the counts behind it."""
    plain = replace(MEDIAN_OF, threshold=None)
    plan = plan_of(plain, 5, 5)
    ledger = Ledger.create(tmp_path / "ledger.sqlite", dataset="d", plan=plan, unsafe=False)
    charge = ledger.charge(0, MEDIAN, ["a"])
    with pytest.raises(LedgerMismatch):
        ledger.record(charge, {"a": [1, 2, 3]})
