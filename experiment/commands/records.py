"""`labelwall records`: PRIVATE: records that come and go; nothing is trained or charged."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from ...wall.errors import InvalidInput


def main(args: Sequence[str]) -> int:
    from ..config.settings import config_parser, parse

    does = (
        "PRIVATE, for the custodian: change the records behind a custodian's directory between any "
        "two queries. Removed data is deleted from the directory; what a record spent stays, so "
        "that adding it again refills nothing. Nothing is charged."
    )
    parser = config_parser("records", does)
    add_options(parser)
    config, rest = parse(parser, args)
    from ..run.console import Console
    from ..run.records_cli import (
        add_records,
        parse_ids,
        parse_persons,
        remove_records,
    )

    if (rest.change == "add") != (rest.rows is not None):
        raise InvalidInput("rows", "given with add, and with nothing else", rest.rows)
    if rest.change == "add":
        print(add_records(config, Path(rest.rows), dry_run=rest.dry_run, console=Console()))
        return 0
    if rest.persons or rest.persons_file:
        if rest.ids or rest.ids_file or rest.images:
            raise InvalidInput("persons", "given without ids of rows", "both")
        file = Path(rest.persons_file) if rest.persons_file else None
        ids = parse_persons(config, rest.persons, file)
    elif config.privacy.unit == "person":
        rule = "persons or persons_file where privacy.unit is person"
        raise InvalidInput("remove", rule, None)
    else:
        ids = parse_ids(rest.ids, Path(rest.ids_file) if rest.ids_file else None, rest.images)
    print(remove_records(config, ids, dry_run=rest.dry_run, console=Console()))
    return 0


def add_options(parser: ArgumentParser) -> None:
    """What is to change."""
    parser.add_argument(
        "change",
        choices=["add", "remove"],
        help="add the rows of --rows; remove what --ids, --images or --persons name",
    )
    parser.add_argument(
        "--rows",
        type=str,
        help="with add: folder with one folder of images a class, "
        "or npz file with private_x, private_y, private_id (and private_person)",
    )
    parser.add_argument(
        "--ids", type=str, help="with remove: ids of records, whole numbers separated by commas"
    )
    parser.add_argument("--ids_file", type=str, help="with remove: text file with one id a line")
    parser.add_argument(
        "--images",
        type=str,
        nargs="+",
        default=[],
        help="with remove: paths of images within data.private",
    )
    parser.add_argument(
        "--persons",
        type=str,
        help="with remove: ids of persons, separated by commas: all their rows",
    )
    parser.add_argument(
        "--persons_file", type=str, help="with remove: text file with one person's id a line"
    )
    parser.add_argument(
        "--dry_run", action="store_true", help="say what would be done, and change nothing"
    )
