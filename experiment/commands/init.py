"""`labelwall init`: a configuration for one's own data, or a copy of a packaged one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(args: Sequence[str]) -> int:
    from ..config.init import init, packaged_configs
    from ..config.own_options import add_own_options, given_options

    parser = argparse.ArgumentParser(
        "labelwall init",
        description="Write a configuration for your own data, or a copy of a packaged one "
        "(--from). Opens no private file. Settings as for `run`, such as --student.steps 900, are "
        "written too.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--from",
        dest="name",
        metavar="NAME",
        help=f"copy a packaged configuration: {', '.join(packaged_configs())}",
    )
    add_own_options(parser)
    parser.add_argument("--out", type=Path, default=Path("labelwall.yaml"), help="file to write")
    options, settings = parser.parse_known_args(args)
    following = init(options.out, options.name, given_options(options), settings)
    print(f"wrote {options.out}. Next: {following}")
    return 0
