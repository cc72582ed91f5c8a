"""The public rows of a run, read and checked before anything private is asked."""

from dataclasses import replace
from functools import partial

import torch

from ...student.asking.boosted import boosted
from ...student.asking.features import PublicFeatures, first_extractor
from ...student.asking.public_rows import PublicRows, learned_labels
from ...student.learning import check_student
from ...student.public_settings import PublicSide
from ...wall.computing import free_threads
from ...wall.console import Console
from ...wall.datasets.data_config import PublicData
from ...wall.datasets.sources import describe, read_public
from ...wall.errors import listed
from ...wall.labels import LabelSpace
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
    learned = learned_labels(settings, task, public)
    trees = boosted(public.inputs, learned, task.labels)
    extractor = first_extractor(settings, task, public.inputs, trees)
    check_student(settings.student, extractor, task)  # fails early
    rows = {"public": public.inputs, "test": public.test_inputs}
    return PublicRows(
        settings=settings,
        task=task,
        # No metric is of rows that were trained on
        data=public if learned is None else replace(public, labels=None),
        first=extractor,
        features=PublicFeatures(settings, rows, console.progress, trees),
        learned=learned,
    )


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
            lines.append(f"no test row is of {listed(unseen)}: no accuracy tells of these classes")
    return lines
