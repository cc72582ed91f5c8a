"""The statistical audit refutes planted faults, and no real mechanism. A false alarm needs a bound
to be wrong, with probability 2.5e-8 an audit; a fault is missed only if two attempts miss it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from labelwall.teacher.audits import draws
from labelwall.teacher.audits.cases import PROBE_DELTA, audit, cases, probes
from labelwall.teacher.audits.conversations import ALONE, ANSWERED, COUNT, CROWDED
from labelwall.teacher.audits.draws import JOINT
from labelwall.teacher.audits.harness import EmpiricalFinding
from labelwall.teacher.mechanisms import sums, votes
from labelwall.teacher.mechanisms.attributes import GRID, GnmaxAttributes, PrivateKnnAttributes
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch import BatchKnn, RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import LABEL_NOISE, IndKnn
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.wall.guarantee import Unit
from tests.teacher.audits import faults
from tests.teacher.audits.faults import SUMS, SURE, WIDE, drawing, half_on, of_kind, silent, weak

pytestmark = pytest.mark.fresh_noise
TABLES = (sums.ScoreTables, sums.ScoreTablesAttributes)
SCORES = (sums.Score, sums.ScoreAttributes, sums.ScoreValue, *TABLES)
Plant = Callable[[pytest.MonkeyPatch], None]

# Parameters at which the audit sees much in few trials.
GAMMA: dict[str, Any] = {"sample_rate": 0.5}
SAMPLED = vars(probes(votes.PrivateKnn())[0][0])
CERTAIN: dict[str, Any] = SAMPLED | {"threshold": 1, "sample_rate": 1.0}
SMALL = {"k": 1, "threshold": 0, "sigma_screen": 0.35, "sigma_vote": 0.85}
SMALL_SIGMA: dict[str, Any] = SMALL | {"sample_rate": 0.04}
CELLS = sums.ReverseKnn(centroids=3, neighbours=1, sigma=1.0)
BALL = votes.PrivateRadius(threshold=2, sigma_screen=1.0, sigma_vote=1.0, **GAMMA)
RADIUS = RadiusNeighbours(epsilon=2.0)
CURIOUS = BatchKnn(k=1, records=12, epsilon=2.0, conversion="interactive")
ATTRIBUTES = PrivateKnnAttributes(tau=1, k=1, sigma_vote=2.0, sample_rate=1.0)
COUNTING, LABELLING, DENSE = (probe for probe, _ in probes(IndKnn(threshold=0.9)))
MEAN = PrivateKnnMean(sigma_screen=30.0, sigma_mean=2.0)
SCREENED = {"threshold": 2, "sigma_screen": 1.0, "sigma_mean": 10.0}


def probe(kind: type[Mechanism]) -> Any:
    """The mechanism with little noise."""
    ((mechanism, _),) = probes(kind())
    return mechanism


PERSONS: dict[str, tuple[Mechanism, tuple[str, ...]]] = {
    "private_knn": (
        votes.PrivateKnn(k=4, threshold=2, sigma_screen=1.0, sigma_vote=1.0, **GAMMA),
        (votes.SCREEN, votes.AGGREGATE),
    ),
    "private_radius": (
        votes.PrivateRadius(threshold=2, sigma_screen=0.7, sigma_vote=0.7, **GAMMA),
        (votes.SCREEN, votes.AGGREGATE),
    ),
    "naive_knn": (votes.NaiveKnn(k=4, sigma_vote=1.0), ()),
    "attributes": (PrivateKnnAttributes(tau=1, k=1, sigma_vote=1.5, **GAMMA), ()),
    "mean": (PrivateKnnMean(k=2, sigma_mean=0.7, sigma_screen=2.0, **GAMMA), ()),
    "median": (
        PrivateKnnMedian(k=3, epsilon=2.0, sigma_screen=2.0, cells=4, window=1, **GAMMA),
        (),
    ),
    "reverse_knn": (sums.ReverseKnn(centroids=6, neighbours=2, sigma=2.0).for_unit("person"), ()),
    "whole_votes": (sums.ReverseKnn(centroids=6, neighbours=2, sigma=2.0), ()),
    **{str(kind.kind): (kind(sigma=2.0).for_unit("person"), ()) for kind in SCORES},
    "private_linear": (sums.PrivateLinear(noise_multiplier=1.0).for_unit("person"), ()),
    "averages": (sums.PrivateLinear(noise_multiplier=1.0), ()),
    "attributes_sums": (sums.PrivateLinearAttributes(noise_multiplier=1.0).for_unit("person"), ()),
    "value_sums": (sums.PrivateLinearValue(noise_multiplier=1.0, gain=3), ()),
    "radius": (RadiusNeighbours(radius=0.1, epsilon=2.0), ()),
    "batch_knn": (CURIOUS, ()),
    "ind_knn": (IndKnn(threshold=0.5, sigma_count=1.0, sigma_label=0.2, rho=0.5), (COUNT,)),
    "gnmax": (votes.Gnmax(teachers=2, sigma_vote=1.0), ()),
}
SLOW_PERSONS = ("radius", "batch_knn", "private_knn", "private_radius", "ind_knn")


def marked(name: str, slow: bool) -> Any:
    return pytest.param(name, marks=[pytest.mark.slow] * slow)


# (mechanism, delta, trials, releases, slow): real ones, among them all published batch algorithms.
REAL: dict[str, tuple[Mechanism, float, int, tuple[str, ...], bool]] = {
    "private_knn, sampled": (votes.PrivateKnn(**SAMPLED), 0.02, 4000, (), False),
    "private_knn, certain": (votes.PrivateKnn(**CERTAIN), 0.01, 4000, (), True),
    "private_knn, little noise": (votes.PrivateKnn(**SMALL_SIGMA), 0.002, 10_000, (), True),
    "private_knn, small delta": (votes.PrivateKnn(**SAMPLED), 1e-4, 4000, (), True),
    "private_radius": (BALL, PROBE_DELTA, 4000, (), True),
    **{
        name: (replace(mechanism, **changes), PROBE_DELTA, 600, (), "own clique" in name)
        for name, mechanism, changes in (
            ("algorithm 1", RADIUS, {"noise": "laplace", "accounting": "queries"}),
            ("algorithm 2", RADIUS, {"noise": "exponential_paper", "accounting": "queries"}),
            ("algorithm 3", RADIUS, {"noise": "laplace", "accounting": "component"}),
            ("algorithm 3 by own clique", RADIUS, {"noise": "laplace", "accounting": "local"}),
            (
                "algorithm 3 by exponential noise",
                RADIUS,
                {"noise": "exponential", "accounting": "component"},
            ),
            ("algorithm 4", CURIOUS, {"conversion": "none"}),
            ("algorithms 5 and 6 by own clique", CURIOUS, {}),
            (
                "algorithms 5 and 6",
                CURIOUS,
                {"candidate_accounting": "queries", "accounting": "component"},
            ),
        )
    },
    **{
        kind: (probe(MECHANISMS[kind]), PROBE_DELTA, 4000, (), False)
        for kind in MECHANISMS
        if kind not in ("private_knn", "private_radius", "radius", "batch_knn", "ind_knn")
    },
    "algorithms 5 and 7": (replace(CURIOUS, conversion="grid"), PROBE_DELTA, 250, (), False),
    "counts": (COUNTING, PROBE_DELTA, 1500, (COUNT,), True),
    "a record alone": (COUNTING, PROBE_DELTA, 4800, (ALONE,), True),
    "labels": (LABELLING, PROBE_DELTA, 1500, (ANSWERED,), True),
    "a crowd": (DENSE, PROBE_DELTA, 1200, (CROWDED,), True),
}


@pytest.mark.parametrize("name", [marked(name, entry[-1]) for name, entry in REAL.items()])
def test_a_real_mechanism_is_not_refuted(name):
    mechanism, delta, trials, releases, _ = REAL[name]
    found = audit(mechanism, delta=delta, trials=trials, releases=releases, confidence=SURE)
    assert not found.refuted, found.render()
    every = [case.release for case in cases(mechanism)]
    assert [release.release for release in found.releases] == list(releases or every)


@pytest.mark.parametrize(
    "name", [marked(name, name in (*SLOW_PERSONS, "median")) for name in PERSONS]
)
def test_a_real_mechanism_of_persons_is_not_refuted(name):
    mechanism, releases = PERSONS[name]
    trials = 1000 if name in SLOW_PERSONS else 20_000
    options: dict[str, Any] = {"delta": PROBE_DELTA, "releases": releases, "confidence": 0.9999}
    found = audit(mechanism, trials=trials, unit="person", **options)
    assert not found.refuted, found.render()
    if name in ("naive_knn", "attributes", "reverse_knn", "private_linear", "gnmax"):
        rows = audit(mechanism, trials=trials, **options)
        for person, row in zip(found.releases, rows.releases, strict=True):
            assert person.lower_bound > 0.5 * row.lower_bound - 0.3


# --- planted faults ---


@dataclass(frozen=True)
class Fault:
    """A mechanism that is broken, or that a ``plant`` breaks, and where the audit sees it."""

    mechanism: Any
    trials: int
    releases: tuple[str, ...] = ()
    delta: float = PROBE_DELTA
    plant: Plant | None = None
    unit: Unit = "row"
    slow: bool = False


def screened(kind: Any, part: str, setting: dict[str, Any], delta: float, trials: int) -> Fault:
    return Fault(kind(**setting), trials, (part,), delta, slow=True)


def one_query(monkeypatch) -> None:
    """A trial of a whole query has one: nothing else is broken."""
    monkeypatch.setattr(draws, "QUERIES", 1)


def of_persons(name: str, plant: Plant) -> Fault:
    mechanism, releases = PERSONS[name]
    trials = 2000 if name in SLOW_PERSONS else 20_000
    return Fault(mechanism, trials, releases, plant=plant, unit="person", slow=trials == 2000)


FAULTS: dict[str, Fault] = {
    **{
        f"private_knn: half the noise, {name}": Fault(
            drawing(votes.PrivateKnn(**SAMPLED)), 40_000, (part,), slow=True
        )
        for name, part in (("aggregate", votes.AGGREGATE), ("screen", votes.SCREEN))
    },
    "private_knn: with replacement": screened(
        faults.WithReplacement, votes.SCREEN, SAMPLED, 0.02, 40_000
    ),
    "private_knn: one sample": replace(
        screened(faults.OneSample, JOINT, SMALL_SIGMA, 0.002, 200_000), plant=one_query
    ),
    **{
        f"private_knn: silent, {name}": screened(faults.SilentWhenEmpty, part, CERTAIN, 0.01, 4000)
        for name, part in (("screen", votes.SCREEN), ("aggregate", votes.AGGREGATE))
    },
    "private_radius: twice": Fault(BALL, 20_000, plant=faults.twice, slow=True),
    "private_radius: everybody": Fault(BALL, 20_000, plant=faults.everybody, slow=True),
    **{
        f"{kind.kind}: half the noise": Fault(drawing(probe(kind)), 30_000, (part,))
        for kind, part in (
            (votes.NaiveKnn, votes.AGGREGATE),
            (votes.Lnmax, votes.AGGREGATE),
            (votes.Gnmax, votes.AGGREGATE),
            (votes.ConfidentGnmax, votes.SCREEN),
        )
    },
    "attributes: half, kNN": Fault(drawing(ATTRIBUTES), 40_000),
    "attributes: half, PATE": Fault(
        drawing(replace(probe(GnmaxAttributes), sigma_vote=2.0)), 40_000
    ),
    "attributes: unclipped": Fault(faults.Unclipped(**vars(ATTRIBUTES)), 40_000),
    "attributes: coarse": Fault(drawing(ATTRIBUTES, lambda scale, _: scale / GRID), 5000),
    "attributes: silent": Fault(silent(ATTRIBUTES), 5000),
    "mean: half the noise, mean": Fault(weak(drawing(MEAN)), 40_000),
    "mean: half the noise, screening": Fault(
        weak(drawing(PrivateKnnMean(**SCREENED), half_on(votes.SCREEN))), 20_000
    ),
    "median: twice the rate": Fault(
        weak(drawing(PrivateKnnMedian(sigma_screen=30.0, epsilon=1.5), lambda s, _: s, 2)), 10_000
    ),
    "mean: divides by the neighbours": Fault(
        weak(faults.TrueMean(k=20, sigma_screen=30.0, sigma_mean=2.0)), 5000
    ),
    "mean: silent": Fault(weak(silent(MEAN)), 5000),
    "mean: no noise on the screening": Fault(
        weak(drawing(PrivateKnnMean(**SCREENED), lambda s, r: 0.0 if r == votes.SCREEN else s)),
        5000,
    ),
    "reverse_knn: half the noise": Fault(drawing(CELLS), 20_000),
    "reverse_knn: silent": Fault(faults.SilentCells(**vars(CELLS)), 20_000),
    "reverse_knn: every cell": Fault(faults.EveryCell(**vars(CELLS)), 20_000),
    **{
        f"{kind.kind}: {name}": Fault(mechanism, 20_000)
        for kind in SCORES
        for name, mechanism in {
            "half the noise": drawing(kind(sigma=1.0)),
            "twice": of_kind(faults.Twice, kind),
        }.items()
    },
    **{
        f"{kind.kind}: {name}": Fault(mechanism, 8000, slow=name != "twice" and kind in SUMS[1:])
        for kind in SUMS
        for name, mechanism in {
            "half the noise": drawing(kind(noise_multiplier=1.0)),
            "counted exactly": of_kind(faults.CountedExactly, kind),
            "silent first": of_kind(faults.SilentFirst, kind),
            "twice": of_kind(faults.Twice, kind),
        }.items()
    },
    **{
        f"{kind.kind}: the noise of the period before": Fault(
            of_kind(faults.Reused, kind), 2000, (draws.NEXT_PERIOD,)
        )
        for kind in SUMS
    },
    **{
        f"{kind.kind}: missing clip": Fault(
            kind(noise_multiplier=1.0), 8000, plant=faults.missing_clip
        )
        for kind in SUMS
    },
    "private_linear_attributes: clip by attribute": Fault(
        sums.PrivateLinearAttributes(noise_multiplier=1.0), 8000, plant=faults.clip_by_attribute
    ),
    "radius: half the noise": Fault(drawing(RADIUS, faults.half, 2), 4500, ("batch of 1",)),
    "radius: silent": Fault(faults.SilentBatch(epsilon=2.0), 600, ("batch of 1",)),
    **{
        f"radius: unpaid clique, {noise}": Fault(
            replace(RADIUS, noise=noise),
            3000,
            ("batch of 4",),
            plant=faults.unpaid_clique,
            slow=noise == "exponential",
        )
        for noise in ("laplace", "exponential")
    },
    "batch_knn: exact radii, interactive": Fault(drawing(CURIOUS, faults.exact_radii), 600),
    "batch_knn: exact radii, grid": Fault(
        drawing(replace(CURIOUS, conversion="grid"), faults.exact_radii), 250, slow=True
    ),
    "ind_knn: half on counts": Fault(
        drawing(COUNTING, half_on("count")), 8000, (COUNT,), slow=True
    ),
    "ind_knn: half on labels": Fault(
        drawing(LABELLING, half_on(LABEL_NOISE)), 14_000, (ANSWERED,), WIDE, slow=True
    ),
    "ind_knn: silent": Fault(
        faults.SilentNeighbourhood(**vars(COUNTING)), 2000, (COUNT,), slow=True
    ),
    "ind_knn: nobody pays": Fault(
        faults.NobodyPays(**vars(COUNTING)), 1000 * 16, (ALONE,), WIDE, slow=True
    ),
    "ind_knn: charges after the batch": Fault(
        faults.ChargesAfterTheBatch(**vars(COUNTING)), 1600 * 16, (ALONE,), WIDE, slow=True
    ),
    "ind_knn: not scaled": Fault(
        drawing(DENSE, faults.not_scaled(DENSE)), 2000 * 4, (CROWDED,), slow=True
    ),
    **{
        f"persons, {name}: {plant.__name__}": of_persons(name, plant)
        for plant, names in {
            faults.second_ballots: ("private_knn", "naive_knn"),
            faults.unclipped_cells: ("reverse_knn", "whole_votes"),
            faults.unclipped_gradients: (
                "private_linear",
                "averages",
                "attributes_sums",
                "value_sums",
            ),
            faults.shards_by_row: ("reverse_knn", "private_linear", "radius"),
            faults.counted_by_row: ("ind_knn",),
        }.items()
        for name in names
    },
}


@pytest.mark.parametrize("name", [marked(name, fault.slow) for name, fault in FAULTS.items()])
def test_a_planted_fault_is_caught(name, monkeypatch):
    fault = FAULTS[name]
    if fault.plant is not None:
        fault.plant(monkeypatch)
    if fault.releases and fault.releases[0].startswith("batch of"):
        monkeypatch.setattr(draws, "BATCH_SIZES", (int(fault.releases[0][-1]),))
    options: dict[str, Any] = {"delta": fault.delta, "releases": fault.releases, "unit": fault.unit}
    attempts: list[EmpiricalFinding] = []
    while len(attempts) < 2 and not (attempts and attempts[-1].refuted):
        attempts.append(audit(fault.mechanism, trials=fault.trials, confidence=SURE, **options))
    assert attempts[-1].refuted, [attempt.render() for attempt in attempts]
