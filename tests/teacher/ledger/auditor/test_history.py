"""What the auditor knows of results from the ledger as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labelwall.teacher.accounting.plan import Plan, Slot
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.mechanisms.sums import (
    LinearSums,
    PrivateLinear,
    PrivateLinearAttributes,
    PrivateLinearValue,
)
from labelwall.wall.messages import ExtractorSpec
from tests.ledgers import SPEC, identity, write
from tests.teacher.ledger.auditor.audit_mutations import Stored, stored
from tests.teacher.ledger.auditor.honest_ledgers import FIELDS, Rows, extractor, genesis


def of_sums(results: list[object], kind: type[LinearSums] = PrivateLinear) -> Stored:
    """A ledger of one release for each result, the last of another extractor's."""
    mechanism = kind(sigma=30.0)
    plan = Plan(50.0, 1e-9, (Slot(mechanism.fields(), mechanism.releases(9, 9)),))
    rows: Rows = [["genesis", genesis(plan)], *extractor(SPEC)]
    for number, result in enumerate(results):
        if number and number == len(results) - 1:
            rows += extractor(ExtractorSpec("raw", (9,), 4))
        rows.append(["charge", {"slot": 0, "release": "sum", "count": 1}])
        seq = sum(kind != FIELDS for kind, _ in rows) - 1
        rows.append(["release", {"charge": seq, "results": {identity(str(number)): result}}])
    return stored(json.loads(json.dumps(rows)))


@pytest.mark.parametrize(
    ("kind", "lengths", "problem"),
    [
        (PrivateLinear, [21, 21, 41], None),
        (PrivateLinearAttributes, [21, 21, 41], None),
        (PrivateLinearValue, [6, 6, 11], None),
        (PrivateLinear, [21, 25, 41], "different lengths"),
        (PrivateLinear, [12, 12], "sum"),  # 11 numbers are no (d + 1) c of two classes or more
        (PrivateLinear, [4], "sum"),
        (PrivateLinearValue, [2], "sum"),
        (PrivateLinearValue, [4003], "sum"),
        (PrivateLinearAttributes, [2 * 4001 * 31], "sum"),
    ],
)
def test_sums_have_one_length_that_features_and_classes_can_have(
    tmp_path: Path, kind: type[LinearSums], lengths: list[int], problem: str | None
) -> None:
    write(tmp_path / "l.sqlite", *of_sums([[7] * length for length in lengths], kind))
    problems = audit(tmp_path / "l.sqlite").problems
    assert (not problems) if problem is None else any(problem in line for line in problems)
