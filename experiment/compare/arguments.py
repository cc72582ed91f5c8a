"""What the arguments of `compare` say. Loads without torch."""

from collections.abc import Sequence
from pathlib import Path

from ..config.arguments import option
from ..config.config import Config
from ..config.options import read
from ..config.settings import merged
from .config import Cell, cells_of

DOES = (
    "Run every method of a file on the same split, students and budgets; one table, "
    "comparison.json and a plot. The same command continues a comparison that was interrupted."
)
OPTIONS = {
    "--out": option("folder for the results; the same folder resumes", required=True),
    "--seeds": option("public randomness of the repetitions", type=int, nargs="+"),
}


def parse_cells(args: Sequence[str]) -> tuple[list[Cell], Path]:
    """(all cells, folder for the results).

    Prints a help that ``args`` ask for, and exits. Raises BadSetting, or the InvalidInput of the
    field that breaks a rule.
    """
    given, files, dotted = read(args, "compare", DOES, OPTIONS, {"": Config})
    seeds = {} if given.seeds is None else {"seeds": given.seeds}
    return cells_of(merged(files, dotted) | seeds), Path(given.out)
