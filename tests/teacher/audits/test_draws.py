"""The statistical audit: its data sets, its draws, and attacks on whole teachers and plans."""

import json
from pathlib import Path

import numpy as np
import pytest

from labelwall import pipeline
from labelwall.teacher.accounting.accountant import certified_epsilon
from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.audits.cases import PROBE_DELTA, audit, audit_mechanisms, probes
from labelwall.teacher.audits.conversations import priced
from labelwall.teacher.audits.draws import JOINT, of_record
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms import registry
from labelwall.teacher.mechanisms.attributes import PrivateKnnAttributes
from labelwall.teacher.mechanisms.batch import RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import ANSWER, IndKnn
from labelwall.teacher.mechanisms.values import PrivateKnnMedian
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN, Gnmax, PrivateKnn, PrivateRadius
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import SENSITIVITY
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.teacher.audits import faults
from tests.teacher.audits.faults import SUMS, SURE, WIDE
from tests.teacher.audits.test_harness import lower_bound

pytestmark = pytest.mark.fresh_noise

SAMPLED = probes(PrivateKnn())[0][0]
COUNTING = probes(IndKnn(threshold=0.9))[0][0]


@pytest.mark.parametrize(
    "mechanism",
    [
        PrivateRadius(sigma_screen=75.0, sigma_vote=25.0, threshold=20),
        Gnmax(sigma_vote=40.0),
        PrivateKnnAttributes(sigma_vote=50.0),
        PrivateKnnMedian(threshold=50, sigma_screen=30.0, epsilon=0.2),
        RadiusNeighbours(epsilon=0.5),
    ],
    ids=lambda mechanism: mechanism.kind,
)
def test_a_plan_is_attacked_as_configured_and_with_little_noise(mechanism):
    findings = audit_mechanisms([mechanism], delta=1e-5, trials=80, confidence=SURE)
    assert [finding.delta for finding in findings] == [1e-5, PROBE_DELTA]
    assert not any(finding.refuted for finding in findings)
    assert findings[0].mechanism == mechanism.fields()
    assert findings[1].mechanism != mechanism.fields()


@pytest.mark.parametrize(
    "wrong", [{"trials": 7}, {"trials": 31}, {"delta": 0.0}, {"confidence": 1.0}]
)
def test_bad_arguments_are_refused(wrong):
    with pytest.raises(InvalidInput):
        audit(SAMPLED, **{"delta": PROBE_DELTA, "trials": 32, **wrong})


@pytest.mark.parametrize("kind", SUMS)
def test_the_record_is_as_long_as_the_limit_and_shows_in_every_entry(kind, monkeypatch):
    vector = of_record(kind())
    assert 0.99 * SENSITIVITY < np.linalg.norm(vector) <= SENSITIVITY
    assert vector.all()
    faults.missing_clip(monkeypatch)
    assert np.linalg.norm(of_record(kind())) > 2 * SENSITIVITY


ROUNDS = 12  # of asking, leaving and coming back
CODE = 64  # dimensions of a trial's place, which is far from all others (below)


class RefillsWhenAdded(Teacher):
    """A record that comes again starts anew."""

    def add(self, records: Records) -> None:
        super().add(records)
        budgets = self._ledger.individual_budgets
        budgets.spent[0][budgets.serials(records.ids)] = 0


def teacher_bound(make: type[Teacher], folder: Path, trials: int) -> tuple[float, float]:
    """(lower bound, claim) for a teacher's records that leave and come back between rounds.

    Each trial has its own place, with or without a record: no query selects a record of another
    place.
    """
    places = np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.float32), (trials, CODE))
    assert (np.sort(places @ places.T, axis=1)[:, -2] < 0.9 * CODE).all()
    plan = Plan(1e9, 1e-5, (Slot(COUNTING.fields(), COUNTING.releases(1, 1)),))

    def outcomes(added: bool) -> np.ndarray:
        directory = folder / f"{make.__name__} {added}"
        directory.mkdir(parents=True)
        known = Records(places, np.ones(trials, np.int64), np.arange(trials))
        here = known if added else Records(places[:0], known.labels[:0], known.ids[:0])
        ledger = Ledger.create(directory / "ledger.sqlite", dataset="d", plan=plan, unsafe=False)
        teacher = make(lambda: here, ledger, directory, 2, SystemEntropy())
        teacher.use_extractor(ExtractorSpec("raw", (CODE,), 2))
        counts = np.empty((trials, ROUNDS), dtype=np.int64)
        for number in range(ROUNDS):
            # another identity, the same direction
            asked = Queries(places * np.float32(1 + number / 16))
            teacher.answer(asked)
            keys = asked.identities(ledger.state.extractor, COUNTING.fields())
            counts[:, number] = [ledger.state.results[key][ANSWER][0] for key in keys]
            teacher.remove(known.ids)
            if added:
                teacher.add(known)
        return np.clip(counts + 8, 0, 16)

    bound = lower_bound(outcomes(False), outcomes(True), delta=WIDE, error=1 - SURE)
    slot = Slot(COUNTING.fields(), priced(COUNTING, ROUNDS, label=True))
    return bound, certified_epsilon(Plan(1.0, WIDE, (slot,)))


@pytest.mark.slow
def test_a_budget_that_fills_up_again_is_caught_through_the_teacher(tmp_path):
    bound, claim = teacher_bound(Teacher, tmp_path, 300)
    assert bound <= claim
    attempts = (
        teacher_bound(RefillsWhenAdded, tmp_path / folder, 1000) for folder in ("first", "again")
    )
    assert any(bound > claim for bound, claim in attempts)


def test_the_command_audits_the_plan_of_a_ledger(tmp_path, capsys, monkeypatch):
    mechanism = SAMPLED
    plan = Plan(100.0, PROBE_DELTA, (Slot(mechanism.fields(), mechanism.releases(5, 5)),))
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, dataset="d", plan=plan, unsafe=False)
    command = ["audit", "--empirical", str(path), "--trials", "2000", "--confidence", str(SURE)]
    assert pipeline.main([*command, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)  # the probe has this plan's parameters
    assert shown["mechanism"] == mechanism.fields()
    assert shown["refuted"] is False
    assert [release["release"] for release in shown["releases"]] == [SCREEN, AGGREGATE, JOINT]
    assert all(0 <= release["lower_bound"] <= release["claim"] for release in shown["releases"])
    monkeypatch.setitem(registry.MECHANISMS, "private_knn", faults.SilentWhenEmpty)
    assert pipeline.main(command) == 3
    assert "REFUTED" in capsys.readouterr().out
