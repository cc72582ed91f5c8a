"""The statistical audit of a plan: its mechanisms as configured, and with little noise."""

from __future__ import annotations

from collections.abc import Sequence

from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.vote_audit import PROBE_DELTA, EmpiricalFinding


def audit_mechanisms(
    mechanisms: Sequence[Mechanism], *, delta: float, trials: int, confidence: float
) -> list[EmpiricalFinding]:
    """Findings for each mechanism at ``delta``, then for its probes at PROBE_DELTA; equal ones once.

    ``trials``: queries drawn for each release on each of two data sets; ``confidence``: of all
    bounds of a finding jointly, in (0, 1). Raises InvalidInput for a value out of range.
    """
    settings = dict.fromkeys([(mechanism, delta, ()) for mechanism in mechanisms])
    for mechanism in mechanisms:
        settings |= dict.fromkeys((m, PROBE_DELTA, parts) for m, parts in mechanism.probes())
    return [
        mechanism.audit(delta=at, trials=trials, confidence=confidence, releases=parts)
        for mechanism, at, parts in settings
    ]
