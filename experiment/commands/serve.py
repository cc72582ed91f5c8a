"""`labelwall serve`: the teacher as a service, from one custodian's directory."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(args: Sequence[str]) -> int:
    from labelwall.teacher.service.arenas import share_arenas

    share_arenas()  # before a library starts threads
    from labelwall.experiment.config.own_options import without_own_options
    from labelwall.experiment.config.settings import config_parser, parse
    from labelwall.teacher.service.config import ServiceConfig

    does = (
        "Answer requests over HTTP from one custodian's directory, until SIGTERM or Ctrl-C. "
        "Prints the URL."
    )
    args, _ = without_own_options(args)
    parser = config_parser("serve", does, args)
    parser.add_class_arguments(ServiceConfig, "service")
    parser.add_argument(
        "--child",
        action="store_true",
        help="for `run --isolate`: one key from the standard input, until it closes",
    )
    config, rest = parse(parser, args)
    from labelwall.experiment.plan.show_plan import announce
    from labelwall.experiment.run.console import Console

    announce(config, config, Console())
    child_of = sys.stdin.readline().strip() if rest.child else None
    from labelwall.experiment.run.serving import serve
    from labelwall.teacher.noise.entropy import SystemEntropy

    serve(config, rest.service, entropy=SystemEntropy(), child_of=child_of)
    return 0
