"""Axes and features of a linear classifier by a first sum, which counts the private records."""

import math
from dataclasses import replace

import numpy as np

from ...wall.answering import Answering
from ...wall.console import Console
from ...wall.matrices import COUNT, SENSITIVITY, Weights
from ...wall.messages import ExtractorSpec
from ...wall.questions import Round, SumsForm
from ..linear.measure import carried_axes
from ..public_settings import CountedPlan, PublicSide, can_count
from .asking_features import AskingFeatures, AskingRound, features_as_asked
from .features import axes_a_row, first_extractor
from .matrix_round import Count
from .public_rows import PublicRows

SIMILAR = 1.5  # numbers of axes are as good that differ by less
OFF = 2.0  # a guess of the records is wrong if it is so many times too large or too small


def on_counted_axes(
    teacher: Answering,
    public: PublicRows,
    current: AskingRound,
    features: AskingFeatures,
    console: Console,
) -> tuple[Round, AskingFeatures]:
    """The round and its features, after its first sum has counted the records."""
    planned, form = current.planned, current.planned.form
    if not isinstance(form, SumsForm):
        return planned, features
    if not (current.folder.path / current.counted).exists():
        settings, extractor = public.settings, features.spec
        plain = public.features.plain(extractor)
        if features.of:  # other features were rehearsed
            settings = replace(settings, by_count=[])
        suited = plan_by_count(teacher.count, planned, extractor, plain, settings)
        if suited is None:
            return planned, features
        kept, others = public.features.quantised(extractor).shape[1], None
        also = ""
        if suited.features != settings.features:
            first = replace(settings, features=suited.features)
            others = first_extractor(first, public.task, public.data.inputs)
            also = f" of {suited.features} features"
        guess = settings.records(len(plain))
        console.say(
            f"round {planned.number}: the first noisy sum counts more or fewer records than the "
            f"guess of {guess:,} (expected_records). The next sums use {suited.axes} axes{also} "
            f"instead of {kept}. You need do nothing."
        )
        form = replace(form, axes=suited.axes)
        features = features_as_asked(public, current, form, current.counted, others)
        teacher.use_extractor(features.spec)
    # The first sum was spent on other axes
    return replace(planned, form=replace(form, steps=form.steps - 1)), features


def plan_by_count(
    count: Count, planned: Round, extractor: ExtractorSpec, plain: np.ndarray, settings: PublicSide
) -> CountedPlan | None:
    """What suits the records, if a first sum speaks against the guess of them.

    Of more records that is the nearest of the plans that were rehearsed for more. Without any, and
    of fewer records, other axes of the same features follow for classes, and none for values.

    ``extractor``: on the axes that the guess led to; ``plain``: features of PUBLIC rows that have
    them, [n, d]. Only many steps can spare a sum: if axes change, one is left out of the fit.
    Otherwise the fit asks the same sum again, which is charged once.
    """
    form, classes, axes = planned.form, extractor.num_classes, extractor.projection()
    if not isinstance(form, SumsForm) or form.axes is None or form.gain != 1 or not can_count(form):
        return None
    assert axes is not None
    kept = axes.shape[1]
    zeros = np.zeros((kept + 1, classes), dtype=np.int16)
    counts = count(Weights(zeros, planned.slot)).counts
    if counts is None:  # a cap refuses it
        return None
    noise = form.deviation * SENSITIVITY / COUNT
    guess = settings.records(len(plain))
    records = max(float(counts[0, -1]) / COUNT, noise / 2)
    if abs(records - guess) < noise or guess / OFF < records < guess * OFF:
        return None
    if settings.by_count and records > guess:
        nearest = min(settings.by_count, key=lambda each: abs(math.log(each.records / records)))
        same = (nearest.features, nearest.axes) == (settings.features, kept)
        nearer = nearest.records / records < records / guess
        return nearest if nearer and not same else None
    if form.labels == "value":
        return None
    strength = records * math.sqrt(form.steps) / (form.deviation * classes)
    most = max(1, min(int(len(plain) * axes_a_row(extractor.backbone)), plain.shape[1]))
    carried = carried_axes(strength, classes, most)
    if (carried > kept) != (records > guess):  # fewer records never carry more axes
        return None
    if kept / SIMILAR < carried < kept * SIMILAR:
        return None
    return CountedPlan(records=round(records), features=settings.features, axes=carried)
