"""The help of commands that take settings: those that matter first, all by `--help-all`."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Collection, Sequence

HELP, HELP_ALL = {"-h", "--help"}, "--help-all"
FIRST = """
service.host service.port service.certfile service.keyfile service.requests_per_second
service.budget service.backbones privacy.unit mechanism.kind rounds features
student.backbone student.objective student.steps
custodian_dir threads device student.accelerator seed
"""


def wants_help(args: Sequence[str]) -> bool:
    """Whether a help is asked for."""
    return bool(HELP & set(args)) or HELP_ALL in args


def print_help(
    parser: ArgumentParser, args: Sequence[str], settings: Collection[str], own: str = ""
) -> None:
    """Print the help that ``args`` ask for: the short one has the settings of ``FIRST`` alone.

    ``settings``: names of settings without a dot; ``own``: help of one's own data. With a
    mechanism's kind among ``args`` the short one has that mechanism's settings, too.
    """
    if HELP_ALL not in args:
        first, chosen = FIRST.split(), any(arg.startswith("--mechanism.kind") for arg in args)
        for action in parser._actions:
            name, group = action.dest, action.dest.partition(".")[0]
            mechanism = chosen and name.startswith("mechanism.")
            if group in settings and name not in first and not mechanism:
                action.help = SUPPRESS
        for section in parser._action_groups:
            section.description = None
        parser.usage = "%(prog)s [--config FILE] [options]"
        parser.epilog = (
            f"`{parser.prog} {HELP_ALL}` explains every setting. Each is a YAML key and an "
            "option, with its default; options override files."
        )
    print(f"{parser.format_help()}\n{own}", end="")
