"""`labelwall plan`: what a configuration costs, before anything private is read; what is best."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...wall.errors import InvalidInput

if TYPE_CHECKING:
    from ..config.config import Config


def main(args: Sequence[str]) -> int:
    from ..config.settings import config_parser, parse

    does = (
        "Show what a configuration costs; exit code 2 when its caps exceed the budget. "
        "Reads no data."
    )
    parser = config_parser("plan", does)
    parser.add_argument(
        "--json", action="store_true", help="one JSON object: epsilon, delta, certificates, rounds"
    )
    _add_optimise_options(parser)
    config, rest = parse(parser, args)
    from ...teacher.accounting.accountant import require_affordable
    from ..plan.show import describe_plan, render_plan
    from ..run.console import Console

    if rest.optimise or config.open:
        return _optimise(config, rest)
    for name in ("out", "min_accuracy"):
        if getattr(rest, name):
            raise InvalidInput(name, "given together with --optimise", getattr(rest, name))
    config.solved(Console(quiet=rest.json).progress)
    shown = describe_plan(config)
    print(json.dumps(shown) if rest.json else render_plan(shown))
    require_affordable(config.plan())
    return 0


def _add_optimise_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--optimise",
        action="store_true",
        help="search the best mechanism, caps and number of queries for the budget, "
        "from public rows alone; all mechanisms with --mechanism.kind auto",
    )
    parser.add_argument(
        "--out", type=str, help="with --optimise: file to write the configuration found to"
    )
    parser.add_argument(
        "--min_accuracy",
        type=float,
        default=0.0,
        help="with --optimise: least expected share of right labels, in [0, 1); "
        "fewer labels, better ones",
    )


def _optimise(config: Config, options: argparse.Namespace) -> int:
    from ..config.settings import to_yaml
    from ..plan.search import best_plan
    from ..plan.show import describe_optimum, origin, print_optimum
    from ..run.console import Console

    out = Path(options.out) if options.out else None
    if out is not None and out.exists():
        raise InvalidInput("out", "a file that does not exist yet", str(out))
    best, optimum = best_plan(config, Console(quiet=options.json), options.min_accuracy)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(f"{origin(optimum)}{to_yaml(best)}")
    if options.json:
        print(json.dumps(describe_optimum(best, optimum)))
    else:
        print_optimum(best, optimum, out)
    return 0
