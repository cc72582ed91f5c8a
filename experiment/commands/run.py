"""`labelwall run`: ask, train, send features back, for every round; prints the price first."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    from ..config.settings import config_parser, parse

    does = "Run or resume an experiment: ask, train, send features back. Prints the price first."
    parser = config_parser("run", does)
    _add_options(parser)
    config, rest = parse(parser, args)
    from ..plan.show import announce
    from ..run.budgets import budget_place, tell_changed_files
    from ..run.console import Console
    from ..run.run_folder import RunFolder, default_run_dir

    console = Console(quiet=rest.quiet)
    run_dir = (
        Path(rest.run_dir) if rest.run_dir else default_run_dir(config, rest.name, console.say)
    )
    apart = rest.isolate or config.teacher is not None
    custodian = budget_place(config, run_dir, rest.second_budget, apart, console.say)
    if config.open:
        from ..plan.search import decided  # takes a second

        config = decided(config, RunFolder(run_dir), custodian, console)
    announce(config, RunFolder(run_dir).resumed(config), console)

    import torch

    torch.set_num_threads(config.threads)
    from ...teacher.noise.entropy import SystemEntropy
    from ..report.card import write_card
    from ..report.report import write_report
    from ..run.metrics import result_line
    from ..run.rounds import run

    summary = run(
        config,
        run_dir,
        entropy=SystemEntropy(),
        console=console,
        isolate=rest.isolate,
        custodian=custodian,
    )
    if not apart:
        tell_changed_files(config.data, custodian, console.say)
    write_report(run_dir)
    write_card(run_dir)
    print(result_line(summary, run_dir))
    return 0


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run_dir",
        type=str,
        help="folder for the results, runs/NAME-OF-DATA if left out; the same folder resumes a "
        "killed run",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    parser.add_argument(
        "--isolate",
        action="store_true",
        help="the teacher in a process of its own; this one opens no private file",
    )
    parser.add_argument(
        "--second_budget",
        action="store_true",
        help="another budget for records that have one already; the epsilons add up",
    )
