"""From a YAML file and dotted overrides to a Config, by jsonargparse.

A mistake is reported in one line.
"""

from __future__ import annotations

import ast
import difflib
import re
from argparse import SUPPRESS, ArgumentError
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import jsonargparse
import yaml

from ...teacher.mechanisms.registry import (
    AUTO,
    DEFAULT_KIND,
    MECHANISMS,
    mechanism_class,
)
from ...wall.errors import LabelwallError
from ...wall.format import FORMAT, other_format
from .config import Config, RoundConfig
from .help import HELP_ALL, long_help, short_help, wants_help
from .own_options import options_of

UNKNOWN = (
    r"Parser key \"(?P<group>[\w.]+)\":.*Option '(?P<name>[\w.]+)' is not accepted",
    r"Group '(?P<group>[\w.]+)' does not accept option '(?P<name>[\w.]+)'",
    r"(?P<group>)Option '(?P<name>[\w.]+)' is not accepted",
    r"(?P<group>)unrecognized arguments: --(?P<name>[\w.]+)",
)
NO_MECHANISM = (
    r"Does not validate against any of the Union subtypes .*Given value: (?P<value>\{.*\})$"
)


class BadSetting(LabelwallError):
    """A configuration file or an override that is not valid."""


def config_parser(
    command: str, description: str, args: Sequence[str] = ()
) -> jsonargparse.ArgumentParser:
    """`--config FILE` and every field of Config as a dotted override, with its unit in `--help`.

    The settings under `mechanism` are those of the kind that ``args`` name: `--help` and errors
    list no others.
    """
    names = ", ".join((*MECHANISMS, AUTO))
    kinds = f" Settings of another mechanism: --mechanism.kind ({names}) before --help."
    parser = jsonargparse.ArgumentParser(
        prog=f"labelwall {command}",
        description=description + kinds,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", action="config", help="YAML file with the experiment; later options override it"
    )
    parser.add_argument("--format", type=int, default=FORMAT, help=SUPPRESS)
    evaluate_annotations(Config)
    parser.add_class_arguments(Config, skip={"mechanism"})
    parser.add_class_arguments(mechanism_class(_kind(args)), "mechanism")
    return parser


def evaluate_annotations(settings: type) -> None:
    """Put types in place of the texts of a dataclass's annotations, and of all that it consists of.

    jsonargparse would run the `if TYPE_CHECKING` imports of their modules to the same end, which
    takes seconds.
    """
    written = settings.__init__.__annotations__  # type: ignore[misc]
    if not any(isinstance(text, str) for text in written.values()):
        return
    hints = get_type_hints(settings)
    written.update({entry.name: hints[entry.name] for entry in fields(settings)})
    for hint in hints.values():
        for part in _parts(hint):
            if is_dataclass(part) and isinstance(part, type):
                evaluate_annotations(part)


def _parts(hint: object) -> list[object]:
    """A type, and the types that it is made of."""
    return [hint, *(part for inner in get_args(hint) for part in _parts(inner))]


def parse(
    parser: jsonargparse.ArgumentParser, args: Sequence[str]
) -> tuple[Config, jsonargparse.Namespace]:
    """Config and the command's own options. Prints a help that ``args`` ask for, and exits.

    ``args``: those that the parser was made for. Raises BadSetting, or InvalidInput for a field
    that breaks a rule.
    """
    if wants_help(args) or HELP_ALL in args:
        print(short_help(parser, args) if wants_help(args) else long_help(parser), end="")
        raise SystemExit(0)
    try:
        parsed = parser.instantiate(parser.parse_args(_of_one_kind(args)))
    except ArgumentError as error:
        raise BadSetting(_one_line(str(error), parser)) from error
    if refusal := other_format("the configuration", parsed.pop("format")):
        raise BadSetting(refusal)
    return Config(**{entry.name: parsed.pop(entry.name) for entry in fields(Config)}), parsed


def load_config(path: Path) -> Config:
    """The Config of a YAML file without overrides, such as a run folder's config.yaml."""
    args = ["--config", str(path)]
    return parse(config_parser("load", "", args), args)[0]


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML that ``load_config`` reads."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def _kind(args: Sequence[str]) -> object:
    """The mechanism's kind: the last file or option that names one decides."""
    kind: object = DEFAULT_KIND
    for _, option, value in options_of(args):
        if option == "--mechanism.kind":
            kind = value
        elif option == "--config":
            kind = _file_kind(_read(value)) or kind
    return kind


def _file_kind(content: object) -> object:
    """The kind of a file's mechanism, the default kind for a mechanism without one; else None."""
    section = content.get("mechanism") if isinstance(content, dict) else None
    return section.get("kind", DEFAULT_KIND) if isinstance(section, dict) else None


def _read(file: str) -> object:
    if "\n" in file:  # a configuration's text, which own_options made
        return yaml.safe_load(file)
    if not Path(file).is_file():
        raise BadSetting(f"`--config` must be an existing YAML file. Found {file!r}.")
    try:
        return yaml.safe_load(Path(file).read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadSetting(
            f"`--config` must be a YAML file. Found {' '.join(str(error).split())}"
        ) from error


def _of_one_kind(args: Sequence[str]) -> list[str]:
    """``args`` without mechanisms of another kind than the chosen one.

    A file that has one is replaced by its text without the mechanism.
    """
    chosen, replaced = _kind(args), list(args)
    for position, option, file in options_of(args):
        if option == "--config" and _file_kind(content := _read(file)) not in (None, chosen):
            assert isinstance(content, dict)
            del content["mechanism"]
            text = yaml.safe_dump(content, sort_keys=False)
            joined = replaced[position].startswith("--")
            replaced[position] = f"--config={text}" if joined else text
    return replaced


def _one_line(message: str, parser: jsonargparse.ArgumentParser) -> str:
    """A parser's message in one line; for an unknown key, with the nearest valid name."""
    text = " ".join(message.split())
    if match := re.search(NO_MECHANISM, text):
        return _wrong_mechanism(match["value"], text)
    for pattern in UNKNOWN:
        if match := re.search(pattern, text):
            return _unknown(f"{match['group']}.{match['name']}".strip("."), parser)
    return text


def _wrong_mechanism(value: str, text: str) -> str:
    """What is wrong with a round's own mechanism, parsed as its kind alone.

    Raises InvalidInput for an unknown kind.
    """
    try:
        section = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return text
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(mechanism_class(section.get("kind", DEFAULT_KIND)), "mechanism")
    try:
        parser.instantiate(parser.parse_object({"mechanism": section}))
    except ArgumentError as error:
        return _one_line(str(error), parser)
    return text


def _unknown(name: str, parser: jsonargparse.ArgumentParser) -> str:
    valid = [action.dest for action in parser._actions]
    valid += [f"rounds.{entry.name}" for entry in fields(RoundConfig)]
    if near := difflib.get_close_matches(name, valid, n=1, cutoff=0.6):
        return f"unknown setting `{name}`. Did you mean `{near[0]}`?"
    group = name.rpartition(".")[0]
    siblings = [v for v in valid if v.rpartition(".")[0] == group]
    return f"unknown setting `{name}`. Valid names: {', '.join(siblings)}."
