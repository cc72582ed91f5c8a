"""Mechanisms at which the statistical audit sees much in few trials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labelwall.teacher.audits.cases import probes
from labelwall.teacher.audits.conversations import COUNT
from labelwall.teacher.mechanisms.attributes import PrivateKnnAttributes
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch import BatchKnn, RadiusNeighbours
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.pate import Gnmax
from labelwall.teacher.mechanisms.sums import (
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
    ReverseKnn,
)
from labelwall.teacher.mechanisms.values import PrivateKnnMean, PrivateKnnMedian
from labelwall.teacher.mechanisms.votes import (
    AGGREGATE,
    SCREEN,
    NaiveKnn,
    PrivateKnn,
    PrivateRadius,
)

SURE = 1 - 2.5e-8
WIDE = 0.1  # a delta at which faults of labels and payments show in fewer trials
KINDS = (PrivateLinear, PrivateLinearAttributes, PrivateLinearValue)
Plant = Callable[[pytest.MonkeyPatch], None]

# Parameters at which the audit sees much in few trials.
GAMMA: dict[str, Any] = {"sampling_probability": 0.5}
SAMPLED: dict[str, Any] = GAMMA | {
    "k": 3,
    "threshold": 2,
    "sigma_screen": 1.0,
    "sigma_vote": 2.0,
}
CERTAIN: dict[str, Any] = SAMPLED | {"threshold": 1, "sampling_probability": 1.0}
SMALL_SIGMA: dict[str, Any] = {
    "k": 1,
    "threshold": 0,
    "sigma_screen": 0.35,
    "sigma_vote": 0.85,
    "sampling_probability": 0.04,
}
CELLS = ReverseKnn(centroids=3, neighbours=1, sigma=1.0)
BALL = PrivateRadius(threshold=2, sigma_screen=1.0, sigma_vote=1.0, **GAMMA)
RADIUS = RadiusNeighbours(epsilon=2.0)
CURIOUS = BatchKnn(k=1, records=12, epsilon=2.0, conversion="interactive")
ATTRIBUTES = PrivateKnnAttributes(tau=1, k=1, sigma_vote=2.0, sampling_probability=1.0)
COUNTING, LABELLING, DENSE = (probe for probe, _ in probes(IndKnn(threshold=0.9)))
MEAN = PrivateKnnMean(sigma_screen=30.0, sigma_mean=2.0)
SCREENED = {"threshold": 2, "sigma_screen": 1.0, "sigma_mean": 10.0}


def probe(kind: type[Mechanism]) -> Any:
    """The mechanism with little noise."""
    ((mechanism, _),) = probes(kind())
    return mechanism


PERSONS: dict[str, tuple[Mechanism, tuple[str, ...]]] = {
    "private_knn": (
        PrivateKnn(k=4, threshold=2, sigma_screen=1.0, sigma_vote=1.0, **GAMMA),
        (SCREEN, AGGREGATE),
    ),
    "private_radius": (
        PrivateRadius(threshold=2, sigma_screen=0.7, sigma_vote=0.7, **GAMMA),
        (SCREEN, AGGREGATE),
    ),
    "naive_knn": (NaiveKnn(k=4, sigma_vote=1.0), ()),
    "attributes": (PrivateKnnAttributes(tau=1, k=1, sigma_vote=1.5, **GAMMA), ()),
    "mean": (PrivateKnnMean(k=2, sigma_mean=0.7, sigma_screen=2.0, **GAMMA), ()),
    "median": (
        PrivateKnnMedian(k=3, epsilon=2.0, sigma_screen=2.0, cells=4, window=1, **GAMMA),
        (),
    ),
    "reverse_knn": (ReverseKnn(centroids=6, neighbours=2, sigma=2.0).for_unit("person"), ()),
    "whole_votes": (ReverseKnn(centroids=6, neighbours=2, sigma=2.0), ()),
    "private_linear": (PrivateLinear(sigma=1.0).for_unit("person"), ()),
    "averages": (PrivateLinear(sigma=1.0), ()),
    "attributes_sums": (PrivateLinearAttributes(sigma=1.0).for_unit("person"), ()),
    "value_sums": (PrivateLinearValue(sigma=1.0, gain=3), ()),
    "radius": (RadiusNeighbours(radius=0.1, epsilon=2.0), ()),
    "batch_knn": (CURIOUS, ()),
    "ind_knn": (IndKnn(threshold=0.5, sigma_count=1.0, sigma_label=0.2, rho=0.5), (COUNT,)),
    "gnmax": (Gnmax(teachers=2, sigma_vote=1.0), ()),
}
SLOW_PERSONS = ("radius", "batch_knn", "private_knn", "private_radius", "ind_knn")


def marked(name: str, slow: bool) -> Any:
    return pytest.param(name, marks=[pytest.mark.slow] * slow)
