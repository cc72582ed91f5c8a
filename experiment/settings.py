"""From a YAML file and dotted overrides to a Config, through jsonargparse; one clear line for a mistake."""

from __future__ import annotations

import difflib
import re
from argparse import ArgumentError
from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path

import jsonargparse
import yaml

from experiment.config import Config, RoundConfig
from wall.errors import LabelwallError

UNKNOWN = (
    r"Parser key \"(?P<group>[\w.]+)\":.*Option '(?P<name>[\w.]+)' is not accepted",
    r"Group '(?P<group>[\w.]+)' does not accept option '(?P<name>[\w.]+)'",
    r"(?P<group>)Option '(?P<name>[\w.]+)' is not accepted",
    r"(?P<group>)unrecognized arguments: --(?P<name>[\w.]+)",
)


class BadSetting(LabelwallError):
    """A configuration file or override that can not be understood."""


def config_parser(command: str, description: str) -> jsonargparse.ArgumentParser:
    """`--config FILE` and every field of Config as a dotted override, each explained with its unit by `--help`."""
    parser = jsonargparse.ArgumentParser(
        prog=f"labelwall {command}", description=description, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action="config", help="YAML file with the experiment; later options override it")
    parser.add_class_arguments(Config)
    return parser


def parse(parser: jsonargparse.ArgumentParser, args: Sequence[str]) -> tuple[Config, jsonargparse.Namespace]:
    """Config and the command's own options. Raises BadSetting, or the InvalidInput of the field that breaks a rule."""
    for option, value in pairwise(args):
        if option == "--config" and not Path(value).is_file():
            raise BadSetting(f"`--config` must be an existing YAML file. Found {value!r}.")
    try:
        made = parser.instantiate(parser.parse_args(list(args)))
    except ArgumentError as error:
        raise BadSetting(_one_line(str(error), parser)) from error
    return Config(**{entry.name: made.pop(entry.name) for entry in fields(Config)}), made


def load_config(path: Path) -> Config:
    """The Config of a YAML file alone, such as a run folder's config.yaml."""
    return parse(config_parser("load", ""), ["--config", str(path)])[0]


def to_yaml(config: Config) -> str:
    """The resolved configuration, loadable again."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def _one_line(message: str, parser: jsonargparse.ArgumentParser) -> str:
    """A parser's message without line breaks; for an unknown key, the nearest valid name."""
    text = " ".join(message.split())
    for pattern in UNKNOWN:
        if found := re.search(pattern, text):
            return _unknown(f"{found['group']}.{found['name']}".strip("."), parser)
    return text


def _unknown(name: str, parser: jsonargparse.ArgumentParser) -> str:
    valid = [action.dest for action in parser._actions] + [f"rounds.{entry.name}" for entry in fields(RoundConfig)]
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.6)
    group = name.rpartition(".")[0]
    siblings = [v for v in valid if v.rpartition(".")[0] == group]
    return f"unknown setting `{name}`." + (f" Did you mean `{near[0]}`?" if near else f" Valid names: {', '.join(siblings)}.")
