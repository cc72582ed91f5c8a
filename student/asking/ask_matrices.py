"""A round on the public side that asks by matrices, and labels rows by what they count."""

from ...wall.messages import Answers
from ...wall.questions import CellsForm, SumsForm
from ..results import Estimate
from .ask_cells import ask_cells
from .ask_sums import ask_sums
from .matrix_round import MatrixRound


def ask_matrices(current: MatrixRound) -> tuple[Answers, Estimate | None]:
    """Labels of rows by what matrices from PUBLIC features count.

    The estimate is of the labels of these features. Raises InvalidInput if they are too few.
    """
    form = current.planned.form
    if isinstance(form, CellsForm):
        return ask_cells(current, form)
    assert isinstance(form, SumsForm)
    return ask_sums(current, form)
