"""`labelwall audit`: the certificate recomputed from a ledger file; attacks on the mechanisms."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...teacher.accounting.plan import Plan

COMMAND = "audit --empirical"
DESCRIPTION = (
    "Statistical audit: run the plan's mechanisms, as configured and with little noise, on "
    "worst-case neighbouring data sets made for it; a lower confidence bound of epsilon next to "
    "the claim. Give a ledger or --config. Reads no record. Exit code 3 when a claim is refuted."
)


def main(args: Sequence[str]) -> int:
    if "--empirical" in args:
        return _audit_empirical(args)
    from ...teacher.accounting.cache import computed_anew
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
    from ...teacher.audits.cases import audit_mechanisms
    from ...teacher.mechanisms.registry import from_slot

    plan, options = _parse_attack(args)
    mechanisms = [from_slot(slot) for slot in plan.slots]
    findings = audit_mechanisms(
        mechanisms,
        delta=plan.delta,
        trials=options.trials,
        confidence=options.confidence,
        unit=plan.unit,
    )
    if options.json:
        print(json.dumps([finding.to_json() for finding in findings]))
    else:
        if plan.unit == "person":
            print("every record of the pairs is a person with several rows")
        print("\n".join(f"{finding.mechanism}\n{finding.render()}" for finding in findings))
    return 3 if any(finding.refuted for finding in findings) else 0


def _parse_attack(args: Sequence[str]) -> tuple[Plan, argparse.Namespace]:
    """(plan of a configuration or of a ledger file, remaining options). Reads no data."""
    from ...teacher.ledger.ledger import Ledger
    from ..config.settings import config_parser, parse

    if any(arg.partition("=")[0] == "--config" for arg in args):
        parser = config_parser(COMMAND, DESCRIPTION)
        _add_options(parser)
        config, rest = parse(parser, args)
        return config.plan(), rest
    plain = argparse.ArgumentParser(f"labelwall {COMMAND}", description=DESCRIPTION)
    plain.add_argument(
        "ledger",
        type=Path,
        help="ledger.sqlite of a run folder, or an export; its plan names the mechanisms",
    )
    _add_options(plain)
    options = plain.parse_args(args)
    plan = Ledger(options.ledger).state.plan
    assert plan is not None  # a ledger's first entry fixes it
    return plan, options


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--empirical",
        action="store_true",
        help="attack the mechanisms instead of reading a ledger's entries",
    )
    parser.add_argument(
        "--trials",
        type=int,
        default=20000,
        help="queries drawn for each release on each data set, a count",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        default=0.95,
        help="all lower bounds hold jointly with this probability",
    )
    parser.add_argument(
        "--json", action="store_true", help="a JSON list, one object for each mechanism and delta"
    )
