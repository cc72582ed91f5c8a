"""What every registered mechanism must do, by the cases of tests/teacher/shards/tiny.py, and a
mechanism's defaults where it has none."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.experiment.plan.candidates import PLANNERS
from labelwall.experiment.plan.planner import Forecast, Goal, RehearsalRows, View
from labelwall.teacher.accounting.accountant import require_affordable
from labelwall.teacher.accounting.curves import ORDERS, release_rdp
from labelwall.teacher.audits.cases import ATTACKS, PROBE_DELTA, probes
from labelwall.teacher.audits.cases import audit as run_audit
from labelwall.teacher.classifiers.linear_ensemble import KEY, KEY_BYTES, Ensemble
from labelwall.teacher.ledger.auditor.mechanisms import KINDS
from labelwall.teacher.ledger.auditor.mechanisms import priced as audited_price
from labelwall.teacher.mechanisms.base import Charging, Mechanism
from labelwall.teacher.mechanisms.registry import MECHANISMS, from_slot
from labelwall.teacher.noise.entropy import Entropy, SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.teacher import Teacher
from labelwall.wall.datasets.data_config import Task
from labelwall.wall.errors import InvalidInput, LedgerMismatch, TeacherFailed
from labelwall.wall.label_kinds import STEPS
from labelwall.wall.progress import no_progress
from labelwall.wall.questions import SumsForm
from tests.make import Watched
from tests.seeded_noise import SeededNoise
from tests.teacher.service.tiny import clients, make
from tests.teacher.shards import tiny
from tests.teacher.shards.tiny import ask

CASES: dict[str, Mechanism] = dict(tiny.MECHANISMS)
for kind, known in MECHANISMS.items():
    if kind not in {str(case.kind) for case in CASES.values()}:
        CASES[kind] = known().with_noise(1.0, 1000)
ASKED = 1000
BUDGET = 1e9, 1e-5  # for plans whose price does not matter here

pytestmark = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def cases(monkeypatch) -> None:
    for name, mechanism in CASES.items():
        monkeypatch.setitem(tiny.MECHANISMS, name, mechanism)


def teacher(
    folder: Path, name: str, entropy: Entropy | None = None, n: int = 400, **more: Any
) -> Teacher:
    answering = tiny.ready(folder, name, tiny.records_of(name, n), **more)
    answering._entropy = entropy or answering._entropy
    return answering


PARAMETERS = {
    "inclusion": "sample_rate",
    "discrete_gaussian": "sigma",
    "discrete_laplace": "scale",
    "choose": "choice",
}


class Witness(Watched):
    """The system's entropy, which notes scales and numbers of queries by release."""

    def __init__(self) -> None:
        super().__init__(self._note)
        self.unsafe = True  # so that the tests' ledgers take it
        self.drawn = set[tuple[str, str, float]]()
        self.queries = Counter[str]()  # in the order of the first draws

    def _note(self, law: str, first: Any, keys: list[str], release: str) -> None:
        self.drawn.add((release, PARAMETERS[law], math.nan if law == "choose" else first))
        if law != "inclusion":
            self.queries[release] += len(keys)


def fails_at(n: int) -> Watched:
    """The tape, which fails at its n-th draw."""
    remaining = iter(range(n - 1, -1, -1))

    def count(*_: Any) -> None:
        if next(remaining, None) == 0:
            raise MemoryError("how much a private row needs")

    return Watched(count, SeededNoise(5))


def test_what_is_priced_is_what_is_drawn(tmp_path: Path, name: str) -> None:
    """Scales and sampling probabilities are those of the curves' parameters, and no others."""
    witness, mechanism = Witness(), CASES[name]
    ask(teacher(tmp_path, name, witness), name, tiny.queries())
    assert witness.drawn
    for release in mechanism.releases(ASKED, ASKED):
        drawn = {entry[1:] for entry in witness.drawn if entry[0] == release.name}
        priced = release.parameters
        gamma = priced.get("sample_rate", 1.0)
        required = {(each, priced[each]) for each in ("sigma", "scale") if each in priced}
        assert drawn >= required | ({("sample_rate", gamma)} if gamma < 1 else set())
        scales = {value for kind, value in drawn if kind in ("sigma", "scale")}
        assert scales <= set(priced.values())


def test_no_records_get_the_noise_that_records_get(tmp_path: Path, name: str) -> None:
    """For as many queries; where they are screened, in the screening."""
    counted = []
    for n in (400, 0):
        witness = Witness()
        ask(teacher(tmp_path / str(n), name, witness, n=n), name, tiny.queries())
        counted.append(witness.queries)
    full, empty = counted
    first = next(iter(full))
    assert 0 < full[first] == empty[first]
    assert len(CASES[name].stages) > 1 or full == empty


def test_noise_that_is_left_out_follows_from_one_level(name: str) -> None:
    """More of it costs no more, and given numbers stay (teacher/mechanisms/calibration.py)."""
    mechanism = CASES[name]
    assert mechanism.with_noise(1.0, ASKED) == mechanism
    bare = replace(mechanism, **dict.fromkeys(mechanism.calibrated))
    assert bare.uncalibrated
    with pytest.raises(InvalidInput, match="solved from the budget"):
        bare.releases(ASKED, ASKED)
    costs = []
    for level in (1e-12, 0.5, 3.0, 40.0, 1e12):
        noisy = bare.with_noise(level, ASKED)
        assert not noisy.uncalibrated
        assert noisy.recorded({}) == noisy
        assert bare.recorded(noisy.fields()) == noisy
        costs.append([release_rdp(r, ORDERS[10:12]) for r in noisy.releases(ASKED, ASKED)])
    for less, more in pairwise(costs):
        assert all((a >= b).all() for a, b in zip(less, more, strict=True))


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_interrupted_call_resumes(tmp_path: Path, name: str, step: int) -> None:
    """What was charged stays charged, and what a prepaid batch had reserved stays paid, so that
    later answers are others."""
    rows = tiny.queries(20)
    expected, plain = ask(teacher(tmp_path / "plain", name), name, rows)
    broken = teacher(tmp_path / "broken", name, fails_at(step))
    failures: list[str] = []
    try:
        ask(broken, name, rows)
    except TeacherFailed as error:
        failures.append(str(error))
    assert not any("private row" in failure for failure in failures)
    assert any(broken._ledger.state.spent.values())
    resumed = teacher(tmp_path / "broken", name)
    answers, receipt = ask(resumed, name, rows)
    assert answers == expected or CASES[name].charging is Charging.PREPAID
    assert all(receipt.left[stage] <= plain.left[stage] for stage in plain.left)
    again, free = ask(resumed, name, rows)
    assert again == answers
    assert not any(free.charged.values())


class Stop(Exception):
    """A search of the records that fails, and says how many there are."""


def searches(monkeypatch: pytest.MonkeyPatch, seen: Callable[[], None]) -> None:
    """Call ``seen`` before each search of the records, or vote of classifiers on them."""
    for owner, name in (
        (ExactIndex, "total"),
        (ExactIndex, "_search"),
        (ExactIndex, "similar"),
        (Ensemble, "votes"),
        (Ensemble, "attributes"),
    ):
        inner = getattr(owner, name)

        def watched(*known: Any, inner: Any = inner, **more: Any) -> Any:
            seen()
            return inner(*known, **more)

        monkeypatch.setattr(owner, name, watched)


def test_records_are_counted_before_the_charge(tmp_path: Path, name: str, monkeypatch) -> None:
    """Between a charge and its record are draws alone; where a radius is one, balls, too."""
    answering, open_charges = teacher(tmp_path, name), list[bool]()
    searches(monkeypatch, lambda: open_charges.append(bool(answering._ledger.state.lost())))
    ask(answering, name, tiny.queries(20))
    assert open_charges
    radii_are_drawn = getattr(CASES[name], "conversion", "none") != "none"
    assert any(open_charges) == radii_are_drawn
    assert answering._ledger.state.lost() == {}


def test_a_count_that_fails_costs_nothing_and_tells_nothing(
    tmp_path: Path, name: str, monkeypatch
) -> None:
    """And where the cap refuses a call, it does so before anything is counted."""
    answering = teacher(tmp_path, name)

    def stop() -> None:
        raise Stop("400 private rows")

    with monkeypatch.context() as patched:
        searches(patched, stop)
        with pytest.raises(TeacherFailed) as failed:
            ask(answering, name, tiny.queries(20))
    assert "private rows" not in str(failed.value)
    if getattr(CASES[name], "conversion", "none") == "none":
        assert not any(answering._ledger.state.spent.values())
    if CASES[name].charging is Charging.PREPAID:
        return  # no cap
    capped = tiny.ready(tmp_path / "capped", name, tiny.records_of(name), asked=1)
    rows = tiny.queries(1)
    ask(capped, name, rows)
    searches(monkeypatch, stop)
    first, *_ = CASES[name].stages
    assert capped._ledger.state.remaining(0, first) == 0
    ask(capped, name, rows + 1, seed=3)
    assert len(capped._ledger.state.refused) == 1


def test_duplicates_are_free(tmp_path: Path, name: str) -> None:
    answering = teacher(tmp_path, name)
    rows = np.concatenate([tiny.queries(5), tiny.queries(5)])
    first, paid = ask(answering, name, rows)
    again, free = ask(answering, name, rows)
    assert again == first
    assert not any(free.charged.values())
    assert free.ledger_head == paid.ledger_head
    if CASES[name].charging is Charging.PER_QUERY:
        assert max(paid.charged.values()) <= 5


@pytest.mark.parametrize("unit", ["row", "person"])
def test_queries_alike_in_features_are_answered_as_alone(tmp_path, name, unit) -> None:
    """x and 2x are one query to the index, whichever calls they come in. Noise is by input."""
    if tiny.matrix(CASES[name]) is not None or CASES[name].charging is Charging.PER_BATCH:
        pytest.skip("it answers no rows by themselves")
    if unit == "person" and not CASES[name].persons:
        pytest.skip("its price holds for rows alone")
    x = tiny.queries(6)
    alike = np.concatenate([x, 2 * x, 4 * x[:2], 8 * x[:2]])
    alike = alike[np.random.default_rng(3).permutation(len(alike))]
    records = tiny.records_of(name, 60, unit)
    alone, together = (tiny.ready(tmp_path / each, name, records, unit=unit) for each in "ab")
    expected = [ask(alone, name, row[np.newaxis])[0] for row in alike]
    found = [ask(together, name, rows)[0] for rows in np.split(alike, [4, 5, 9, 10, 14])]
    for place in (0, 1):  # labels, outcomes
        joined = [*chain.from_iterable(answers[place] for answers in found)]
        assert joined == [*chain.from_iterable(answers[place] for answers in expected)]
    assert together._ledger.state.results == alone._ledger.state.results


def test_only_labels_of_the_label_space_come_in(tmp_path: Path, name: str) -> None:
    answering = teacher(tmp_path, name)
    values = {"class": tiny.CLASSES, "attributes": 1 << tiny.CLASSES, "value": STEPS + 1}
    largest = values[CASES[name].label_space] - 1
    row, ids = np.ones((1, tiny.DIMENSIONS), dtype=np.float32), np.array([10**6])
    for label in (-1, largest + 1):
        with pytest.raises(InvalidInput, match=r"`records\.labels`"):
            answering.add(Records(row, np.array([label]), ids))
    assert not answering.present(ids).any()
    answering.add(Records(row, np.array([largest]), ids))
    assert answering.present(ids).all()


@pytest.mark.parametrize(
    ("unit", "counts"), [("row", (0, 1, 3)), ("person", (0, 1, 2, 5, 16))], ids=["row", "person"]
)
def test_any_number_of_shards_gives_the_same_bytes(tmp_path, name, unit, counts) -> None:
    if unit == "person" and not CASES[name].persons:
        pytest.skip("its price holds for rows alone")
    records = tiny.records_of(name, unit=unit)
    expected, *others = (
        tiny.asked(tiny.ready(tmp_path / str(count), name, records, count, unit), name)
        for count in counts
    )
    assert others == [expected] * len(others)


def test_a_service_answers_as_the_process_does(tmp_path: Path, name: str) -> None:
    task, records = Task(tiny.space_of(name), (tiny.DIMENSIONS,)), tiny.records_of(name)
    expected, here = ask(teacher(tmp_path / "process", name), name, tiny.queries())
    made = make(
        tmp_path / "service",
        mechanism=CASES[name],
        records=lambda: records,
        task=task,
        entropy=SeededNoise(5),
        certified=None,
    )
    (tmp_path / "service" / KEY).write_bytes(bytes(range(KEY_BYTES)))
    with clients(made, "ann", spec=tiny.spec_of(name)) as remote:
        answers, there = ask(remote, name, tiny.queries())
    assert answers == expected
    assert replace(there, ledger_head="") == replace(here, ledger_head="")  # of random data sets


def test_every_room_knows_the_kind(name: str) -> None:
    kind = CASES[name].kind
    rooms = {
        "teacher/ledger/auditor/mechanisms.py: KINDS": KINDS,
        "teacher/audits/cases.py: ATTACKS": ATTACKS,
        "experiment/plan/candidates.py: PLANNERS": PLANNERS,
    }
    assert [room for room, table in rooms.items() if kind not in table] == []


def test_a_planner_finds_what_is_affordable(name: str) -> None:
    search = PLANNERS[CASES[name].kind]
    if search is None:
        pytest.skip("has no planner")
    view = View("raw", 0, 3, 3, 150, 3, 5000)
    public = RehearsalRows(lambda: (view,), lambda *_: Forecast(1.0, 0.7, 0.01))
    goal = Goal(2.0, 1e-5, 5000, 60, 1)
    optimum = search.plan(CASES[name], goal, public, no_progress)
    require_affordable(optimum.chosen.plan(goal))
    assert optimum.chosen.epsilon <= goal.epsilon
    assert 0 < optimum.chosen.accuracy <= 1


def test_the_ledgers_fields_make_it_again_and_the_auditor_agrees(tmp_path: Path, name: str) -> None:
    """Of a plan with another price they make nothing."""
    ledger = tiny.ledger_in(tmp_path, CASES[name], ASKED)
    assert ledger.state.plan is not None
    (slot,) = ledger.state.plan.slots
    assert from_slot(slot) == CASES[name]
    assert [priced.name for priced in audited_price(slot.mechanism)] == list(CASES[name].stages)
    for place, release in enumerate(slot.releases):
        (scale,) = {"sigma", "scale", "epsilon", "rho"} & set(release.parameters)
        halved = {**release.parameters, scale: release.parameters[scale] / 2}
        releases = list(slot.releases)
        releases[place] = replace(release, parameters=halved)
        with pytest.raises(LedgerMismatch, match="other releases"):
            from_slot(replace(slot, releases=tuple(releases)))


@pytest.mark.slow
def test_the_statistical_audit_finds_a_planted_fault(name: str, monkeypatch) -> None:
    """A quarter of the scale, and choices eight times as sharp; with less, GNMAX decides without
    chance."""
    for draw in ("discrete_gaussian", "discrete_laplace", "choose"):
        inner = getattr(SystemEntropy, draw)

        def less(self: Any, scale: Any, *rest: Any, inner: Any = inner) -> np.ndarray:
            if inner.__name__ == "choose":
                rates, *others = rest
                return inner(self, scale, [8 * rate for rate in rates], *others)
            return inner(self, scale / 4, *rest)

        monkeypatch.setattr(SystemEntropy, draw, less)
    findings = [
        run_audit(probe, delta=PROBE_DELTA, trials=4000, confidence=0.95, releases=parts)
        for probe, parts in probes(CASES[name])
    ]
    assert any(finding.refuted for finding in findings)


def test_what_it_declares_is_what_its_fields_and_releases_say(name: str) -> None:
    mechanism = CASES[name]
    assert mechanism.sampled == hasattr(mechanism, "sample_rate")
    assert mechanism.screened == (len(mechanism.stages) == 2)
    assert bool(mechanism.needs) == hasattr(mechanism, "teachers")
    assert mechanism.scores == mechanism.kind.startswith("score")
    assert mechanism.reuses == getattr(mechanism, "reuse", False)
    assert mechanism.leaves_classifier == isinstance(mechanism.query_form, SumsForm)
