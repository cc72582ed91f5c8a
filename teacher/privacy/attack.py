"""Which statistical audit belongs to which mechanism, and the two settings it is run at: as configured, and with little noise."""

from __future__ import annotations

from collections.abc import Sequence

from teacher.mechanisms.mechanism import Mechanism
from teacher.mechanisms.private_knn import PrivateKnn
from teacher.mechanisms.reverse_knn import ReverseKnn
from teacher.privacy.empirical import PROBE_DELTA, EmpiricalFinding, audit_mechanism, probe, require_known
from teacher.privacy.empirical_cells import audit_cells, probe_cells


def attack(mechanisms: Sequence[Mechanism], *, delta: float, trials: int, confidence: float) -> list[EmpiricalFinding]:
    """Findings for each mechanism at ``delta``, then for each with little noise at PROBE_DELTA; equal ones once.

    Raises InvalidInput, before anything is drawn, for a mechanism whose worst-case pairs are not known.
    """
    known: list[PrivateKnn | ReverseKnn] = [m if isinstance(m, ReverseKnn) else require_known(m) for m in mechanisms]
    weak = [probe_cells(m) if isinstance(m, ReverseKnn) else probe(m) for m in known]
    asked = dict.fromkeys([(m, delta) for m in known] + [(m, PROBE_DELTA) for m in weak])
    return [_audit(m, at, trials, confidence) for m, at in asked]


def _audit(mechanism: PrivateKnn | ReverseKnn, delta: float, trials: int, confidence: float) -> EmpiricalFinding:
    if isinstance(mechanism, ReverseKnn):
        return audit_cells(mechanism, delta=delta, trials=trials, confidence=confidence)
    return audit_mechanism(mechanism, delta=delta, trials=trials, confidence=confidence)
