"""The command line of `audit --empirical`: which plan is attacked, and how."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ...teacher.accounting.plan import Plan
from ...teacher.ledger.ledger import Ledger
from .settings import config_parser, parse

COMMAND = "audit --empirical"
DESCRIPTION = (
    "Statistical audit: run the plan's mechanisms, as configured and with little noise, on "
    "worst-case neighbouring data sets made for it; a lower confidence bound of epsilon next to "
    "the claim. Give a ledger or --config. Reads no record. Exit code 3 when a claim is refuted."
)


def parse_attack(args: Sequence[str]) -> tuple[Plan, argparse.Namespace]:
    """(plan of a configuration or of a ledger file, remaining options). Reads no data."""
    if any(arg.partition("=")[0] == "--config" for arg in args):
        parser = config_parser(COMMAND, DESCRIPTION, args)
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
