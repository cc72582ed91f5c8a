"""The statistical audit of every kind of mechanism: cases in which it may leak most, and probes.

A practical configuration loses too little in one query for any affordable number of trials. A probe
is the same code with so little noise that faults show in seconds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...wall.errors import InvalidInput
from ...wall.guarantee import Unit
from ..mechanisms.base import Mechanism
from . import conversations, draws
from .harness import Case, EmpiricalFinding, attack

PROBE_DELTA = 0.02
Probes = tuple[tuple[Mechanism, tuple[str, ...]], ...]
Cases = Callable[[Any, Unit], list[Case]]


def _with(**fields: Any) -> Callable[[Any], Probes]:
    return lambda mechanism: ((replace(mechanism, **fields), ()),)


def _cells(mechanism: Any) -> Probes:
    neighbours = mechanism.neighbours
    return (
        (replace(mechanism, centroids=max(3, neighbours), sigma=2.0 * math.sqrt(neighbours)), ()),
    )


HALF = {"sample_rate": 0.5}
_values = HALF | {"k": 3, "threshold": 2, "cells": 4, "window": 1, "sigma_screen": 1.0}
_linear = draws.gradients, _with(noise_multiplier=1.0)
# For each kind its cases, and its probes.
ATTACKS: dict[str, tuple[Cases, Callable[[Any], Probes]]] = {
    "private_knn": (draws.votes, _with(k=3, threshold=2, sigma_screen=1.0, sigma_vote=2.0, **HALF)),
    "private_radius": (draws.votes, _with(threshold=2, sigma_screen=1.0, sigma_vote=1.0, **HALF)),
    "ind_knn": (conversations.conversations, conversations.probes),
    "reverse_knn": (draws.cells, _cells),
    **dict.fromkeys(draws.SCORES, (draws.scores, _with(sigma=2.0))),
    "private_linear": _linear,
    "naive_knn": (draws.votes, _with(k=2, sigma_vote=2.0)),
    "lnmax": (draws.votes, _with(teachers=2, scale=2.0)),
    "gnmax": (draws.votes, _with(teachers=2, sigma_vote=2.0)),
    "confident_gnmax": (
        draws.votes,
        _with(teachers=2, threshold=1, sigma_screen=1.0, sigma_vote=2.0),
    ),
    "radius": (draws.batches, _with(epsilon=2.0)),
    "batch_knn": (draws.batches_of_near, _with(epsilon=2.0, k=1, records=12)),
    "private_knn_attributes": (draws.attributes, _with(tau=1, sigma_vote=1.5, k=1, **HALF)),
    "gnmax_attributes": (draws.attributes, _with(tau=1, sigma_vote=1.5, teachers=2)),
    "private_linear_attributes": _linear,
    "private_knn_mean": (draws.values, _with(sigma_mean=1.5, **_values)),
    "private_knn_median": (draws.values, _with(epsilon=1.5, **_values)),
    "private_linear_value": _linear,
}


def cases(mechanism: Mechanism, unit: Unit = "row") -> list[Case]:
    """Cases in which each of a mechanism's releases may leak most."""
    return ATTACKS[mechanism.kind][0](mechanism, unit)


def probes(mechanism: Mechanism) -> Probes:
    """Each with the releases that it is to be audited for; none for all of them."""
    return ATTACKS[mechanism.kind][1](mechanism)


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
    chosen = [case for case in cases(mechanism, unit) if not releases or case.release in releases]
    for name, value in (("delta", delta), ("confidence", confidence)):
        if not 0 < value < 1:
            raise InvalidInput(name, "between 0 and 1", value)
    most = max(case.queries for case in chosen)
    if trials < 8 * most:
        raise InvalidInput("trials", f"at least 8 times the {most} queries of a trial", trials)
    error = (1 - confidence) / len(chosen)
    found = [attack(mechanism, case, delta=delta, trials=trials, error=error) for case in chosen]
    return EmpiricalFinding(mechanism.fields(), delta, confidence, tuple(found))


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
    asked = [(mechanism, delta, every) for mechanism in mechanisms]
    asked += [(m, PROBE_DELTA, parts) for each in mechanisms for m, parts in probes(each)]
    return [
        audit(m, delta=at, trials=trials, confidence=confidence, releases=parts, unit=unit)
        for m, at, parts in dict.fromkeys(asked)
    ]
