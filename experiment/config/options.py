"""What the arguments of a command say: its own options, and settings. The options for one's own
data override settings in files, and dotted options override both.
"""

import math
import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any, NoReturn

import yaml

from ...teacher.mechanisms.registry import ANSWERING, AUTO, DEFAULT_KIND, mechanism_class
from ...wall.errors import InvalidInput, MissingData, meant
from .arguments import Options, add_options
from .config import Config
from .own import OWN, names_rows, overrides, own_settings, run_name
from .settings import (
    BadSetting,
    build,
    config_of,
    merged,
    parsed,
    read_settings,
    require_known,
    settings_of,
    several,
)

HELP, HELP_ALL = {"-h", "--help", "--help-all"}, "--help-all"
# The settings that matter first.
FIRST = """
service.host service.port service.certfile service.keyfile service.requests_per_second
service.budget service.backbones privacy.unit mechanism.kind rounds features
student.backbone student.objective student.steps
custodian_dir threads device student.accelerator seed
"""


UNREHEARSED = {"serve", "predict", "records"}  # commands that take a named mechanism as it is
BY_ROWS = {  # defaults of one's own data, see own.py
    "mechanism.kind": "auto, if at least 100 rows have labels",
    "rounds": "1, of grey images 2",
    "features": "by a rehearsal",
    "student.backbone": "by the kind of rows",
    "student.objective": "supervised, of grey images uda",
    "student.steps": "600 or more, by the kind of rows",
    "data.source": "by the files",
}


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadSetting(message)


def parse(
    args: Sequence[str], command: str = "run", does: str = "", options: Options | None = None
) -> tuple[Config, Namespace]:
    """Config and the command's own options, with the run's ``name``: of its data or of its file.

    ``options``: as of ``add_options``, or a dataclass of settings by its group's name. With
    ``minutes`` among them ``refined`` is the configuration that these may allow. Prints a help that
    ``args`` ask for, and exits. Raises BadSetting, InvalidInput, MissingData.
    """
    options, kinds = dict(options or {}), ", ".join((*ANSWERING, AUTO))
    groups = {name: options.pop(name) for name in list(options) if isinstance(options[name], type)}
    does += f" `--mechanism.kind KIND --help` shows the settings of a mechanism: {kinds}."
    given, files, dotted = read(args, command, does, options, {"": Config, **groups})
    for name, kind in groups.items():
        setattr(given, name, build(kind, dotted.pop(name, {}), name))
        without_group = {field.name for field in fields(kind)} & dotted.keys()
        for setting in without_group - {field.name for field in fields(Config)}:
            hint = f"Did you mean `{name}.{setting}`?"
            raise BadSetting(f"unknown setting `{setting}`. {hint}")
    rehearses, minutes = command not in UNREHEARSED, getattr(given, "minutes", None)
    try:
        config = config_of(settings_by(given, files, dotted, rehearses))
    except (InvalidInput, MissingData):
        require_known(dotted)  # a name that nobody knows may be what is missing
        raise
    given.refined = None
    if minutes is not None:
        decided = given.refine or "backbone" in dotted.get("student", {})
        other = Namespace(**vars(given) | {"refine": True})
        given.refined = refined(minutes, decided, lambda: settings_by(other, files, dotted))
    return config, given


def refined(minutes: float, decided: bool, settings: Callable[[], Mapping[str, Any]]) -> Config:
    """The configuration of ``settings`` with --refine, which so many ``minutes`` may allow.

    ``decided``: whether what learns is said already. Raises InvalidInput.
    """
    if not 0 < minutes < math.inf:
        raise InvalidInput("minutes", "a positive number", minutes)
    if decided:
        raise InvalidInput.needless("minutes", "`refine` or `student.backbone` decides already")
    try:
        return config_of(settings())
    except InvalidInput as error:
        if error.name != "refine":
            raise
        raise InvalidInput.needless("minutes", error.rule) from None


def settings_by(
    given: Namespace, files: Mapping[str, Any], dotted: Mapping[str, Any], rehearses: bool = True
) -> dict[str, Any]:
    """All settings of a run that ``read`` found; ``given`` gets the run's ``name``."""
    own = {name: value for name in OWN if (value := getattr(given, name)) is not None}
    if not given.config and (names_rows(own) or "source" not in dotted.get("data", {})):
        settings = own_settings(own, dotted, rehearses)
    else:
        settings = merged(merged(files, overrides(own)), dotted)
        if "rounds" in settings:
            first = files.get("rounds") if "rounds" in dotted else None
            settings["rounds"] = several(settings["rounds"], first)
    if settings.get("custodian_dir"):  # one place, wherever the same command is given
        settings["custodian_dir"] = os.path.abspath(settings["custodian_dir"])
    given.name = run_name(own, given.config)
    return settings


def read(
    args: Sequence[str], command: str, does: str, options: Options, groups: Mapping[str, type]
) -> tuple[Namespace, dict[str, Any], dict[str, Any]]:
    """A command's own options, the settings of --config files, and those of dotted options.

    ``groups``: dataclasses of settings by their groups' names. Prints a help that ``args`` ask for,
    and exits. Raises BadSetting.
    """
    parser = _Parser(
        f"labelwall {command}",
        description=does,
        add_help=False,
        allow_abbrev=False,
        conflict_handler="resolve",
        usage="%(prog)s [--config FILE] [options]",
        epilog=f"`labelwall {command} {HELP_ALL}` explains every setting. Each is a YAML key and "
        "an option, with its default; options override files.",
    )
    text = "YAML file with the settings; options, and later files, override it"
    parser.add_argument("--config", metavar="FILE", action="append", default=[], help=text)
    add_options(parser, options)
    if Config in groups.values():
        section = parser.add_argument_group("your data, without a configuration file")
        own = {f"--{name}": known for name, known in OWN.items()}
        add_options(section, {name: known for name, known in own.items() if name not in options})
    if HELP & set(args):
        _add_settings(parser, args, groups)
        print(parser.format_help(), end="")
        raise SystemExit(0)
    given, others = parser.parse_known_args(list(args))
    files: dict[str, Any] = {}
    for file in given.config:
        files = merged(files, read_settings(file))
    return given, files, _dotted(others, ["--config", *options, *(f"--{name}" for name in OWN)])


def _add_settings(parser: ArgumentParser, args: Sequence[str], groups: Mapping[str, type]) -> None:
    """Adds the settings to a help: those of FIRST and of a mechanism whose kind is among ``args``,
    or all of them by --help-all.
    """
    chosen = re.search(r"--mechanism\.kind[= ](\S+)", " ".join(args))
    known = {f"{name}.".lstrip("."): kind for name, kind in groups.items()}
    if Config in groups.values():
        known["mechanism."] = mechanism_class(chosen[1] if chosen else DEFAULT_KIND)
    section = parser.add_argument_group("settings")
    for group, kind in known.items():
        for name, means, default in settings_of(kind, group):
            first = name in FIRST.split() or (chosen and group == "mechanism.")
            if first or HELP_ALL in args:
                shown = "" if default is MISSING else f" (default: {default})"
                if name in BY_ROWS and Config in groups.values():
                    of_rows = f"of your own data: {BY_ROWS[name]})"
                    shown = f"{shown[:-1]}; {of_rows}" if shown else f" ({of_rows}"
                text = f"{means}{shown}".replace("%", "%%")
                section.add_argument(f"--{name}", metavar="", help=text)


def _dotted(words: Sequence[str], flags: Sequence[str]) -> dict[str, Any]:
    """Settings of options such as `--student.steps 40` or `--box=[[0, 1]]`. Raises BadSetting.

    ``flags``: the command's own options, one of which may be meant.
    """
    settings: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        flag, given, text = word.partition("=")
        if not flag.startswith("--"):
            form = "settings are given by --NAME VALUE, lists by --NAME '[A, B]'."
            raise BadSetting(f"unexpected argument {word!r}: {form}")
        value = text if given else next(rest, "--")
        if not given and value.startswith("--"):
            hint = meant(flag, flags)
            raise BadSetting(f"`{flag}` must have a value. {hint}".rstrip())
        *groups, last = flag[2:].split(".")
        place = settings
        for group in groups:
            if not isinstance(place.get(group), dict):
                place[group] = {}
            place = place[group]
        place[last] = value_of(value)
    return settings


def value_of(text: str) -> Any:
    """None for null, lists and groups as in YAML, else the text itself: its setting has a type."""
    with suppress(yaml.YAMLError):
        return parsed(text) if text == "null" or text.startswith(("[", "{")) else text
    return text
