"""From a YAML file and dotted overrides to a Config, through jsonargparse; one clear line for a mistake."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import jsonargparse
import yaml

from experiment.config import Config
from wall.errors import LabelwallError


class BadSetting(LabelwallError):
    """A configuration file or override that can not be understood."""


def config_parser(command: str, description: str) -> jsonargparse.ArgumentParser:
    """`--config FILE` and every field of Config as a dotted override, each explained with its unit by `--help`."""
    parser = jsonargparse.ArgumentParser(prog=f"labelwall {command}", description=description, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML file with the experiment; later options override it")
    parser.add_class_arguments(Config)
    return parser


def parse(parser: jsonargparse.ArgumentParser, args: Sequence[str]) -> tuple[Config, jsonargparse.Namespace]:
    """Config and the remaining options. Raises BadSetting with one line and, for an unknown key, the nearest valid name."""
    for position, arg in enumerate(args[:-1]):
        if arg == "--config" and not Path(args[position + 1]).is_file():
            raise BadSetting(f"`--config` must be an existing YAML file. Found {args[position + 1]!r}.")
    namespace = parse_arguments(parser, args)
    settings = {key: namespace.pop(key) for key in list(Config.__dataclass_fields__)}
    return parser.instantiate_classes(jsonargparse.Namespace(settings)), namespace


def parse_arguments(parser: jsonargparse.ArgumentParser, args: Sequence[str]) -> jsonargparse.Namespace:
    """Parse, turning jsonargparse's error into one line."""
    try:
        return parser.parse_args(list(args))
    except jsonargparse.ArgumentError as error:
        raise BadSetting(_one_line(str(error), _keys(parser))) from error


def _keys(parser: jsonargparse.ArgumentParser) -> list[str]:
    return [action.dest for action in parser._actions if action.dest]


def _one_line(message: str, keys: Sequence[str]) -> str:
    """The first sentence of a parser's message, plus the nearest valid name of an unknown key."""
    text = " ".join(message.split())
    unknown = re.search(r"(?:unrecognized arguments: --|does not accept nested key |Key ')([\w.]+)", text, re.IGNORECASE)
    if unknown is None:
        return text
    name = unknown.group(1)
    near = difflib.get_close_matches(name, keys, n=1, cutoff=0.5)
    return f"unknown setting `{name}`." + (f" Did you mean `{near[0]}`?" if near else f" Valid names: {', '.join(keys)}.")


def to_yaml(config: Config) -> str:
    """The resolved configuration, loadable again."""
    return yaml.safe_dump(asdict(config), sort_keys=False)
