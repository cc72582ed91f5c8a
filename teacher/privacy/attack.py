"""Which statistical audit belongs to which mechanism, and the two settings it is run at: as configured, and with little noise."""

from __future__ import annotations

from collections.abc import Sequence

from teacher.mechanisms.mechanism import Mechanism
from teacher.mechanisms.reverse_knn import ReverseKnn
from teacher.privacy.empirical import PROBE_DELTA, EmpiricalFinding, audit_mechanism, probe, require_known
from teacher.privacy.empirical_batch import Batch, audit_batch, probe_batch
from teacher.privacy.empirical_cells import audit_cells, probe_cells


def attack(mechanisms: Sequence[Mechanism], *, delta: float, trials: int, confidence: float) -> list[EmpiricalFinding]:
    """Findings for each mechanism at ``delta``, then for each with little noise at PROBE_DELTA; equal ones once.

    Raises InvalidInput, before anything is drawn, for a mechanism whose worst-case pairs are not known.
    """
    probes = [_probe(m) for m in mechanisms]
    asked = dict.fromkeys([(m, delta) for m in mechanisms] + [(m, PROBE_DELTA) for m in probes])
    return [_audit(m, at, trials, confidence) for m, at in asked]


def _probe(mechanism: Mechanism) -> Mechanism:
    if isinstance(mechanism, ReverseKnn):
        return probe_cells(mechanism)
    return probe_batch(mechanism) if isinstance(mechanism, Batch) else probe(require_known(mechanism))


def _audit(mechanism: Mechanism, delta: float, trials: int, confidence: float) -> EmpiricalFinding:
    if isinstance(mechanism, ReverseKnn):
        return audit_cells(mechanism, delta=delta, trials=trials, confidence=confidence)
    if isinstance(mechanism, Batch):
        return audit_batch(mechanism, delta=delta, trials=trials, confidence=confidence)
    return audit_mechanism(require_known(mechanism), delta=delta, trials=trials, confidence=confidence)
