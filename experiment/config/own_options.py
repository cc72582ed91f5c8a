"""Options for one's own data without a configuration file, in place of dotted settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ...wall.errors import InvalidInput, LabelwallError
from .own import OwnData, own_settings

# Option -> what it is for. Dotted options override what follows from these.
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


class BadSetting(LabelwallError):
    """A configuration file or an option that is not valid."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadSetting(message)


@dataclass(frozen=True)
class Given:
    """What files, and the options that are no settings, say.

    ``files``: of --config; ``kind``: of --mechanism.kind; ``own``: where rows are; ``epsilon``,
    ``delta``, ``records``: None where they were not given.
    """

    files: tuple[str, ...]
    kind: str | None
    own: OwnData
    epsilon: float | None
    delta: float | None
    records: int | None

    @property
    def name(self) -> str:
        """A name for the run: of its data or its file; empty where nothing names it."""
        if self.own.data or (self.own.given and not self.files):
            return self.own.name
        return Path(self.files[-1]).stem if self.files else ""

    def settings(self) -> dict[str, Any]:
        """Without --config all settings for one's own data, otherwise those that override a file's.

        Raises InvalidInput, MissingData; no private file is opened.
        """
        if self.own.given and not self.files:
            epsilon = 1.0 if self.epsilon is None else self.epsilon
            return own_settings(self.own, epsilon, self.delta, self.records)
        data = self.own.settings() if self.own.data else self.own.overrides()
        budget = {
            name: value
            for name, value in (("epsilon", self.epsilon), ("delta", self.delta))
            if value is not None
        }
        records = {} if self.records is None else {"expected_records": self.records}
        return {"data": data, "budget": budget, **records}


def add_own_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``OWN_OPTIONS``, and the settings on which others' defaults depend."""
    for name, does in OWN_OPTIONS.items():
        parser.add_argument(f"--{name}", help=does)
    for name in ("mechanism.kind", "data.ignore", "data.person"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--config", action="append", default=[], help=argparse.SUPPRESS)


def split_options(args: Sequence[str]) -> tuple[Given, list[str]]:
    """What the options of ``add_own_options`` say, and the other arguments.

    Raises BadSetting, InvalidInput.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    add_own_options(parser)
    options, others = parser.parse_known_args(list(args))
    return given_options(options), others


def given_options(options: argparse.Namespace) -> Given:
    """``split_options`` of options that are parsed. Raises InvalidInput."""
    named = vars(options)
    columns = {
        name: _columns(name, text)
        for name in ("ignore", "person")
        if (text := named[f"data.{name}"]) is not None
    }
    records = options.expected_records
    if records is not None and not (records.isdecimal() and int(records) > 0):
        raise InvalidInput("expected_records", "a count, at least 1", records)
    return Given(
        tuple(options.config),
        named["mechanism.kind"],
        OwnData(**{name: named[name] for name in PLACES}, columns=columns),
        _number("epsilon", options.epsilon),
        _number("delta", options.delta),
        None if records is None else int(records),
    )


def _columns(name: str, text: str) -> object:
    """Columns of a table that are no features. Raises InvalidInput for another type's value."""
    if name == "person":
        return text
    try:
        names = yaml.safe_load(text)
    except yaml.YAMLError:
        names = None
    if isinstance(names, list) and all(isinstance(entry, str) for entry in names):
        return names
    raise InvalidInput("data.ignore", "names of columns, such as '[id, date]'", text)


def _number(name: str, text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InvalidInput(name, "a number", text) from None
