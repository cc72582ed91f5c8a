"""Options for one's own data without a configuration file, in place of dotted settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import yaml

from ...wall.errors import InvalidInput, LabelwallError
from .own import OwnData, own_config

# Option -> what it is for. Other options override what these make of the data.
OWN_OPTIONS = {
    "private": "folder with one folder of images a class, or a CSV or parquet table; PRIVATE",
    "public": "folder of images, or a table; no labels needed",
    "test": "folder with one folder of images a class, or a table with labels; public",
    "data": "all rows in one: an npz file, a folder of npy files, a table, or a folder with "
    "private, public and test",
    "label": "name of a table's column with the label (default: label)",
    "split": "name of one table's column that says private, public or test (default: split)",
    "epsilon": "the guarantee: how far one record may change what is released, at most by a "
    "factor e^epsilon (default: 1)",
    "delta": "probability added to that bound (default: 1e-5, less for many public rows)",
    "expected_records": "a public guess of the number of private records, a count (default: the "
    "published split's, or the public rows')",
}
PLACES = ("private", "public", "test", "data", "label", "split")
COLUMNS = ("--data.ignore", "--data.person")  # settings: columns of a table that are no features


class BadOption(LabelwallError):
    """An option without its value, or with one that is no number."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadOption(message)


def options_of(args: Sequence[str]) -> list[tuple[int, str, str]]:
    """The options in order: (position of the argument with the value, option, value)."""
    options = []
    for position, arg in enumerate(args):
        option, equals, value = arg.partition("=")
        if equals:
            options.append((position, option, value))
        elif arg.startswith("--") and position + 1 < len(args):
            options.append((position + 1, arg, args[position + 1]))
    return options


def add_own_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``OWN_OPTIONS``."""
    for name, does in OWN_OPTIONS.items():
        parser.add_argument(f"--{name}", help=does)


def own_data(options: argparse.Namespace, others: Sequence[str]) -> OwnData:
    """Where rows are, by parsed options, and by those of the ``others`` that name COLUMNS."""
    columns = {
        option.removeprefix("--data."): value
        for _, option, value in options_of(others)
        if option in COLUMNS
    }
    places = {name: getattr(options, name) for name in PLACES}
    return OwnData(**places, columns={name: _parsed(name, v) for name, v in columns.items()})


def _parsed(name: str, text: str) -> object:
    """A setting's value. Raises InvalidInput for one of another type."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if name == "person" and isinstance(value, str):
        return value
    if name == "ignore" and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return value
    rule = "the name of a column" if name == "person" else "names of columns, such as '[id, date]'"
    raise InvalidInput(f"data.{name}", rule, text)


def numbers(options: argparse.Namespace) -> tuple[float, float | None, int | None]:
    """(epsilon, delta, expected_records) by parsed options. Raises InvalidInput."""
    epsilon = _number("epsilon", options.epsilon)
    delta, records = _number("delta", options.delta), options.expected_records
    if records is not None and not (records.isdecimal() and int(records) > 0):
        raise InvalidInput("expected_records", "a count, at least 1", records)
    return 1.0 if epsilon is None else epsilon, delta, None if records is None else int(records)


def _number(name: str, text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidInput(name, "a number", text) from None


def split_options(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The parsed options of ``OWN_OPTIONS``, and the other arguments. Raises BadOption."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_own_options(parser)
    return parser.parse_known_args(list(args))


def without_own_options(args: Sequence[str]) -> tuple[list[str], str]:
    """(arguments of settings alone, a name for the run).

    Without --config the options become a whole configuration (``own_config``), with it they
    override its settings. The name is the data's or the file's, and may be empty.

    Raises InvalidInput, MissingData, BadOption; no private file is opened.
    """
    if {"-h", "--help", "--help-all"} & set(args):
        return list(args), ""
    options, rest = split_options(args)
    own = own_data(options, rest)
    epsilon, delta, records = numbers(options)
    if own.given and not any(arg.split("=")[0] == "--config" for arg in rest):
        return [f"--config={own_config(own, epsilon, delta, records)}", *rest], own.name
    overrides: dict[str, object] = {}
    if own.data is not None:
        overrides |= own.settings()
    else:
        places = {name: getattr(options, name) for name in PLACES}
        overrides |= {name: value for name, value in places.items() if value is not None}
    dotted = [f"--data.{name}={value}" for name, value in overrides.items()]
    numbered = {"budget.epsilon": epsilon, "budget.delta": delta, "expected_records": records}
    given = (options.epsilon, options.delta, options.expected_records)
    dotted += [
        f"--{name}={value}"
        for (name, value), text in zip(numbered.items(), given, strict=True)
        if text is not None
    ]
    files = [value for _, option, value in options_of(rest) if option == "--config"]
    name = own.name if own.data else Path(files[-1]).stem if files else ""
    return [*rest, *dotted], name
