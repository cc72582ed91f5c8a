"""The statistical audit of every kind of mechanism: its attack, and probes where faults show.

A practical configuration loses too little in one query for any affordable number of trials. A probe
is the same code with so little noise that faults show in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..mechanisms.base import Mechanism
from .attributes import audit_attributes
from .batch import audit_batch
from .harness import PROBE_DELTA, EmpiricalFinding
from .ind_knn import PARTS, audit_individual, probes_individual
from .private_linear import audit_sums
from .reverse_knn import audit_cells, probe_cells
from .values import audit_values, audited
from .votes import audit_votes

Probes = tuple[tuple[Mechanism, tuple[str, ...]], ...]


def _with(**fields: Any) -> Callable[[Any], Probes]:
    return lambda mechanism: ((replace(mechanism, **fields), ()),)


def _of_values(mechanism: Any) -> Probes:
    return ((audited(mechanism).probe(), ()),)


def _whole(audit: Callable[..., EmpiricalFinding]) -> Callable[..., EmpiricalFinding]:
    """An audit of mechanisms with a single release."""
    return lambda mechanism, releases=(), **options: audit(mechanism, **options)


def _individual(mechanism: Any, releases: Sequence[str] = (), **options: Any) -> EmpiricalFinding:
    return audit_individual(mechanism, releases=releases or PARTS, **options)


AUDITS: dict[str, Callable[..., EmpiricalFinding]] = {
    "private_knn": audit_votes,
    "private_radius": audit_votes,
    "ind_knn": _individual,
    "reverse_knn": _whole(audit_cells),
    "private_linear": _whole(audit_sums),
    "naive_knn": audit_votes,
    "lnmax": audit_votes,
    "gnmax": audit_votes,
    "confident_gnmax": audit_votes,
    "radius": _whole(audit_batch),
    "batch_knn": _whole(audit_batch),
    "private_knn_attributes": audit_attributes,
    "gnmax_attributes": audit_attributes,
    "private_linear_attributes": _whole(audit_sums),
    "private_knn_mean": audit_values,
    "private_knn_median": audit_values,
    "private_linear_value": _whole(audit_sums),
}

PROBES: dict[str, Callable[[Any], Probes]] = {
    "private_knn": _with(
        k=3, threshold=2, sigma_screen=1.0, sigma_vote=2.0, sampling_probability=0.5
    ),
    "private_radius": _with(
        threshold=2, sigma_screen=1.0, sigma_vote=1.0, sampling_probability=0.5
    ),
    "ind_knn": probes_individual,
    "reverse_knn": lambda mechanism: ((probe_cells(mechanism), ()),),
    "private_linear": _with(sigma=1.0),
    "naive_knn": _with(k=2, sigma_vote=2.0),
    "lnmax": _with(teachers=2, scale=2.0),
    "gnmax": _with(teachers=2, sigma_vote=2.0),
    "confident_gnmax": _with(teachers=2, threshold=1, sigma_screen=1.0, sigma_vote=2.0),
    "radius": _with(epsilon=2.0),
    "batch_knn": _with(epsilon=2.0, k=1, records=12),
    "private_knn_attributes": _with(tau=1, sigma_vote=1.5, k=1, sampling_probability=0.5),
    "gnmax_attributes": _with(tau=1, sigma_vote=1.5, teachers=2),
    "private_linear_attributes": _with(sigma=1.0),
    "private_knn_mean": _of_values,
    "private_knn_median": _of_values,
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
    confidence: float,
    releases: tuple[str, ...] = (),
) -> EmpiricalFinding:
    """Run the draws on worst-case neighbouring data sets: a lower bound of epsilon (harness.py).

    ``trials``: queries drawn for each release on each of two data sets; ``confidence``: of
    all bounds jointly; ``releases``: those to audit, all where there are none.
    """
    attack = AUDITS[mechanism.kind]
    return attack(mechanism, delta=delta, trials=trials, confidence=confidence, releases=releases)


def audit_mechanisms(
    mechanisms: Sequence[Mechanism], *, delta: float, trials: int, confidence: float
) -> list[EmpiricalFinding]:
    """Findings for each mechanism at ``delta``, then for its probes at PROBE_DELTA, each once.

    ``trials``: queries drawn for each release on each of two data sets; ``confidence``: of all
    bounds of a finding jointly, in (0, 1). Raises InvalidInput for a value out of range.
    """
    every: tuple[str, ...] = ()
    settings = dict.fromkeys((mechanism, delta, every) for mechanism in mechanisms)
    for mechanism in mechanisms:
        settings |= dict.fromkeys((m, PROBE_DELTA, parts) for m, parts in probes(mechanism))
    return [
        audit(mechanism, delta=at, trials=trials, confidence=confidence, releases=parts)
        for mechanism, at, parts in settings
    ]
