"""A picture's points lie where its numbers say, and its words are text."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np

from labelwall.experiment.report.pictures import (
    ABOVE,
    BELOW,
    HEIGHT,
    LEFT,
    WIDTH,
    by_round,
    reliability,
    roc,
)
from labelwall.student.measures import measures
from labelwall.wall.label_kinds import ClassLabels
from tests.experiment.results import made_summary


def points(picture: str, number: int) -> np.ndarray:
    """The points of a picture's line, from 0 at the left and below to 1: float64 [n, 2]."""
    lines = [path for path in elements(picture, "path") if path.get("class") == "line"]
    places = re.split("[ML]", lines[2 * number].get("d", ""))[1:]  # each has one in the legend
    pixels = np.array([list(map(float, place.split())) for place in places])
    across = (pixels[:, 0] - LEFT) / (WIDTH - LEFT - ABOVE)
    up = 1 - (pixels[:, 1] - ABOVE) / (HEIGHT - BELOW - ABOVE)
    return np.column_stack([across, up])


def elements(picture: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(picture).iter(tag))


def test_rounds_are_points() -> None:
    (one,) = made_summary().rounds
    rounds = [
        replace(one, student_accuracy=share, label_accuracy=None) for share in (0.5, 0.8, 0.9)
    ]
    np.testing.assert_allclose(
        points(by_round(rounds), 0), [[0, 0.5], [0.5, 0.8], [1, 0.9]], atol=0.005
    )
    assert by_round([one]) == ""


def test_curves_are_those_of_the_measures() -> None:
    rng = np.random.default_rng(0)
    chances = rng.dirichlet((1, 1, 1), 60)
    space = ClassLabels(("<b>owl</b>", "cat", "dog"))
    found = measures(space, chances, rng.integers(0, 3, 60))
    assert found is not None
    picture = roc(found)
    texts = [text.text or "" for text in elements(picture, "text")]
    worst = min(found.names.values(), key=lambda one: one.auroc or 2)
    np.testing.assert_allclose(points(picture, 0)[:, 1], worst.roc, atol=0.005)
    assert any(text.startswith("<b>owl</b> (0.") for text in texts)  # a name is text
    shown = points(reliability(found), 0)
    np.testing.assert_allclose(shown, [[sure, right] for _, sure, right in found.bins], atol=0.005)


def test_two_classes_have_one_curve() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        chances = rng.random(97)
        both = np.column_stack([1 - chances, chances])
        truth = (chances > rng.random(97)).astype(int)
        found = measures(ClassLabels(("no", "yes")), both, truth)
        assert found is not None
        texts = [text.text or "" for text in elements(roc(found), "text")]
        shown = [text for text in texts if text.startswith(("no", "yes"))]
        assert shown == [f"yes ({found.names['yes'].auroc:.3f})"]
