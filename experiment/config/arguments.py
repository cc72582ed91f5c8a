"""Options of commands, for argparse. Loads nothing, so that a help comes at once."""

from argparse import _ActionsContainer
from collections.abc import Mapping
from typing import Any

Options = Mapping[str, Any]


def option(does: str, **more: Any) -> dict[str, Any]:
    """An option with a value; ``more``: arguments of ``add_argument``."""
    return {"help": does, **more}


def flag(does: str) -> dict[str, Any]:
    return option(does, action="store_true")


def add_options(parser: _ActionsContainer, options: Options) -> None:
    """Adds ``options`` by name to a parser; a text is the help of a text option."""
    for name, known in options.items():
        parser.add_argument(name, **(option(known) if isinstance(known, str) else known))
