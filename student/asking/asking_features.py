"""A round that is to be asked, and its features, which follow from the plan and earlier results."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...wall.messages import ExtractorSpec
from ...wall.questions import QueryForm, Round
from ..results import RoundResult, best_round, estimates, kept_round
from ..round_files import CLASSIFIER, COUNTED, FEATURES, RoundFiles
from .features import extractor_of_round, whitened
from .public_rows import PublicRows


@dataclass(frozen=True, kw_only=True)
class AskingRound:
    """A ``planned`` round. ``results``: of all earlier rounds.

    Public rows are the same for all rounds of a run, so they stand beside it.
    """

    planned: Round
    results: Sequence[RoundResult]
    folder: RoundFiles

    @property
    def path(self) -> Path:
        return self.folder.round(self.planned.number)

    @property
    def counted(self) -> str:
        """The file, in the run's folder, of features on as many axes as a first count says."""
        return f"round_{self.planned.number}/{COUNTED}"

    @property
    def repeats(self) -> bool:
        """Whether the round asks for sums as the one before it, by the same features.

        Its classifier is then averaged with the earlier one. The features are the same if no
        student was trained in between.
        """
        return self.planned.as_before and not self.results[-1].taught


@dataclass(frozen=True, kw_only=True)
class AskingFeatures:
    """Features with where they come from, as ``RoundResult`` records it."""

    spec: ExtractorSpec
    file: str
    of: int


def last_classifier(current: AskingRound) -> Path | None:
    """The file of an earlier classifier of the round's features, to average with its own."""
    results, folder = current.results, current.folder
    if current.repeats:
        return folder.round(len(results)) / CLASSIFIER
    if not results or results[0].period == current.planned.period:
        return None
    first_of_period = results[-1].period < current.planned.period
    return folder.round(kept_round(results) if first_of_period else len(results)) / CLASSIFIER


def choose_features(public: PublicRows, current: AskingRound) -> AskingFeatures:
    """The features that a round asks with.

    A later period asks with the features of the round that the period before kept. Features on
    axes are stored: they follow from public rows, but their last digit may depend on the machine.
    """
    results, folder, form = current.results, current.folder, current.planned.form
    before = [result for result in results if result.period < current.planned.period]
    if before:
        return features_of(public, before[kept_round(before) - 1], folder)
    if current.repeats:
        return features_of(public, results[-1], folder)
    if form.basis is None:
        return _plain_features(public, current)
    is_counted = (folder.path / current.counted).exists()
    own = f"round_{current.planned.number}/{FEATURES}"
    return features_as_asked(public, current, form, current.counted if is_counted else own)


def features_as_asked(
    public: PublicRows,
    current: AskingRound,
    form: QueryForm,
    file: str,
    others: ExtractorSpec | None = None,
) -> AskingFeatures:
    """A round's features with the axes or landmarks that the ``form`` needs, stored in ``file``.

    ``others``: features to ask with in the place of the round's own.
    """
    plain = _plain_features(public, current)
    if others is not None:
        plain = AskingFeatures(spec=others, file="", of=0)
    build = partial(extractor_of_round, plain.spec, form, public.features.plain)
    return AskingFeatures(spec=current.folder.features(file, build), file=file, of=plain.of)


def features_of(public: PublicRows, result: RoundResult, folder: RoundFiles) -> AskingFeatures:
    """The features that a finished round asked with."""
    file = result.features
    spec = folder.extractor(file).without_mirror() if file else public.first
    return AskingFeatures(spec=spec, file=file, of=result.features_of)


def _plain_features(public: PublicRows, current: AskingRound) -> AskingFeatures:
    """Features before axes: the student's of the previous round, or the best round's own.

    The latter if the previous round's own features made its labels worse. A student's means over
    mirror images would take the teacher twice the time.
    """
    results, folder = current.results, current.folder
    student = 0
    if results:
        kept = best_round(estimates(results, current.planned.period))
        own = kept == len(results) and results[-1].taught
        student = kept if own else results[kept - 1].features_of
    if student:
        spec = folder.load_extractor(student).without_mirror()
        return AskingFeatures(spec=spec, file=f"round_{student}/student.safetensors", of=student)
    count = public.settings.whiten
    if not count:
        return AskingFeatures(spec=public.first, file="", of=0)
    build = partial(whitened, public.first, count, public.features.plain)
    return AskingFeatures(spec=folder.features(FEATURES, build), file=FEATURES, of=0)
