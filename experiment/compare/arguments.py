"""What the arguments of `compare` say. Loads without torch."""

from collections.abc import Sequence
from pathlib import Path

from ...wall.errors import InvalidInput
from ..config.arguments import option
from ..config.config import Config
from ..config.options import read
from ..config.own import OWN, overrides
from ..config.settings import merged
from .config import Cell, cells_of

DOES = (
    "Run several methods on the same split, students and budgets: those of a file, or --methods "
    "on your own data, where each has its noise from --epsilon and its settings from public rows; "
    "one table, comparison.json and a plot. Each cell is a separate release of the same records, "
    "which spends the sum. The same command continues a comparison that was interrupted."
)
OPTIONS = {
    "--out": option("folder for the results; the same folder resumes", required=True),
    "--methods": option(
        "for your own data: auto, other kinds of mechanisms, and baselines such as "
        "linear_noisy_sgd, noisy_sgd",
        nargs="+",
    ),
    "--epsilon": option("budgets of --methods (default: 1)", type=float, nargs="+"),
    "--seeds": option("public randomness of the repetitions", type=int, nargs="+"),
}


def parse_cells(args: Sequence[str]) -> tuple[list[Cell], Path]:
    """(all cells, folder for the results).

    Prints a help that ``args`` ask for, and exits. Raises BadSetting, MissingData, or the
    InvalidInput of the field that breaks a rule.
    """
    given, files, dotted = read(args, "compare", DOES, OPTIONS, {"": Config})
    if "methods" not in files:
        from .own import own_cells  # takes a second

        return own_cells(given, files, dotted), Path(given.out)
    for name in ("methods", "epsilon"):
        if (value := getattr(given, name)) is not None:
            raise InvalidInput(name, "left out with a file that has methods", value)
    seeds = {} if given.seeds is None else {"seeds": given.seeds}
    own = {name: value for name in OWN if (value := getattr(given, name)) is not None}
    return cells_of(merged(merged(files, overrides(own)), dotted) | seeds), Path(given.out)
