"""`labelwall serve`: the teacher as a service, from one custodian's directory."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(args: Sequence[str]) -> int:
    from ...teacher.service.config import ServiceConfig
    from ..config.settings import config_parser, parse

    does = (
        "Answer requests over HTTP from one custodian's directory, until SIGTERM or Ctrl-C. "
        "Prints the URL."
    )
    parser = config_parser("serve", does)
    parser.add_class_arguments(ServiceConfig, "service")
    parser.add_argument(
        "--child",
        action="store_true",
        help="for `run --isolate`: one key from the standard input, until it closes",
    )
    config, rest = parse(parser, args)
    from ..plan.show import announce
    from ..run.console import Console

    announce(config, config, Console())
    child_of = sys.stdin.readline().strip() if rest.child else None
    from ...teacher.noise.entropy import SystemEntropy
    from ..run.serving import serve

    serve(config, rest.service, entropy=SystemEntropy(), child_of=child_of)
    return 0
