"""The search for epsilon: equal parts of the budget for the best number of queries."""

from __future__ import annotations

import math

import numpy as np

from labelwall.experiment.plan.goal import Choice, Goal, Optimum, PublicRows
from labelwall.teacher.mechanisms.nearest_record import NearestRecord
from labelwall.wall.progress import Progress


def plan(
    mechanism: NearestRecord, goal: Goal, public: PublicRows, progress: Progress
) -> Optimum[NearestRecord]:
    """Pure releases add up, so that q queries have a q-th of epsilon each.

    The most expected right labels; the nearest of the public rows stand for records.
    """
    goal.check()
    features, labels, _ = public.embed()
    distances = ((features[:, None, :].astype(np.int64) - features[None]) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.iinfo(np.int64).max)
    right = float((labels[distances.argmin(axis=1)] == labels).mean())
    exact = best_of(goal, goal.epsilon, right, public.num_classes).certified(goal)
    source = f"the nearest of {len(labels)} labelled public rows"
    return Optimum(goal, exact, source, "Equal parts of the budget.")


def best_of(goal: Goal, epsilon: float, right: float, classes: int) -> Choice[NearestRecord]:
    choices = []
    for asked in range(goal.rounds, goal.queries + 1, max(1, goal.queries // 50)):
        part = math.floor(1e6 * epsilon / asked) / 1e6
        if part >= 1e-6:
            kept = math.exp(part) / (math.exp(part) + classes - 1)
            accuracy = right * kept + (1 - right) * (1 - kept) / (classes - 1)
            choices.append(
                Choice(epsilon, NearestRecord(epsilon=part), asked, asked, asked, accuracy)
            )
    if not choices:
        raise goal.nothing_affordable()
    return max(choices, key=lambda choice: choice.right)
