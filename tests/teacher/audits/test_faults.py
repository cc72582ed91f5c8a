"""The statistical audit refutes planted faults.

These tests depend on chance. Silence: a false alarm needs a bound to be wrong, and bounds are wrong
with probability 2.5e-8 an audit. Power: the bounds of faults lie many of their deviations above the
claims, and a fault is missed only if two attempts miss it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from labelwall.teacher.audits import votes as votes_audit
from labelwall.teacher.audits.cases import PROBE_DELTA, audit
from labelwall.teacher.audits.conversations import ALONE, ANSWERED, COUNT, CROWDED
from labelwall.teacher.audits.harness import EmpiricalFinding
from labelwall.teacher.audits.votes import JOINT
from labelwall.teacher.mechanisms.attributes import (
    GRID,
    GnmaxAttributes,
)
from labelwall.teacher.mechanisms.ind_knn import LABEL_NOISE
from labelwall.teacher.mechanisms.pate import ConfidentGnmax, Gnmax, Lnmax
from labelwall.teacher.mechanisms.sums import PrivateLinearAttributes
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.teacher.mechanisms.votes import AGGREGATE, SCREEN, NaiveKnn, PrivateKnn
from labelwall.wall.unit import Unit
from tests.teacher.audits import faults
from tests.teacher.audits.faults import drawing, half_on, of_kind, silent, weak
from tests.teacher.audits.settings import (
    ATTRIBUTES,
    BALL,
    CELLS,
    CERTAIN,
    COUNTING,
    CURIOUS,
    DENSE,
    KINDS,
    LABELLING,
    MEAN,
    PERSONS,
    RADIUS,
    SAMPLED,
    SCREENED,
    SLOW_PERSONS,
    SMALL_SIGMA,
    SURE,
    WIDE,
    Plant,
    marked,
    probe,
)

pytestmark = pytest.mark.fresh_noise


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


def one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of a whole query has one: nothing else is broken."""
    monkeypatch.setattr(votes_audit, "QUERIES", 1)


def of_persons(name: str, plant: Plant) -> Fault:
    mechanism, releases = PERSONS[name]
    trials = 2000 if name in SLOW_PERSONS else 20_000
    return Fault(mechanism, trials, releases, plant=plant, unit="person", slow=trials == 2000)


FAULTS: dict[str, Fault] = {
    **{
        f"private_knn: half the noise, {name}": Fault(
            drawing(PrivateKnn(**SAMPLED)), 40_000, (part,), slow=True
        )
        for name, part in (("aggregate", AGGREGATE), ("screen", SCREEN))
    },
    "private_knn: with replacement": screened(
        faults.WithReplacement, SCREEN, SAMPLED, 0.02, 40_000
    ),
    "private_knn: one sample": replace(
        screened(faults.OneSample, JOINT, SMALL_SIGMA, 0.002, 200_000), plant=one_query
    ),
    **{
        f"private_knn: silent, {name}": screened(faults.SilentWhenEmpty, part, CERTAIN, 0.01, 4000)
        for name, part in (("screen", SCREEN), ("aggregate", AGGREGATE))
    },
    "private_radius: twice": Fault(BALL, 20_000, plant=faults.twice, slow=True),
    "private_radius: everybody": Fault(BALL, 20_000, plant=faults.everybody, slow=True),
    **{
        f"{kind.kind}: half the noise": Fault(drawing(probe(kind)), 30_000, (part,))
        for kind, part in (
            (NaiveKnn, AGGREGATE),
            (Lnmax, AGGREGATE),
            (Gnmax, AGGREGATE),
            (ConfidentGnmax, SCREEN),
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
        weak(drawing(PrivateKnnMean(**SCREENED), half_on(SCREEN))), 20_000
    ),
    "median: twice the rate": Fault(
        weak(drawing(PrivateKnnMedian(sigma_screen=30.0, epsilon=1.5), lambda s, _: s, 2)), 10_000
    ),
    "mean: divides by the neighbours": Fault(
        weak(faults.TrueMean(k=20, sigma_screen=30.0, sigma_mean=2.0)), 5000
    ),
    "mean: silent": Fault(weak(silent(MEAN)), 5000),
    "mean: no noise on the screening": Fault(
        weak(drawing(PrivateKnnMean(**SCREENED), lambda s, r: 0.0 if r == SCREEN else s)), 5000
    ),
    "reverse_knn: half the noise": Fault(drawing(CELLS), 20_000),
    "reverse_knn: silent": Fault(faults.SilentCells(**vars(CELLS)), 20_000),
    "reverse_knn: every cell": Fault(faults.EveryCell(**vars(CELLS)), 20_000),
    **{
        f"{kind.kind}: {name}": Fault(mechanism, 8000, slow=name != "twice" and kind in KINDS[1:])
        for kind in KINDS
        for name, mechanism in {
            "half the noise": drawing(kind(sigma=1.0)),
            "counted exactly": of_kind(faults.CountedExactly, kind),
            "silent first": of_kind(faults.SilentFirst, kind),
            "twice": of_kind(faults.Twice, kind),
        }.items()
    },
    **{
        f"{kind.kind}: missing clip": Fault(kind(sigma=1.0), 8000, plant=faults.missing_clip)
        for kind in KINDS
    },
    "private_linear_attributes: clip by attribute": Fault(
        PrivateLinearAttributes(sigma=1.0), 8000, plant=faults.clip_by_attribute
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
def test_a_planted_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    if fault.plant is not None:
        fault.plant(monkeypatch)
    if fault.releases and fault.releases[0].startswith("batch of"):
        monkeypatch.setattr(votes_audit, "BATCH_SIZES", (int(fault.releases[0][-1]),))
    options: dict[str, Any] = {"delta": fault.delta, "releases": fault.releases, "unit": fault.unit}
    attempts: list[EmpiricalFinding] = []
    while len(attempts) < 2 and not (attempts and attempts[-1].refuted):
        attempts.append(audit(fault.mechanism, trials=fault.trials, confidence=SURE, **options))
    assert attempts[-1].refuted, [attempt.render() for attempt in attempts]
