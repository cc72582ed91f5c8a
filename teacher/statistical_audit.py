"""Which statistical audit belongs to which mechanism, and the settings it is run at: as configured, and with little noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labelwall.teacher.mechanisms.attributes.audit import (
    Attributes,
    audit_attributes,
    probe_attributes,
)
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.mechanisms.batch.audit import Batch, audit_batch, probe_batch
from labelwall.teacher.mechanisms.ind_knn.audit import PARTS, audit_individual, probes_individual
from labelwall.teacher.mechanisms.ind_knn.mechanism import IndKnn
from labelwall.teacher.mechanisms.reverse_knn.audit import audit_cells, probe_cells
from labelwall.teacher.mechanisms.reverse_knn.mechanism import ReverseKnn
from labelwall.teacher.mechanisms.values.audit import Values, audit_values, probe_values
from labelwall.teacher.mechanisms.vote_audit import (
    PROBE_DELTA,
    EmpiricalFinding,
    audit_mechanism,
    probe,
)
from labelwall.teacher.mechanisms.vote_laws import Voting
from labelwall.wall.errors import InvalidInput

Known = Voting | IndKnn | ReverseKnn | Batch | Attributes | Values


@dataclass(frozen=True)
class _Setting:
    """What is audited: ``parts`` of individual budgets alone; a mechanism of another kind as a whole."""

    mechanism: Known
    delta: float
    parts: tuple[str, ...] = PARTS


def attack(
    mechanisms: Sequence[Mechanism], *, delta: float, trials: int, confidence: float
) -> list[EmpiricalFinding]:
    """Findings for each mechanism at ``delta``, then for each with little noise at PROBE_DELTA; equal ones once.

    Raises InvalidInput, before anything is drawn, for a mechanism whose worst-case pairs are not known.
    """
    known = [_require_known(mechanism) for mechanism in mechanisms]
    asked = dict.fromkeys(
        [*(_Setting(m, delta) for m in known), *(weak for m in known for weak in _probes(m))]
    )
    return [_audit(setting, trials, confidence) for setting in asked]


def _require_known(mechanism: Mechanism) -> Known:
    if not isinstance(mechanism, Known):
        raise InvalidInput("mechanism", "one with known worst-case pairs", type(mechanism).__name__)
    return mechanism


def _probes(mechanism: Known) -> list[_Setting]:
    if isinstance(mechanism, IndKnn):
        return [_Setting(weak, PROBE_DELTA, parts) for weak, parts in probes_individual(mechanism)]
    if isinstance(mechanism, Batch):
        return [_Setting(probe_batch(mechanism), PROBE_DELTA)]
    if isinstance(mechanism, Attributes):
        return [_Setting(probe_attributes(mechanism), PROBE_DELTA)]
    if isinstance(mechanism, Values):
        return [_Setting(probe_values(mechanism), PROBE_DELTA)]
    return [
        _Setting(
            probe_cells(mechanism) if isinstance(mechanism, ReverseKnn) else probe(mechanism),
            PROBE_DELTA,
        )
    ]


def _audit(setting: _Setting, trials: int, confidence: float) -> EmpiricalFinding:
    mechanism = setting.mechanism
    if isinstance(mechanism, IndKnn):
        return audit_individual(
            mechanism,
            delta=setting.delta,
            trials=trials,
            confidence=confidence,
            releases=setting.parts,
        )
    if isinstance(mechanism, ReverseKnn):
        return audit_cells(mechanism, delta=setting.delta, trials=trials, confidence=confidence)
    if isinstance(mechanism, Batch):
        return audit_batch(mechanism, delta=setting.delta, trials=trials, confidence=confidence)
    if isinstance(mechanism, Attributes):
        return audit_attributes(
            mechanism, delta=setting.delta, trials=trials, confidence=confidence
        )
    if isinstance(mechanism, Values):
        return audit_values(mechanism, delta=setting.delta, trials=trials, confidence=confidence)
    return audit_mechanism(mechanism, delta=setting.delta, trials=trials, confidence=confidence)
