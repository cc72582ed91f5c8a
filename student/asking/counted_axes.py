"""Axes of a linear classifier by a first sum, which counts the private records."""

import math
from dataclasses import replace

import numpy as np

from ...wall.answering import Answering
from ...wall.console import Console
from ...wall.matrices import COUNT, SENSITIVITY, Weights
from ...wall.messages import ExtractorSpec
from ...wall.questions import Round, SumsForm
from ..linear.measure import carried_axes
from ..linear.tuning import MANY_STEPS
from .asking_features import AskingFeatures, features_as_asked
from .asking_round import AskingRound
from .features import axes_a_row
from .matrix_round import Count

SIMILAR = 1.5  # numbers of axes are as good that differ by less
OFF = 2.0  # a guess of the records is wrong if it is so many times too large or too small


def on_counted_axes(
    teacher: Answering, current: AskingRound, features: AskingFeatures, console: Console
) -> tuple[Round, AskingFeatures]:
    """The round and its features, after its first sum has counted the records."""
    public, planned, form = current.public, current.planned, current.planned.form
    if not isinstance(form, SumsForm):
        return planned, features
    if not (current.folder.path / current.counted).exists():
        guess, extractor = public.settings.records(len(public.data.inputs)), features.spec
        plain = public.features.plain(extractor)
        axes = axes_by_count(teacher.count, planned, extractor, guess, plain)
        if axes is None:
            return planned, features
        kept = public.features.quantised(extractor).shape[1]
        console.say(
            f"round {planned.number}: the first sum counts other records than {guess}, which were "
            f"guessed (expected_records), so the next ones have {axes} axes, which suit them, in "
            f"the place of {kept}. Nothing is to be done"
        )
        features = features_as_asked(current, replace(form, axes=axes), current.counted)
        teacher.use_extractor(features.spec)
    # The first sum was spent on other axes
    return replace(planned, form=replace(form, steps=form.steps - 1)), features


def axes_by_count(
    count: Count, planned: Round, extractor: ExtractorSpec, guess: int, plain: np.ndarray
) -> int | None:
    """Number of axes that the records carry, if a first sum speaks against a ``guess`` of them.

    ``extractor``: on the axes that the guess led to; ``plain``: features of PUBLIC rows that have
    them, [n, d]. Only many steps for classes can spare a sum: if axes change, one is left out of
    the fit. Otherwise the fit asks the same sum again, which is charged once.
    """
    form, classes, axes = planned.form, extractor.num_classes, extractor.projection()
    if not isinstance(form, SumsForm) or form.axes is None or form.steps < MANY_STEPS:
        return None
    if form.labels != "class" or form.gain != 1:
        return None
    assert axes is not None
    kept = axes.shape[1]
    zeros = np.zeros((kept + 1, classes), dtype=np.int16)
    counts = count(Weights(zeros, planned.slot)).counts
    if counts is None:  # a cap refuses it
        return None
    noise = form.deviation * SENSITIVITY / COUNT
    records = max(float(counts[0, -1]) / COUNT, noise / 2)
    if abs(records - guess) < noise or guess / OFF < records < guess * OFF:
        return None
    strength = records * math.sqrt(form.steps) / (form.deviation * classes)
    most = max(1, min(int(len(plain) * axes_a_row(extractor.backbone)), plain.shape[1]))
    carried = carried_axes(strength, classes, most)
    if (carried > kept) != (records > guess):  # fewer records never carry more axes
        return None
    return None if kept / SIMILAR < carried < kept * SIMILAR else carried
