"""`labelwall audit`: the certificate recomputed from a ledger file; attacks on the mechanisms."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    if "--empirical" in args:
        return _audit_empirical(args)
    from ...teacher.accounting.curves.cache import computed_anew
    from ...teacher.ledger.auditor.auditor import audit

    parser = argparse.ArgumentParser(
        "labelwall audit",
        description="Recompute the certificate from a ledger file alone; "
        "with --empirical, attack the mechanisms.",
    )
    parser.add_argument("ledger", type=Path, help="ledger.sqlite of a run folder, or an export")
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object: epsilon, delta, entries, consistent, problems, head",
    )
    parser.add_argument(
        "--expect_head",
        help="hash (hex) that must stand in the chain, from a receipt or a summary.json",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show each release, what it is priced as, and the arithmetic that leads to epsilon",
    )
    options = parser.parse_args(args)
    with computed_anew():
        finding = audit(options.ledger, expect_head=options.expect_head, explained=options.explain)
    if options.json:
        print(json.dumps(finding.to_json()))
    else:
        print(finding.render())
    return 0 if finding.consistent else 3


def _audit_empirical(args: Sequence[str]) -> int:
    from ...teacher.audits.as_persons import for_persons
    from ...teacher.audits.cases import audit_mechanisms
    from ...teacher.mechanisms.registry import from_slot
    from ..config.attack import parse_attack

    plan, options = parse_attack(args)
    mechanisms = [from_slot(slot) for slot in plan.slots]
    if plan.unit == "person":
        mechanisms = [for_persons(mechanism) for mechanism in mechanisms]
    findings = audit_mechanisms(
        mechanisms, delta=plan.delta, trials=options.trials, confidence=options.confidence
    )
    if options.json:
        print(json.dumps([finding.to_json() for finding in findings]))
    else:
        if plan.unit == "person":
            print("every record of the pairs is a person with several rows")
        print("\n".join(f"{finding.mechanism}\n{finding.render()}" for finding in findings))
    return 3 if any(finding.refuted for finding in findings) else 0
