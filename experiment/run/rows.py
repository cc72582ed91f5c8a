"""A run's public rows: read with their features, and what the run can not tell by them."""

from functools import partial

import torch

from ...student.asking.public_rows import PublicRows
from ...student.learning import check_student
from ...student.public_settings import PublicSide
from ...teacher.custody.schedule import Schedule
from ...wall.computing import free_threads
from ...wall.console import Console
from ...wall.datasets.data_config import PublicData
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import InvalidInput, listed
from ...wall.labels import LabelSpace
from ...wall.matrices import MAX_DIMENSIONS
from ..config.own import CURES, large


def public_rows(settings: PublicSide, delta: float, console: Console) -> PublicRows:
    """The rows with their features and student. Says what a large ``delta`` means, and what the
    test rows do not tell. Raises InvalidInput, MissingData.
    """
    torch.set_num_threads(free_threads(settings.threads))
    task = describe(settings.data)
    public = read_public(settings.data, partial(console.progress, "reading public rows"))
    if warning := large(delta, settings.records(len(public.inputs))):
        console.say(warning)
    for line in _untested(public, task.labels):
        console.say(line)
    rows = PublicRows.of(settings, task, public, console.progress, test=public.test_inputs)
    check_student(settings.student, rows.first, task)  # fails early
    return rows


def require_narrow(schedule: Schedule, rows: PublicRows) -> None:
    """Raise InvalidInput for vectors' features that no round projects and no teacher takes."""
    if len(rows.task.input_shape) > 1 or rows.settings.whiten:
        return
    width = rows.features.plain(rows.first).shape[1]
    for mechanism in schedule.mechanisms() if width > MAX_DIMENSIONS else ():
        basis = mechanism.query_form.basis
        if not mechanism.scores and (basis is None or not basis.count or basis.kind != "axes"):
            rule = f"at least 1 where {mechanism.kind} sees more than {MAX_DIMENSIONS} features"
            raise InvalidInput("whiten", rule, 0, f"A row has {width}.")


def _untested(public: PublicData, labels: LabelSpace) -> list[str]:
    """What the test rows do not tell, in lines."""
    if not len(public.test_inputs):
        return [f"no test rows, so no accuracy. {CURES['test']}"]
    count, lines = len(public.test_inputs), list[str]()
    if public.held_out:
        lines = [f"no test rows: {count} of the labelled public ones are held out, and are these"]
    if labels.kind == "class":
        seen = {*public.test_labels.tolist()}
        if unseen := [name for code, name in enumerate(labels.names) if code not in seen]:
            lines.append(
                f"there are no test rows of {listed(unseen)}, so accuracy says nothing about these "
                "classes"
            )
    return lines
