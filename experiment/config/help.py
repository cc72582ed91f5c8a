"""The help of commands that take settings: those that matter first, all by `--help-all`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .own_options import OWN_OPTIONS

HELP, HELP_ALL = ("-h", "--help"), "--help-all"
OWN = "your data, without a configuration file"
FIRST = {
    "service": (
        "service.host",
        "service.port",
        "service.certfile",
        "service.keyfile",
        "service.requests_per_second",
        "service.budget",
        "service.backbones",
    ),
    "guarantee and votes": (
        "privacy.unit",
        "mechanism.kind",
        "rounds",
        "features",
        "whiten",
        "weights",
    ),
    "student": (
        "student.backbone",
        "student.objective",
        "student.augment",
        "student.steps",
        "student.class_prior",
    ),
    "machine and files": (
        "custodian_dir",
        "threads",
        "workers",
        "device",
        "student.accelerator",
        "seed",
    ),
}
KIND = "--mechanism.kind"


def wants_help(args: Sequence[str]) -> bool:
    """Whether the short help is asked for."""
    return bool(set(args) & set(HELP)) and HELP_ALL not in args


def short_help(parser: argparse.ArgumentParser, args: Sequence[str], own_data: bool = True) -> str:
    """The command's own options, one's own data, and the settings of ``FIRST``.

    With a mechanism's kind among ``args``, also its settings. ``own_data``: whether the command
    takes the options of ``OWN_OPTIONS``.
    """
    actions = {action.dest: action for action in parser._actions if action.option_strings}
    dotted = {name for name in actions if "." in name}
    own = [name for name in actions if name not in dotted and not _is_setting(name)]
    shown = argparse.ArgumentParser(
        prog=parser.prog,
        usage=f"{parser.prog} [--config FILE] [options]",
        description=parser.description,
        add_help=False,
        epilog=f"`{parser.prog} {HELP_ALL}` explains every setting. Each is a YAML key and an "
        "option, with its default; options override files.",
    )
    _add(shown.add_argument_group("this command"), [actions[name] for name in own])
    if own_data:
        group = shown.add_argument_group(OWN)
        for name, does in OWN_OPTIONS.items():
            group.add_argument(f"--{name}", metavar="", help=does)
    groups = dict(FIRST)
    if any(arg.split("=")[0] == KIND for arg in args):
        groups["mechanism"] = tuple(
            name for name in actions if name.startswith("mechanism.") and f"--{name}" != KIND
        )
    for title, names in groups.items():
        if known := [actions[name] for name in names if name in actions]:
            _add(shown.add_argument_group(title), known)
    return shown.format_help()


def long_help(parser: argparse.ArgumentParser) -> str:
    """One's own data, then every setting."""
    width = max(map(len, OWN_OPTIONS)) + 6
    own = "\n".join(f"  --{name:{width}} {does}" for name, does in OWN_OPTIONS.items())
    return f"{OWN}:\n{own}\n\n{parser.format_help()}"


def _is_setting(name: str) -> bool:
    """Whether an option without a dot is a setting of the configuration."""
    from dataclasses import fields

    from .config import Config

    return name in {f.name for f in fields(Config)} | {"format", "service"}


def _add(group: argparse._ArgumentGroup, actions: Sequence[argparse.Action]) -> None:
    for action in actions:
        flags = [f for f in action.option_strings if f.startswith("--") and not f.endswith("+")]
        text = (action.help or "").replace("%", "%%")
        default = action.default
        if default not in (None, argparse.SUPPRESS, "", [], False):
            text += f" (default: {default})"
        if action.help is argparse.SUPPRESS or action.dest in ("help", "print_config"):
            continue
        if action.nargs == 0 or isinstance(default, bool):
            group.add_argument(*flags, action="store_true", help=text)
        else:
            group.add_argument(*flags, metavar="", help=text)
