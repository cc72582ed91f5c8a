"""A private score: how many private records a student predicts right, released with noise."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch

from ...teacher.accounting.accountant import certified_epsilon
from ...teacher.accounting.conversion import round_up
from ...wall.matrices import MAX_ENTRY, Cells
from ...wall.messages import DECIDED, ExtractorSpec
from ...wall.networks import to_safetensors, without_head
from ..linear.model import as_network
from .asking import Experiment, asking_extractor
from .run_folder import CLASSIFIER, write_file

STUDENT = "student"
DOUBT = 0.1  # standard error of a share above which it says nothing


class Scored(NamedTuple):
    """A model of round ``number``, and its private score."""

    number: int
    name: str  # STUDENT, or what it is
    spec: ExtractorSpec
    score: dict[str, Any] | None

    @property
    def right(self) -> float | None:
        return self.score["right"] if self.score else None


def best_scored(experiment: Experiment, kept: int) -> Scored:
    """The model that is the result, with its score, which the console is told.

    ``kept``: the round that estimates choose, whose student it is unless scores of the models of
    all the period's rounds are to choose, and are known.
    """
    asked, period = experiment.scoring, experiment.rounds[-1].period
    every = asked is not None and asked.choose
    numbers = [each.number for each in experiment.rounds if each.period == period]
    models = _models(experiment, numbers if every else [kept], classifiers=every)
    scored = [each._replace(score=private_score(experiment, each)) for each in models]
    best = next(each for each in scored if each.number == kept)
    if all(each.right is not None for each in scored):
        best = max(scored, key=lambda each: (each.right, each.number, each.name))
    if text := score_text(best.score):
        experiment.console.say(f"round {best.number}'s {best.name} {text}")
    return best


def _models(experiment: Experiment, rounds: Iterable[int], classifiers: bool) -> Iterator[Scored]:
    folder = experiment.folder
    for number in rounds:
        yield Scored(number, STUDENT, folder.load_extractor(number), None)
        path = folder.round(number) / CLASSIFIER
        if classifiers and path.exists():
            network = as_network(path, asking_extractor(experiment, number))
            if network is not None:
                yield Scored(number, "released classifier", network, None)


def private_score(experiment: Experiment, model: Scored) -> dict[str, Any] | None:
    """A model's score, as summary.json holds it; None where the run buys none, or a cap refuses it.

    right (share of the private records, or of their attributes, in 0..1, None where noise hides it;
    for values 1 less the mean squared error over that of a quarter of the range; of persons the
    mean of each one's), error (its
    standard error, of the noise), by_class (name of a class or attribute -> [right, error], where
    counts carry them), epsilon (of all scores of the plan by themselves), least (what the guarantee
    by itself promises of ``right`` for fresh records from the same source, in the mean), rmse (of
    values: it, its standard error, and the largest for fresh records, in their unit).
    """
    if experiment.scoring is None:
        return None
    path = experiment.folder.round(model.number) / f"{model.name.replace(' ', '_')}_score.json"
    if path.exists():
        return json.loads(path.read_text())  # type: ignore[no-any-return]
    slot, form = experiment.scoring.slot, experiment.scoring.form
    labels, teacher = experiment.task.labels, experiment.teacher
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
    plan = experiment.folder.plan()
    kind = plan.slots[slot].mechanism["kind"]
    scores = tuple(s for s in plan.slots if s.mechanism["kind"] == kind)  # of all periods
    alone = certified_epsilon(replace(plan, slots=scores))
    known = bool(error <= DOUBT)
    least = promised(float(share), certified_epsilon(plan), plan.delta)
    score: dict[str, Any] = {
        "right": round(float(share), 4) if known else None,
        "error": round(float(error), 4) if known else None,
        "by_class": {
            name: [round(float(part), 4), round(float(doubt), 4)]
            for name, part, doubt in each
            if doubt <= DOUBT and labels.kind != "value"
        },
        "epsilon": round_up(alone),
        "least": round(least, 4) if known else None,
    }
    if known and labels.kind == "value":
        squares = np.array([1 - share, 1 - share + error, 1 - least]).clip(0, 1)
        rmse, above, most = np.sqrt(squares) * (labels.bounds[1] - labels.bounds[0]) / 4
        score["rmse"] = [float(f"{value:.4g}") for value in (rmse, above - rmse, most)]
    write_file(path, json.dumps(score, indent=2))
    return score


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
    """The share of right answers on fresh records that the guarantee promises in the mean, of one
    on the records (docs/privacy.md, section 13): right ones are not much rarer, wrong ones not much
    more frequent.
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


def score_text(score: dict | None) -> str:
    """A score for a reader; empty where there is none."""
    if score is None:
        return ""
    bought = f"(released at epsilon {score['epsilon']})"
    if score["right"] is None:
        return f"on the private records: unknown, the noise hides it {bought}"
    if "rmse" in score:
        rmse, error, most = score["rmse"]
        return (
            f"on the private records: RMSE {rmse:.4g} +- {error:.2g}, on fresh ones at most "
            f"{most:.4g} {bought}"
        )
    right, error, least = (100 * score[name] for name in ("right", "error", "least"))
    return (
        f"on the private records: {right:.1f}% +- {error:.1f} right, at most {right - least:.1f} "
        f"points more than on fresh ones {bought}"
    )
