"""A private score: how many private records a student predicts right, released with noise."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from ...student.asking.asking_features import features_of
from ...student.asking.public_rows import PublicRows
from ...student.linear.stored import as_network, stored_layer
from ...student.results import RoundResult, read, write
from ...student.round_files import CLASSIFIER
from ...student.student_model import outputs
from ...teacher.accounting.accountant import certified_epsilon
from ...teacher.accounting.conversion import round_up
from ...wall.answering import Answering
from ...wall.matrices import MAX_ENTRY, Cells
from ...wall.messages import DECIDED, LEVELS, ExtractorSpec
from ...wall.networks import to_safetensors, without_head
from ...wall.questions import Scoring
from .noisy_measures import DOUBT, by_threshold, decisions, known, noisy_shares
from .run_folder import RunFolder
from .summary import ByThreshold, PrivateScore

STUDENT = "student"


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
    student = Scored(number=kept, name=STUDENT, spec=folder.load_extractor(kept))
    if scoring is None:
        return student
    models = [
        replace(model, score=private_score(teacher, public, scoring, model, folder))
        for model in (_models(public, results, folder) if scoring.choose else [student])
    ]
    known = {id(m): m.score.right for m in models if m.score and m.score.right is not None}
    if len(known) == len(models):
        return max(models, key=lambda model: (known[id(model)], model.number, model.name))
    return next(model for model in models if model.number == kept)


def _models(
    public: PublicRows, results: Sequence[RoundResult], folder: RunFolder
) -> Iterator[Scored]:
    """Students and released classifiers of the last period's rounds."""
    for number, result in enumerate(results, start=1):
        if result.period != results[-1].period:
            continue
        yield Scored(number=number, name=STUDENT, spec=folder.load_extractor(number))
        classifier = stored_layer(folder.round(number) / CLASSIFIER)
        if classifier is not None:
            network = as_network(classifier, features_of(public, result, folder).spec)
            if network is not None:
                yield Scored(number=number, name="released classifier", spec=network)


def private_score(
    teacher: Answering, public: PublicRows, scoring: Scoring, model: Scored, folder: RunFolder
) -> PrivateScore | None:
    """A model's score; None where a cap refuses it."""
    place = folder.round(model.number) / model.name.replace(" ", "_")
    path = place.with_name(f"{place.name}_score.json")
    if path.exists():
        return read(PrivateScore, path)
    slot, form, labels, edges = scoring.slot, scoring.form, public.task.labels, None
    features = 2 if labels.kind == "value" else labels.outputs
    cells = MAX_ENTRY * np.eye(labels.outputs, features, dtype=np.int8)  # one for each decision
    if form.bins > 1:
        stored = place.with_name(f"{place.name}_thresholds.json")
        edges = thresholds(model.spec, labels.kind, public.data.inputs, form.bins - 1, stored)
        numbers = np.arange(form.bins, dtype=np.int8)[:, np.newaxis]
        cells = np.kron(np.eye(len(edges), 2 * len(edges), dtype=np.int8), numbers)  # of the bins
    teacher.use_extractor(decided(model.spec, labels.kind, edges))
    counts = teacher.count(Cells(cells, slot)).counts
    if counts is None or form.noise is None:
        return None
    tables, summed = dict[str, ByThreshold](), np.ones((2, labels.outputs))
    if edges is None:
        right, wrong = counts.reshape(2, labels.outputs) / form.parts
    else:
        classes = labels.kind == "class"
        bins = counts.reshape(len(edges), 2, form.bins).swapaxes(1, 2) / form.parts
        named = labels.names[-len(edges) :]
        for name, own, at in zip(named, bins, edges, strict=True):
            tables[name] = by_threshold(own, at, form.noise)
        right, wrong = decisions(bins, edges, classes=classes)
        summed = decisions(np.ones_like(bins), edges, classes=classes)
    share, error = noisy_shares(right.sum(), wrong.sum(), form.noise, summed.sum(axis=1))
    each = zip(labels.names, *noisy_shares(right, wrong, form.noise, summed), strict=True)
    plan = folder.plan
    kind = plan.slots[slot].mechanism["kind"]
    scores = tuple(s for s in plan.slots if s.mechanism["kind"] == kind)  # of all periods
    alone = certified_epsilon(replace(plan, slots=scores))
    sure = bool(error <= DOUBT)
    least = promised(float(share), certified_epsilon(plan), plan.delta)
    rmse = None
    if sure and labels.kind == "value":
        squares = np.array([1 - share, 1 - share + error, 1 - least]).clip(0, 1)
        roots = np.sqrt(squares) * (labels.bounds[1] - labels.bounds[0]) / 4
        middle, above, most = (float(root) for root in roots)
        rmse = (_short(middle), _short(above - middle), _short(most))
    score = PrivateScore(
        right=round(float(share), 4) if sure else None,
        error=round(float(error), 4) if sure else None,
        by_class={
            name: told for name, *part in each if (told := known(*part)) and labels.kind != "value"
        },
        epsilon=round_up(alone),
        least=round(least, 4) if sure else None,
        rmse=rmse,
        thresholds=tables,
    )
    write(score, path)
    return score


def _short(value: float) -> float:
    """A number to four digits."""
    return float(f"{value:.4g}")


def thresholds(
    spec: ExtractorSpec, kind: str, rows: np.ndarray, count: int, path: Path
) -> np.ndarray:
    """Thresholds of scores, float32 [scores, count], going up: quantiles of PUBLIC ``rows``.

    The one that is nearest to 0, a probability of one half, is replaced by it.

    A score is an attribute's logit, or the second class's less the first's. What is stored at
    ``path`` counts: a killed run asks by the same ones, whatever its machine rounds otherwise.
    """
    if not path.exists():
        scores = outputs(spec, rows).astype(np.float64)
        if kind == "class":
            scores = scores[:, 1:] - scores[:, :1]
        ranks = np.arange(1, count + 1) / (count + 1)
        edges = np.quantile(scores, ranks, axis=0).astype(np.float32)
        nearest = np.abs(ranks[:, np.newaxis] - (scores <= 0).mean(axis=0)).argmin(axis=0)
        edges[nearest, np.arange(len(nearest))] = 0.0
        write(np.sort(edges, axis=0).T.tolist(), path)
    return np.array(read(list[list[float]], path), dtype=np.float32)


def decided(spec: ExtractorSpec, kind: str, edges: np.ndarray | None = None) -> ExtractorSpec:
    """An extractor of a network's decisions. ``kind``: of its labels.

    Quantised, 63 for the class and 0 elsewhere; for attributes as large as it can be, with the
    sign; for a value 63 times it, rounded. With ``edges``, float32 [scores, thresholds], the number
    of thresholds that each score is above. Equal in every process, since its hash names the
    question of a score: a killed run finds what it paid for.
    """
    prefix = (DECIDED if edges is None else LEVELS)[kind]
    name, shape, classes = prefix + spec.backbone, spec.input_shape, spec.num_classes
    network = without_head(name, shape, classes)
    network.trunk.get_submodule("0").load_state_dict(safetensors.torch.load(spec.weights))
    scale: float = MAX_ENTRY
    if edges is not None:
        tensor = network.trunk.get_parameter("1.edges").data
        tensor[:, : edges.shape[1]] = torch.from_numpy(edges)
        scale = MAX_ENTRY * math.sqrt(len(edges))
    weights = to_safetensors(network)
    return ExtractorSpec(name, shape, classes, weights, spec.mean, spec.std, scale=scale)


def promised(share: float, epsilon: float, delta: float) -> float:
    """The mean share of right answers on fresh records that the guarantee promises, given the share
    on the records. Right ones are not much rarer, wrong ones not much more frequent
    (docs/privacy.md, section 13).
    """
    factor = math.exp(min(epsilon, 700.0))
    return max((share - delta) / factor, 1 - factor * (1 - share) - delta, 0.0)
