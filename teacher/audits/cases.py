"""The statistical audit of every kind of mechanism: where it may leak most, and probes.

A practical configuration loses too little in one query for any affordable number of trials. A probe
is the same code with so little noise that faults show in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...wall.unit import Unit
from ..mechanisms.base import Mechanism
from . import conversations, sums, votes
from .harness import Case, EmpiricalFinding, audit_cases

PROBE_DELTA = 0.02
Probes = tuple[tuple[Mechanism, tuple[str, ...]], ...]

CASES: dict[str, Callable[[Any, Unit], list[Case]]] = {
    "private_knn": votes.votes,
    "private_radius": votes.votes,
    "ind_knn": conversations.conversations,
    "reverse_knn": sums.cells,
    "private_linear": sums.gradients,
    "naive_knn": votes.votes,
    "lnmax": votes.votes,
    "gnmax": votes.votes,
    "confident_gnmax": votes.votes,
    "radius": votes.batches,
    "batch_knn": votes.batches,
    "private_knn_attributes": sums.attributes,
    "gnmax_attributes": sums.attributes,
    "private_linear_attributes": sums.gradients,
    "private_knn_mean": votes.values,
    "private_knn_median": votes.values,
    "private_linear_value": sums.gradients,
}


def _with(**fields: Any) -> Callable[[Any], Probes]:
    return lambda mechanism: ((replace(mechanism, **fields), ()),)


def _cells(mechanism: Any) -> Probes:
    near = mechanism.neighbours
    return _with(centroids=max(3, near), sigma=2.0 * math.sqrt(near))(mechanism)


HALF = {"sampling_probability": 0.5}
_values = HALF | {"k": 3, "threshold": 2, "cells": 4, "window": 1, "sigma_screen": 1.0}
PROBES: dict[str, Callable[[Any], Probes]] = {
    "private_knn": _with(k=3, threshold=2, sigma_screen=1.0, sigma_vote=2.0, **HALF),
    "private_radius": _with(threshold=2, sigma_screen=1.0, sigma_vote=1.0, **HALF),
    "ind_knn": conversations.probes,
    "reverse_knn": _cells,
    "private_linear": _with(sigma=1.0),
    "naive_knn": _with(k=2, sigma_vote=2.0),
    "lnmax": _with(teachers=2, scale=2.0),
    "gnmax": _with(teachers=2, sigma_vote=2.0),
    "confident_gnmax": _with(teachers=2, threshold=1, sigma_screen=1.0, sigma_vote=2.0),
    "radius": _with(epsilon=2.0),
    "batch_knn": _with(epsilon=2.0, k=1, records=12),
    "private_knn_attributes": _with(tau=1, sigma_vote=1.5, k=1, **HALF),
    "gnmax_attributes": _with(tau=1, sigma_vote=1.5, teachers=2),
    "private_linear_attributes": _with(sigma=1.0),
    "private_knn_mean": _with(sigma_mean=1.5, **_values),
    "private_knn_median": _with(epsilon=1.5, **_values),
    "private_linear_value": _with(sigma=1.0),
}


def probes(mechanism: Mechanism) -> Probes:
    """The same code with so little noise that faults show in seconds.

    Each with the releases that it is to be audited for; none for all of them.
    """
    return PROBES[mechanism.kind](mechanism)


def audit(
    mechanism: Mechanism,
    *,
    delta: float,
    trials: int,
    confidence: float = 0.95,
    releases: Sequence[str] = (),
    unit: Unit = "row",
) -> EmpiricalFinding:
    """Run the draws on worst-case neighbouring data sets: a lower bound of epsilon (harness.py).

    ``trials``: queries drawn for each release on each of a pair's two data sets; ``confidence``: of
    all bounds jointly; ``releases``: those to audit, all where there are none; ``unit``: what the
    data sets' records are. Raises InvalidInput for fewer than 8 trials, or delta or confidence
    outside (0, 1).
    """
    cases = CASES[mechanism.kind](mechanism, unit)
    chosen = [case for case in cases if not releases or case.release in releases]
    return audit_cases(mechanism, chosen, delta=delta, trials=trials, confidence=confidence)


def audit_mechanisms(
    mechanisms: Sequence[Mechanism],
    *,
    delta: float,
    trials: int,
    confidence: float,
    unit: Unit = "row",
) -> list[EmpiricalFinding]:
    """Findings for each mechanism at ``delta``, then for its probes at PROBE_DELTA, each once.

    The arguments are those of ``audit``.
    """
    every: tuple[str, ...] = ()
    settings = dict.fromkeys((mechanism, delta, every) for mechanism in mechanisms)
    for mechanism in mechanisms:
        settings |= dict.fromkeys((m, PROBE_DELTA, parts) for m, parts in probes(mechanism))
    return [
        audit(m, delta=at, trials=trials, confidence=confidence, releases=parts, unit=unit)
        for m, at, parts in settings
    ]
