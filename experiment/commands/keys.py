"""`labelwall keys`: who may ask a service."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ...wall.errors import InvalidInput


def main(args: Sequence[str]) -> int:
    from ...teacher.service.keys import Keys, render

    parser = argparse.ArgumentParser(
        "labelwall keys", description="API keys of a service. A key is shown once, when it is made."
    )
    parser.add_argument(
        "action",
        choices=["add", "list", "revoke"],
        help="what to do; a running service sees it at once",
    )
    parser.add_argument(
        "--custodian_dir",
        type=Path,
        required=True,
        help="the custodian's directory, which keeps hashes of keys",
    )
    parser.add_argument("--name", help="whose key it is: letters, digits, dots, dashes")
    parser.add_argument(
        "--role",
        default="analyst",
        help="analyst (asks, sends extractors) or custodian (records, receipts, metrics)",
    )
    parser.add_argument(
        "--queries",
        type=int,
        help="most new queries that calls under this name are charged for, a count; "
        "no cap if left out",
    )
    parser.add_argument(
        "--expires",
        help="ISO date or time (UTC) from which the key is not valid; never if left out",
    )
    options = parser.parse_args(args)
    keys = Keys(options.custodian_dir)
    if options.action == "list":
        print(render(keys.listed()))
    elif options.name is None:
        raise InvalidInput("name", "given", None)
    elif options.action == "add":
        print(keys.add(options.name, options.role, options.queries, options.expires))
    else:
        keys.revoke(options.name)
    return 0
