"""`labelwall predict`: private answers to a file of queries, without a student."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    from ..config.settings import config_parser, parse

    does = "Answer the rows of an npz file (array x) and write labels, receipt and ledger."
    parser = config_parser("predict", does)
    parser.add_argument(
        "--queries",
        type=str,
        required=True,
        help="npz file with the array x: rows like the public inputs",
    )
    parser.add_argument(
        "--out",
        type=str,
        required=True,
        help="npz file to write: labels, outcomes; a receipt and the ledger beside",
    )
    parser.add_argument(
        "--slot",
        type=int,
        default=0,
        help="which mechanism of the plan pays: its place in the list",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    config, rest = parse(parser, args)
    from ..plan.show import announce
    from ..run.console import Console

    console = Console(quiet=rest.quiet)
    announce(config, config, console)

    import torch

    torch.set_num_threads(config.threads)
    from ...teacher.noise.entropy import SystemEntropy
    from ..run.predict import predict, prediction_line

    out = Path(rest.out)
    answers = predict(
        config, Path(rest.queries), out, slot=rest.slot, entropy=SystemEntropy(), console=console
    )
    print(prediction_line(answers, out))
    return 0
