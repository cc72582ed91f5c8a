"""A private score: how many private records a student predicts right, released with noise."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import safetensors.torch

from ...student.asking.asking_features import features_of
from ...student.asking.public_rows import PublicRows
from ...student.linear.released_network import as_network
from ...student.results import RoundResult, read, write
from ...student.round_files import CLASSIFIER
from ...teacher.accounting.accountant import certified_epsilon
from ...teacher.accounting.conversion import round_up
from ...wall.answering import Answering
from ...wall.matrices import MAX_ENTRY, Cells
from ...wall.messages import DECIDED, ExtractorSpec
from ...wall.networks import to_safetensors, without_head
from ...wall.questions import Scoring
from .run_folder import RunFolder
from .summary import PrivateScore

STUDENT = "student"
DOUBT = 0.1  # standard error of a share above which it says nothing


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A model of round ``number``, and its private score."""

    number: int
    name: str  # STUDENT, or what it is
    spec: ExtractorSpec
    score: PrivateScore | None = None


def best_scored(
    teacher: Answering,
    public: PublicRows,
    scoring: Scoring | None,
    results: Sequence[RoundResult],
    kept: int,
    folder: RunFolder,
) -> Scored:
    """The model that is the result, with its score.

    ``kept``: the round that estimates choose, whose student it is unless scores of the models of
    all the last period's rounds are to choose, and are known.
    """
    if scoring is None:
        return next(iter(_models(public, results, [kept], False, folder)))
    rounds = [kept]
    if scoring.choose:
        period = results[-1].period
        rounds = [n for n, result in enumerate(results, start=1) if result.period == period]
    models = [
        replace(model, score=private_score(teacher, public, scoring, model, folder))
        for model in _models(public, results, rounds, scoring.choose, folder)
    ]
    known = {id(m): m.score.right for m in models if m.score and m.score.right is not None}
    if len(known) == len(models):
        return max(models, key=lambda model: (known[id(model)], model.number, model.name))
    return next(model for model in models if model.number == kept)


def _models(
    public: PublicRows,
    results: Sequence[RoundResult],
    rounds: Iterable[int],
    classifiers: bool,
    folder: RunFolder,
) -> Iterator[Scored]:
    for number in rounds:
        yield Scored(number=number, name=STUDENT, spec=folder.load_extractor(number))
        path = folder.round(number) / CLASSIFIER
        if classifiers and path.exists():
            features = features_of(public, results[number - 1], folder)
            network = as_network(path, features.spec)
            if network is not None:
                yield Scored(number=number, name="released classifier", spec=network)


def private_score(
    teacher: Answering, public: PublicRows, scoring: Scoring, model: Scored, folder: RunFolder
) -> PrivateScore | None:
    """A model's score; None where a cap refuses it."""
    path = folder.round(model.number) / f"{model.name.replace(' ', '_')}_score.json"
    if path.exists():
        return read(PrivateScore, path)
    slot, form, labels = scoring.slot, scoring.form, public.task.labels
    outputs = labels.outputs
    teacher.use_extractor(decided(model.spec, labels.kind))
    features = 2 if labels.kind == "value" else outputs
    cells = MAX_ENTRY * np.eye(outputs, features, dtype=np.int8)  # the decision for each output
    counts = teacher.count(Cells(cells, slot)).counts
    if counts is None or form.noise is None:
        return None
    right, wrong = counts.reshape(2, outputs) / form.parts
    share, error = noisy_shares(right.sum(), wrong.sum(), form.noise * math.sqrt(outputs))
    each = zip(labels.names, *noisy_shares(right, wrong, form.noise), strict=True)
    plan = folder.plan()
    kind = plan.slots[slot].mechanism["kind"]
    scores = tuple(s for s in plan.slots if s.mechanism["kind"] == kind)  # of all periods
    alone = certified_epsilon(replace(plan, slots=scores))
    known = bool(error <= DOUBT)
    least = promised(float(share), certified_epsilon(plan), plan.delta)
    rmse = None
    if known and labels.kind == "value":
        squares = np.array([1 - share, 1 - share + error, 1 - least]).clip(0, 1)
        roots = np.sqrt(squares) * (labels.bounds[1] - labels.bounds[0]) / 4
        middle, above, most = (float(root) for root in roots)
        rmse = (_short(middle), _short(above - middle), _short(most))
    score = PrivateScore(
        right=round(float(share), 4) if known else None,
        error=round(float(error), 4) if known else None,
        by_class={
            name: (round(float(part), 4), round(float(doubt), 4))
            for name, part, doubt in each
            if doubt <= DOUBT and labels.kind != "value"
        },
        epsilon=round_up(alone),
        least=round(least, 4) if known else None,
        rmse=rmse,
    )
    write(score, path)
    return score


def _short(value: float) -> float:
    """A number to four digits."""
    return float(f"{value:.4g}")


def decided(spec: ExtractorSpec, kind: str) -> ExtractorSpec:
    """An extractor of a network's decisions. ``kind``: of its labels.

    Quantised, 63 for the class and 0 elsewhere; for attributes as large as it can be, with the
    sign; for a value 63 times it, rounded. Equal in every process, since its hash names the
    question of a score: a killed run finds what it paid for.
    """
    name, shape, classes = DECIDED[kind] + spec.backbone, spec.input_shape, spec.num_classes
    network = without_head(name, shape, classes)
    network.trunk.get_submodule("0").load_state_dict(safetensors.torch.load(spec.weights))
    weights = to_safetensors(network)
    return ExtractorSpec(name, shape, classes, weights, spec.mean, spec.std, scale=MAX_ENTRY)


def promised(share: float, epsilon: float, delta: float) -> float:
    """The mean share of right answers on fresh records that the guarantee promises, given the share
    on the records. Right ones are not much rarer, wrong ones not much more frequent
    (docs/privacy.md, section 13).
    """
    factor = math.exp(min(epsilon, 700.0))
    return max((share - delta) / factor, 1 - factor * (1 - share) - delta, 0.0)


def noisy_shares(
    right: np.ndarray, wrong: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """(share of right records, its standard error) from noisy counts of the same shape.

    ``noise``: the standard deviation of each count. Where the records do not show above it, the
    error is infinite.
    """
    records = np.asarray(right + wrong, dtype=np.float64)
    some = records > 2 * math.sqrt(2) * noise
    share = np.clip(np.divide(right, records, where=some, out=np.zeros_like(records)), 0.0, 1.0)
    spread = noise * np.hypot(share, 1 - share)  # of (1 - share) right - share wrong
    error = np.divide(spread, records, where=some, out=np.full_like(records, np.inf))
    return share, error
