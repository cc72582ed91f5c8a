"""A private score: how many private records a student predicts right, released with noise."""

import json
import math
from dataclasses import replace

import numpy as np

from ...teacher.accounting.accountant import certified_epsilon
from ...teacher.accounting.conversion import round_up
from ...wall.matrices import MAX_ENTRY, Cells
from ...wall.networks import decided
from .asking import Experiment
from .run_folder import write_file

DOUBT = 0.1  # standard error of a share above which it says nothing


def best_scored(experiment: Experiment, kept: int) -> tuple[int, dict[str, object] | None]:
    """The round whose student is the result, and its score, which the console is told.

    ``kept``: the one that estimates choose, unless scores of all the period's rounds are to, and
    are known.
    """
    asked, period = experiment.scoring, experiment.rounds[-1].period
    numbers = [each.number for each in experiment.rounds if each.period == period]
    numbers = numbers if asked is not None and asked.choose else [kept]
    scores = {number: private_score(experiment, number) for number in numbers}
    shares = {number: score and score["right"] for number, score in scores.items()}
    if len(shares) > 1 and None not in shares.values():
        kept = max(shares, key=lambda number: (shares[number], number))
    if text := score_text(scores[kept]):
        experiment.console.say(f"round {kept}'s student {text}")
    return kept, scores[kept]


def private_score(experiment: Experiment, number: int) -> dict[str, object] | None:
    """The score of round ``number``'s student, as summary.json holds it; None where the run buys
    none, or a cap refuses it.

    right (share of the private records, in 0..1, None where noise hides it), error (its standard
    error, of the noise), by_class (name -> [right, error], where counts carry them), epsilon (of
    all scores of the plan by themselves), least (of fresh records from the same source the mean
    share of right ones that the guarantee by itself promises).
    """
    if experiment.scoring is None:
        return None
    path = experiment.folder.round(number) / "score.json"
    if path.exists():
        return json.loads(path.read_text())  # type: ignore[no-any-return]
    slot, form = experiment.scoring.slot, experiment.scoring.form
    classes, teacher = experiment.task.num_classes, experiment.teacher
    student = decided(experiment.folder.load_extractor(number))
    teacher.use_extractor(student)
    cells = MAX_ENTRY * np.eye(classes, dtype=np.int8)  # the decision for each class
    counts = teacher.count(Cells(cells, slot)).counts
    if counts is None or form.noise is None:
        return None
    right, wrong = counts.reshape(2, classes) / form.parts
    share, error = noisy_shares(right.sum(), wrong.sum(), form.noise * math.sqrt(classes))
    each = zip(experiment.task.labels.names, *noisy_shares(right, wrong, form.noise), strict=True)
    plan = experiment.folder.plan()
    scores = tuple(s for s in plan.slots if s.mechanism == plan.slots[slot].mechanism)
    alone = certified_epsilon(replace(plan, slots=scores))
    known = bool(error <= DOUBT)
    least = (share - plan.delta) * math.exp(-certified_epsilon(plan))
    score: dict[str, object] = {
        "right": round(float(share), 4) if known else None,
        "error": round(float(error), 4) if known else None,
        "by_class": {
            name: [round(float(part), 4), round(float(doubt), 4)]
            for name, part, doubt in each
            if doubt <= DOUBT
        },
        "epsilon": round_up(alone),
        "least": round(max(float(least), 0.0), 4) if known else None,
    }
    write_file(path, json.dumps(score, indent=2))
    return score


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
    right, error = 100 * score["right"], 100 * score["error"]
    return f"on the private records: {right:.1f}% +- {error:.1f} right {bought}"
