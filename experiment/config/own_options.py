"""Options for one's own data without a configuration file, in place of dotted settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ...wall.datasets.tables import is_table
from ...wall.errors import InvalidInput, LabelwallError, MissingData
from .own import own_settings

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
SPLITS = ("private", "public", "test")


class BadSetting(LabelwallError):
    """A configuration file or an option that is not valid."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadSetting(message)


@dataclass(frozen=True)
class Given:
    """What the options of ``OWN_OPTIONS`` say, None where they were not given.

    ``config``: files; ``kind``: of the mechanism; ``ignore``, ``person``: columns of a table that
    are no features.
    """

    private: str | None = None
    public: str | None = None
    test: str | None = None
    data: str | None = None
    label: str | None = None
    split: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    expected_records: int | None = None
    kind: str | None = None
    ignore: list[str] | None = None
    person: str | None = None
    config: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """A name for the run: of its data or its file; empty where nothing names it."""
        if self.config and not self.data:
            return Path(self.config[-1]).stem
        path = Path(self.data or self.private or "").absolute()
        generic = self.data is None and path.stem.lower() in SPLITS
        return (path.parent if generic else path).stem if self.data or self.private else ""

    def settings(self) -> dict[str, Any]:
        """Without --config all settings for one's own data, otherwise those that override a file's.

        Raises InvalidInput, MissingData; no private file is opened.
        """
        budget = self._named("epsilon", "delta")
        if any((*self._named(*SPLITS), self.data)) and not self.config:
            return own_settings(self.rows(), **budget, expected_records=self.expected_records)
        named = self._named(*SPLITS, "label", "split", "ignore", "person")
        data = self.rows() if self.data else named
        return {"data": data, "budget": budget, **self._named("expected_records")}

    def rows(self) -> dict[str, Any]:
        """The settings under ``data`` that the options stand for.

        Raises InvalidInput unless they name all of the rows in one of the known ways.
        """
        if self.data is None:
            return self._by_split({name: getattr(self, name) for name in SPLITS})
        for name, value in self._named(*SPLITS).items():
            raise InvalidInput(name, "left out with --data, which has all rows", value)
        path = Path(self.data)
        if not path.exists():
            raise MissingData(f"`data` must be an existing file or folder. Found {self.data!r}.")
        if is_table(path):
            return self._table({"path": str(path.absolute()), "split": self.split or "split"})
        if path.is_dir() and not list(path.glob("*.npy")):
            return self._by_split({name: str(path / name) for name in SPLITS})
        if not path.is_dir() and path.suffix.lower() != ".npz":
            rule = "an npz, CSV or parquet file, or a folder with private, public and test"
            raise InvalidInput("data", rule, self.data)
        return {"source": "arrays", "path": str(path.absolute())}

    def _by_split(self, places: dict[str, str | None]) -> dict[str, Any]:
        absolute = {}
        for name, value in places.items():
            if value is None:
                raise InvalidInput(name, "given, with the other two, or --data FILE", None)
            if name != "private" and not Path(value).exists():
                raise MissingData(f"`{name}` must be an existing folder or file. Found {value!r}.")
            absolute[name] = str(Path(value).absolute())
        test = Path(absolute["test"])
        if is_table(test):
            return self._table(absolute)
        if test.is_dir():
            return {"source": "folder", **absolute}
        rule = "a folder with one folder of images a class, or a table"
        raise InvalidInput("test", rule, str(test))

    def _table(self, places: dict[str, str]) -> dict[str, Any]:
        columns = self._named("ignore", "person")
        return {"source": "table", **places, "label": self.label or "label", **columns}

    def _named(self, *names: str) -> dict[str, Any]:
        """Those of the options that were given."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def own_parser() -> argparse.ArgumentParser:
    """Takes ``OWN_OPTIONS``, and the settings on which others' defaults depend."""
    parser = _Parser(add_help=False, allow_abbrev=False, usage=argparse.SUPPRESS)
    group = parser.add_argument_group("your data, without a configuration file")
    types: dict[str, Callable[[str], Any]] = {
        "epsilon": float,
        "delta": float,
        "expected_records": _count,
    }
    for name, does in OWN_OPTIONS.items():
        group.add_argument(f"--{name}", type=types.get(name, str), help=does, metavar="")
    for option, name in (("mechanism.kind", "kind"), ("data.person", "person")):
        parser.add_argument(f"--{option}", dest=name, help=argparse.SUPPRESS)
    parser.add_argument("--data.ignore", dest="ignore", type=_columns, help=argparse.SUPPRESS)
    parser.add_argument("--config", action="append", default=[], help=argparse.SUPPRESS)
    return parser


def split_options(args: Sequence[str]) -> tuple[Given, list[str]]:
    """What the options of ``own_parser`` say, and the other arguments. Raises BadSetting."""
    options, others = own_parser().parse_known_args(list(args))
    return Given(**vars(options)), others


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be a count, at least 1. Found {text!r}.")
    return int(text)


def _columns(text: str) -> list[str]:
    try:
        names = yaml.safe_load(text)
    except yaml.YAMLError:
        names = None
    if isinstance(names, list) and all(isinstance(entry, str) for entry in names):
        return names
    raise argparse.ArgumentTypeError(
        f"must be names of columns, such as '[id, date]'. Found {text!r}."
    )
