"""The features that a round asks with, which follow from the plan and from earlier results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...wall.messages import ExtractorSpec
from ...wall.questions import Round
from ..results import Estimate, RoundResult
from ..round_files import COUNTED, FEATURES, RoundFiles
from .estimates import best_round
from .features import extractor_of_round, whitened
from .public_rows import PublicRows


@dataclass(frozen=True, kw_only=True)
class AskingFeatures:
    """Features with where they come from, as ``RoundResult`` records it."""

    spec: ExtractorSpec
    file: str
    of: int


def estimates(results: Sequence[RoundResult], period: int) -> list[Estimate | None]:
    """Each round's estimate; None for rounds of another period, whose records were others."""
    return [result.estimate if result.period == period else None for result in results]


def kept_round(results: Sequence[RoundResult]) -> int:
    """The round, from 1, whose student is kept after the last of these."""
    return best_round(estimates(results, results[-1].period))


def repeats(planned: Round, results: Sequence[RoundResult]) -> bool:
    """Whether a round asks for sums as the one before did, whose classifier is then averaged with
    its own: the features are the same where no student was trained in between.
    """
    return planned.as_before and not results[-1].taught


def choose_features(
    public: PublicRows, planned: Round, results: Sequence[RoundResult], folder: RoundFiles
) -> AskingFeatures:
    """The features that a round asks with. ``results``: of all earlier rounds.

    A later period asks with the features of the round that the period before kept. Features on
    axes are stored: they follow from public rows, but their last digit may depend on the machine.
    """
    before = [result for result in results if result.period < planned.period]
    if before:
        return features_of(public, before[kept_round(before) - 1], folder)
    if repeats(planned, results):
        return features_of(public, results[-1], folder)
    form = planned.form
    if form.axes is None and not form.landmarks:
        return _plain_features(public, planned, results, folder)
    counted = f"round_{planned.number}/{COUNTED}"
    file = counted if (folder.path / counted).exists() else f"round_{planned.number}/{FEATURES}"
    return features_on_axes(public, planned, results, folder, form.axes, file)


def features_on_axes(
    public: PublicRows,
    planned: Round,
    results: Sequence[RoundResult],
    folder: RoundFiles,
    axes: int | None,
    file: str,
) -> AskingFeatures:
    """A round's features on so many principal axes of the public rows, stored in ``file``."""
    plain = _plain_features(public, planned, results, folder)
    form = replace(planned.form, axes=axes)

    def build() -> ExtractorSpec:
        return extractor_of_round(plain.spec, form, public.features.plain)

    return AskingFeatures(spec=folder.features(file, build), file=file, of=plain.of)


def features_of(public: PublicRows, result: RoundResult, folder: RoundFiles) -> AskingFeatures:
    """The features that a finished round asked with."""
    spec = folder.extractor(result.features) if result.features else public.first
    return AskingFeatures(spec=spec, file=result.features, of=result.features_of)


def _plain_features(
    public: PublicRows, planned: Round, results: Sequence[RoundResult], folder: RoundFiles
) -> AskingFeatures:
    """Features before axes: those of the previous round's student, or what the best round asked
    with if the previous round's own features made its labels worse.
    """
    student = 0
    if results:
        kept = best_round(estimates(results, planned.period))
        own = kept == len(results) and results[-1].taught
        student = kept if own else results[kept - 1].features_of
    if student:
        spec = folder.load_extractor(student)
        return AskingFeatures(spec=spec, file=f"round_{student}/student.safetensors", of=student)
    count = public.settings.whiten
    if not count:
        return AskingFeatures(spec=public.first, file="", of=0)

    def build() -> ExtractorSpec:
        return whitened(public.first, count, public.features.plain)

    return AskingFeatures(spec=folder.features(FEATURES, build), file=FEATURES, of=0)
