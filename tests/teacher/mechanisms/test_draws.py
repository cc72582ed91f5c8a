"""What each mechanism draws of a query is what plain loops count, and its noise has its law."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.classifiers.linear_ensemble import train_ensemble
from labelwall.teacher.mechanisms.attributes import GRID
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.teacher.mechanisms.values import RANGE
from labelwall.teacher.mechanisms.voters import Voters
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.label_kinds import STEPS, unpack
from tests.make import ZeroNoise

N, QUERIES, CLASSES, CELLS = 40, 30, 3, 8
LABELS = {"class": CLASSES, "attributes": 1 << CLASSES, "value": STEPS + 1}
KEYS = [str(i) for i in range(QUERIES)]


class Scene:
    """Records of a label space, queries, and what is near a query or says something of it."""

    def __init__(self, space):
        rng = np.random.default_rng(4)
        rows, self.queries = (rng.integers(-9, 10, (n, 3)).astype(np.int8) for n in (N, QUERIES))
        self.rows, self.ids = rows, np.arange(N)  # in ascending order, as in every index
        self.labels = rng.integers(0, LABELS[space], N)
        targets = unpack(self.labels, CLASSES) if space == "attributes" else self.labels % CLASSES
        trained = train_ensemble(
            rows, targets, self.ids, num_classes=CLASSES, teachers=9, key=bytes(32)
        )
        index, self.weights = ExactIndex(rows, self.ids), trained.weights
        public = {"ensembles": {9: trained}, "landmarks": 3 * b"\x04"}
        self.voters = Voters(index, self.labels, CLASSES, self.queries, **public)

    def apart(self, query, point):
        return ((point.astype(int) - self.queries[query].astype(int)) ** 2).sum(axis=-1)

    def near(self, query):
        """Labels of the 7 nearest, by (squared distance, id)."""
        return self.labels[np.lexsort((self.ids, self.apart(query, self.rows)))[:7]].tolist()

    def within(self, query):
        """Labels within the distance of the only landmark."""
        radius = self.apart(query, np.array([4, 4, 4])) or 1 << 26
        return self.labels[self.apart(query, self.rows) <= radius].tolist()

    def scores(self, query):
        """Of the linear classifiers, by entries in -1..1 and an intercept: [teachers, classes]."""
        return np.append(self.queries[query] / 63, 1) @ self.weights

    def chosen(self, query):
        return self.scores(query).argmax(axis=1).tolist()

    def cells(self, query):
        return [value * CELLS // (STEPS + 1) for value in self.near(query)]


def most(labels):
    return max(labels.count(label) for label in range(CLASSES))


def winner(labels):
    return [labels.count(label) for label in range(CLASSES)].index(most(labels))


def agreeing(cells):
    return max(sum(j <= cell < j + 2 for cell in cells) for j in range(CELLS - 1))


def median(cells):
    losses = [max(sum(c < j for c in cells), sum(c > j for c in cells)) for j in range(CELLS)]
    assert losses[sorted(cells)[3]] == min(losses)
    return (2 * losses.index(min(losses)) + 1) * (STEPS + 1) // (2 * CELLS)


def clipped(voters):
    """CVPR20 Definition 12 with fractions, down to the grid, tau = 2."""
    votes = [[int(b * min(Fraction(2, sum(v) or 1), 1) * GRID) for b in v] for v in voters]
    return [sum(column) for column in zip(*votes, strict=True)]


Plain = Callable[[Scene, int], Any]
SAMPLE: dict[str, Any] = {"sample_rate": 1.0, "threshold": 3, "sigma_screen": 2.0}
VOTE: dict[str, Any] = {"sigma_vote": 2.5}
TAU: dict[str, Any] = VOTE | {"tau": 2}
NEAR = SAMPLE | VOTE | {"k": 7}
BALL = SAMPLE | VOTE | {"share": 1.0, "threshold": 7}
PATE = VOTE | {"teachers": 9, "threshold": 4, "sigma_screen": 2.0}
VALUES = SAMPLE | {"k": 7, "cells": CELLS, "window": 2}
DRAWS: list[tuple[str, str, dict[str, Any], Plain]] = [
    ("private_knn", "screen", NEAR, lambda s, q: most(s.near(q)) > 3),
    ("private_knn", "aggregate", NEAR, lambda s, q: winner(s.near(q))),
    ("naive_knn", "aggregate", VOTE | {"k": 7}, lambda s, q: winner(s.near(q))),
    ("private_radius", "screen", BALL, lambda s, q: most(s.within(q)) > 7),
    ("private_radius", "aggregate", BALL, lambda s, q: winner(s.within(q))),
    ("lnmax", "aggregate", {"teachers": 9, "scale": 2.5}, lambda s, q: winner(s.chosen(q))),
    ("gnmax", "aggregate", VOTE | {"teachers": 9}, lambda s, q: winner(s.chosen(q))),
    ("confident_gnmax", "screen", PATE, lambda s, q: most(s.chosen(q)) > 4),
    ("confident_gnmax", "aggregate", PATE, lambda s, q: winner(s.chosen(q))),
    ("private_knn_mean", "screen", VALUES, lambda s, q: agreeing(s.cells(q)) > 3),
    (
        *("private_knn_mean", "mean", VALUES | {"sigma_mean": 1.5}),
        lambda s, q: sum(2 * value - STEPS for value in s.near(q)),
    ),
    ("private_knn_median", "screen", VALUES, lambda s, q: agreeing(s.cells(q)) > 3),
    ("private_knn_median", "median", VALUES | {"epsilon": 1.0}, lambda s, q: median(s.cells(q))),
    (
        *("private_knn_attributes", "counts", TAU | {"k": 7, "sample_rate": 1.0}),
        lambda s, q: clipped(unpack(np.array(s.near(q)), CLASSES).tolist()),
    ),
    (
        *("gnmax_attributes", "counts", TAU | {"teachers": 9}),
        lambda s, q: clipped((s.scores(q) > 0.5).astype(int).tolist()),
    ),
]
NOISE = {
    "screen": (2.0, 1),
    "aggregate": (2.5, CLASSES),
    "mean": (1.5 * RANGE, 1),
    "counts": (2.5 * GRID, CLASSES),
}


@pytest.mark.parametrize(("kind", "stage", "fields", "plain"), DRAWS)
def test_without_noise_a_draw_is_what_plain_loops_count(kind, stage, fields, plain):
    mechanism, silent = MECHANISMS[kind](**fields), ZeroNoise()
    scene = Scene(mechanism.label_space)
    drawn = mechanism.draw(stage, scene.voters, KEYS, silent).tolist()
    assert drawn == [plain(scene, query) for query in range(QUERIES)]
    assert stage != "screen" or 0 < sum(drawn) < QUERIES
    if stage == "median":
        assert {choice[2] for choice in silent.choices} == {Fraction(1, 2)}  # half of epsilon
    else:
        law, (scale, width) = "laplace" if kind == "lnmax" else "gaussian", NOISE[stage]
        assert silent.drawn == [(law, scale, stage, QUERIES, width)]
