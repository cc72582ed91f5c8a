"""The statistical audit of persons: faithful code passes as with rows, planted faults are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from labelwall.teacher.audits.as_persons import LATER, for_persons
from labelwall.teacher.audits.cases import audit as run_audit
from labelwall.teacher.audits.harness import PROBE_DELTA, EmpiricalFinding
from labelwall.teacher.mechanisms import counts, gradient
from labelwall.teacher.mechanisms.attributes import PrivateKnnAttributes
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch_knn import BatchKnn
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.naive_knn import NaiveKnn
from labelwall.teacher.mechanisms.pate import Gnmax
from labelwall.teacher.mechanisms.private_knn import PrivateKnn
from labelwall.teacher.mechanisms.private_linear import (
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
)
from labelwall.teacher.mechanisms.private_radius import PrivateRadius
from labelwall.teacher.mechanisms.radius import RadiusNeighbours
from labelwall.teacher.mechanisms.reverse_knn import ReverseKnn
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.teacher.search.by_person import ByPerson
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.search.kernels import Similar

GAMMA = {"sampling_probability": 0.5}
AUDITED: dict[str, tuple[Mechanism, tuple[str, ...]]] = {
    "private_knn": (
        PrivateKnn(k=4, threshold=2, sigma_screen=1.0, sigma_vote=1.0, sampling_probability=0.5),
        ("screen", "aggregate"),
    ),
    "private_radius": (
        PrivateRadius(threshold=2, sigma_screen=0.7, sigma_vote=0.7, sampling_probability=0.5),
        ("screen", "aggregate"),
    ),
    "naive_knn": (NaiveKnn(k=4, sigma_vote=1.0), ()),
    "attributes": (PrivateKnnAttributes(tau=1, k=1, sigma_vote=1.5, **GAMMA), ()),
    "mean": (PrivateKnnMean(k=2, sigma_mean=0.7, sigma_screen=2.0, threshold=None, **GAMMA), ()),
    "median": (
        PrivateKnnMedian(
            k=3, epsilon=2.0, sigma_screen=2.0, cells=4, threshold=None, window=1, **GAMMA
        ),
        (),
    ),
    "reverse_knn": (ReverseKnn(cells=6, neighbours=2, sigma=2.0).for_unit("person"), ()),
    "whole_votes": (ReverseKnn(cells=6, neighbours=2, sigma=2.0), ()),
    "private_linear": (PrivateLinear(sigma=1.0).for_unit("person"), ()),
    "averages": (PrivateLinear(sigma=1.0), ()),
    "attributes_sums": (PrivateLinearAttributes(sigma=1.0).for_unit("person"), ()),
    "value_sums": (PrivateLinearValue(sigma=1.0, gain=3), ()),
    "radius": (RadiusNeighbours(radius=0.1, epsilon=2.0), ()),
    "batch_knn": (BatchKnn(k=1, records=12, epsilon=2.0, conversion="interactive"), ()),
    "ind_knn": (IndKnn(threshold=0.5, sigma_count=1.0, sigma_label=0.2, rho=0.5), ("count",)),
    "gnmax": (Gnmax(teachers=2, sigma_vote=1.0), ()),
}


def audited(name: str, trials: int) -> EmpiricalFinding:
    mechanism, releases = AUDITED[name]
    people = for_persons(mechanism)
    assert people.fields() == mechanism.fields()
    return run_audit(people, delta=PROBE_DELTA, trials=trials, confidence=0.999, releases=releases)


SLOW = ("radius", "batch_knn", "private_knn", "private_radius", "ind_knn")
# As many as leave the bound no room to miss half of what it should show.
TRIALS = {**dict.fromkeys(SLOW, 1000), "mean": 80_000}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in (*SLOW, "median"))) for n in AUDITED]
)
def test_faithful_code_passes_and_shows_what_rows_show(name: str) -> None:
    finding = audited(name, TRIALS.get(name, 20_000))
    assert not finding.refuted, finding.render()
    for found in finding.releases:
        assert found.expected == 0 or found.lower_bound > 0.5 * found.expected - 0.3


def second_ballots(monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a person vote, where they are near."""
    monkeypatch.setattr(ExactIndex, "units", property(lambda index: index))


def unclipped_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "shared_votes", lambda cast, _, parts: (cast.ravel(), parts))


def unclipped_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradient._summed

    def summed(x: np.ndarray, r: np.ndarray, persons: int, gain: int) -> tuple[np.ndarray, int]:
        added, counted = whole(x, r, persons, gain)
        return added * max(1, len(x) // max(1, persons)), counted

    monkeypatch.setattr(gradient, "_summed", summed)


def shards_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person's rows lie in two shards, and each of them counts the person."""
    whole = ExactIndex.total

    def total(index: ExactIndex, count: Callable[..., np.ndarray], labels: np.ndarray) -> object:
        if index.persons is None:
            return whole(index, count, labels)
        parts = []
        for half in (0, 1):
            rows = np.flatnonzero(index.ids // LATER % 2 == half)
            part = ExactIndex(index.features[rows], index.ids[rows], index.persons[rows])
            parts.append(whole(part, count, labels[rows]))
        return sum(parts)

    monkeypatch.setattr(ExactIndex, "total", total)


def counted_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every similar row of a person is counted, and the person pays once."""

    def strongest(people: ByPerson, near: Similar, ids: np.ndarray, labels: np.ndarray) -> Similar:
        return Similar(people.numbers[near.rows], near.weights, labels[near.rows])

    monkeypatch.setattr(ByPerson, "strongest", strongest)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("private_knn", second_ballots),
        ("naive_knn", second_ballots),
        ("reverse_knn", unclipped_cells),
        ("whole_votes", unclipped_cells),
        ("private_linear", unclipped_gradients),
        ("averages", unclipped_gradients),
        ("attributes_sums", unclipped_gradients),
        ("value_sums", unclipped_gradients),
        ("reverse_knn", shards_by_row),
        ("private_linear", shards_by_row),
        pytest.param("radius", shards_by_row, marks=pytest.mark.slow),
        pytest.param("ind_knn", counted_by_row, marks=pytest.mark.slow),
    ],
)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    fault(monkeypatch)
    finding = audited(name, 2000 if name in SLOW else 20_000)
    assert finding.refuted, finding.render()
