"""From YAML files and options to a Config, by jsonargparse.

Files, and the options for one's own data, become one dict of settings, which dotted options
override. A mistake is reported in one line.
"""

from __future__ import annotations

import difflib
import textwrap
from argparse import SUPPRESS, ArgumentError
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import jsonargparse
import yaml
from docstring_parser import parse as docstring

from ...teacher.mechanisms.registry import (
    AUTO,
    DEFAULT_KIND,
    MECHANISMS,
    mechanism_class,
)
from ...wall.files import FORMAT, other_format
from .config import Config
from .groups import RoundConfig
from .help import print_help, wants_help
from .own_options import BadSetting, Given, own_parser, split_options

Options = Mapping[str, Any]


def config_parser(
    command: str, description: str = "", options: Options | None = None
) -> jsonargparse.ArgumentParser:
    """Every field of Config but the mechanism as a dotted option, and a command's own ``options``:

    arguments of ``add_argument`` by flag, or a dataclass of settings by its group's name.
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
        "--config", type=str, help="YAML file with the experiment; options override it"
    )
    parser.add_argument("--format", type=int, default=FORMAT, help=SUPPRESS)
    parser.add_class_arguments(Config, skip={"mechanism"})
    for name, option in (options or {}).items():
        if isinstance(option, type):
            parser.add_class_arguments(option, name)
        else:
            parser.add_argument(name, **option)
    return parser


def add_mechanism(parser: jsonargparse.ArgumentParser, kind: object) -> None:
    """Adds the settings of one kind of mechanism: help and errors list no other's."""
    parser.add_class_arguments(mechanism_class(kind), "mechanism")


def parse(
    args: Sequence[str],
    command: str = "run",
    description: str = "",
    options: Options | None = None,
) -> tuple[Config, jsonargparse.Namespace]:
    """Config and the command's own options, with the run's ``name``: of its data or of its file.

    Prints a help that ``args`` ask for, and exits. Raises BadSetting; InvalidInput for a field that
    breaks a rule; MissingData. No private file is opened.
    """
    given, others = split_options(args)
    parser = config_parser(command, description, options)
    if wants_help(args):
        add_mechanism(parser, given.kind or DEFAULT_KIND)
        settings = {entry.name for entry in fields(Config)} | {"service"}
        print_help(parser, args, settings, own_parser().format_help())
        raise SystemExit(0)
    if not args:
        given.rows()  # raises: no file, no rows, no setting
    config, rest = parse_settings(parser, _settings(given), others)
    rest["name"] = given.name
    return config, rest


def parse_settings(
    parser: jsonargparse.ArgumentParser, settings: dict[str, Any], options: Sequence[str]
) -> tuple[Config, jsonargparse.Namespace]:
    """The Config of ``settings`` by name, which dotted ``options`` override, and what else
    ``options`` say. Raises BadSetting, InvalidInput.
    """
    if refusal := other_format("the configuration", settings.get("format", FORMAT)):
        raise BadSetting(refusal)
    add_mechanism(parser, _kind(settings))
    _require_known(parser, _names(parser, settings))
    _check_rounds(settings.get("rounds"))
    known = parser._option_string_actions
    flags = [option.partition("=")[0] for option in options if option.startswith("--")]
    _require_known(parser, (flag[2:] for flag in flags if flag not in known))
    try:
        base = jsonargparse.Namespace(settings)
        parsed = parser.instantiate(parser.parse_args(list(options), namespace=base))
    except ArgumentError as error:
        raise BadSetting(" ".join(str(error).split())) from error
    return Config(**{entry.name: parsed.pop(entry.name) for entry in fields(Config)}), parsed


def load_config(path: Path) -> Config:
    """The Config of a YAML file without overrides, such as a run folder's config.yaml."""
    return parse_settings(config_parser("load"), read_settings(str(path)), ())[0]


def to_yaml(config: Config) -> str:
    """The resolved configuration as YAML that ``load_config`` reads."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def short_yaml(config: Config) -> str:
    """The budget, and the settings that are not their defaults, each below its explanation."""
    explained = {p.arg_name: p.description or "" for p in docstring(Config.__doc__ or "").params}
    parts = []
    for name, value in (_changed(config) | {"budget": asdict(config.budget)}).items():
        comment = textwrap.wrap(" ".join(explained[name].split()), 97)
        text = yaml.safe_dump({name: value}, sort_keys=False, allow_unicode=True)
        parts.append("".join(f"# {line}\n" for line in comment) + text)
    return "\n".join(parts)


def _changed(settings: Any) -> Any:
    """A dataclass of settings as a dict of those that are not their defaults."""
    if isinstance(settings, list):
        return [_changed(entry) for entry in settings]
    if not is_dataclass(settings):
        return settings
    changed = {}
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if value != default or entry.name == "kind":  # a mechanism is told by its kind
            changed[entry.name] = _changed(value)
    return changed


def read_settings(file: str) -> dict[str, Any]:
    """The settings of a YAML file. Raises BadSetting."""
    if not Path(file).is_file():
        raise BadSetting(f"`--config` must be an existing YAML file. Found {file!r}.")
    try:
        settings = yaml.safe_load(Path(file).read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadSetting(
            f"`--config` must be a YAML file. Found {' '.join(str(error).split())}"
        ) from error
    if not isinstance(settings, dict | None):
        raise BadSetting(f"`--config` must be a YAML file of settings by name. Found {file!r}.")
    return settings or {}


def _settings(given: Given) -> dict[str, Any]:
    """The settings of files and of options for one's own data; later ones override earlier ones."""
    settings: dict[str, Any] = {}
    for part in (*map(read_settings, given.config), given.settings()):
        if "mechanism" in part and _kind(part) != _kind(settings):
            settings.pop("mechanism", None)
        settings = _merged(settings, part)
    if given.kind is not None and given.kind != _kind(settings):
        settings["mechanism"] = {}
    if given.kind is not None:
        settings["mechanism"] = _merged(settings.get("mechanism", {}), {"kind": given.kind})
    return settings


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    inner = {
        name: _merged(base[name], value)
        for name, value in over.items()
        if isinstance(value, dict) and isinstance(base.get(name), dict)
    }
    return base | over | inner


def _kind(settings: dict[str, Any]) -> object:
    section = settings.get("mechanism")
    return section.get("kind", DEFAULT_KIND) if isinstance(section, dict) else DEFAULT_KIND


def _names(
    parser: jsonargparse.ArgumentParser, settings: dict[str, Any], group: str = ""
) -> Iterable[str]:
    """Dotted names of all ``settings`` of a file, down to those that an option sets."""
    dests = [action.dest for action in parser._actions]
    for key, value in settings.items():
        name = f"{group}{key}"
        grouped = any(dest.startswith(f"{name}.") for dest in dests)
        if isinstance(value, dict) and (grouped or name not in dests):
            yield from _names(parser, value, f"{name}.")
        else:
            yield name


def _check_rounds(rounds: object) -> None:
    """Checks names, and mechanisms by their own kind's settings; the parser would name all kinds'.

    Raises BadSetting, InvalidInput.
    """
    for entry in rounds if isinstance(rounds, list) else ():
        if not isinstance(entry, dict):
            continue
        valid = [setting.name for setting in fields(RoundConfig)]
        for name in entry:
            if name not in valid:
                raise BadSetting(_unknown(f"rounds.{name}", [f"rounds.{v}" for v in valid]))
        section = entry.get("mechanism")
        if isinstance(section, dict):
            parser = jsonargparse.ArgumentParser(exit_on_error=False)
            add_mechanism(parser, section.get("kind", DEFAULT_KIND))
            _require_known(parser, _names(parser, {"mechanism": section}))
            try:
                parser.parse_object({"mechanism": section})
            except ArgumentError as error:
                raise BadSetting(" ".join(str(error).split())) from error


def _require_known(parser: jsonargparse.ArgumentParser, names: Iterable[str]) -> None:
    valid = [action.dest for action in parser._actions]
    for name in names:
        if name not in valid:
            raise BadSetting(_unknown(name, valid))


def _unknown(name: str, valid: list[str]) -> str:
    if near := difflib.get_close_matches(name, valid, n=1, cutoff=0.6):
        return f"unknown setting `{name}`. Did you mean `{near[0]}`?"
    group = name.rpartition(".")[0]
    siblings = [v for v in valid if v.rpartition(".")[0] == group]
    return f"unknown setting `{name}`. Valid names: {', '.join(siblings)}."
