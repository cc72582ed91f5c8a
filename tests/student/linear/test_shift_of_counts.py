"""Public rows of other shares or of another source, by noisy counts: against drawn classes."""

from pathlib import Path

import numpy as np
import pytest

from labelwall.student.asking.estimates import FOREIGN, Estimate
from labelwall.student.asking.matrix_round import MatrixRound, ask_cells
from labelwall.student.linear.labelled import Labelled, labelled_classes
from labelwall.student.linear.measure import unit_inputs
from labelwall.student.linear.shift_of_counts import compared
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.wall.features.embedder import unit_length
from labelwall.wall.matrices import Matrix, NoisyCounts, nearest_cells
from labelwall.wall.messages import ExtractorSpec, Receipt
from labelwall.wall.questions import Round

CLASSES, CELLS = 3, 30
FORM = ReverseKnn(centroids=CELLS, neighbours=2, row_neighbours=2, sigma=5.0).query_form
SPEC = ExtractorSpec("raw", (12,), CLASSES)
EQUAL, SKEWED, RARE, TWO = [1 / 3] * 3, [0.7, 0.2, 0.1], [0.49, 0.49, 0.02], [0.5, 0.5, 0.0]
Rows = tuple[np.ndarray, np.ndarray]


def rows(shares: list[float], count: int, seed: int, away: float = 0.0) -> Rows:
    """(features int8 [n, 12], labels): overlapping classes, all of them so far ``away``."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(
        np.repeat(np.arange(CLASSES), np.rint(count * np.array(shares)).astype(int))
    )
    x = 2.0 * np.eye(CLASSES, 12)[labels] + rng.normal(size=(len(labels), 12))
    x[:, 6:] += away * np.random.default_rng(7).normal(size=6)
    return np.rint(12 * x).clip(-63, 63).astype(np.int8), labels


def answered(
    folder: Path, private: Rows, public: np.ndarray, known: Labelled | None = None
) -> tuple[np.ndarray, Estimate]:
    """Labels of public rows by one noisy histogram of the private ones, and their estimate."""

    def count(matrix: Matrix) -> NoisyCounts:
        near, votes = nearest_cells(private[0], matrix.entries, FORM.neighbours), None
        votes = np.zeros((CELLS, CLASSES), dtype=np.int64)
        for column in near.T:
            np.add.at(votes, (column, private[1]), 1)
        noise = np.random.default_rng(5).normal(0, 5.0, votes.shape)
        return NoisyCounts(votes + np.rint(noise).astype(int), Receipt(1, 0, {}, {}, 1, ""))

    asked = MatrixRound(
        count=count,
        planned=Round(number=1, slot=0, queries=None, once=True, form=FORM, seed=0),
        extractor=SPEC,
        features=public,
        labelled=known,
        folder=folder,
    )
    answers, estimate = ask_cells(asked, FORM)
    assert estimate is not None
    return answers.labels, estimate


@pytest.mark.parametrize(("private", "public"), [(RARE, EQUAL), (SKEWED, EQUAL), (EQUAL, EQUAL)])
def test_public_rows_of_other_shares_are_labelled_nearly_as_if_they_were_the_records(
    tmp_path, private, public
) -> None:
    x, labels = rows(public, 1_500, 2)
    found, estimate = answered(tmp_path, rows(private, 6_000, 1), x)
    (tmp_path / "best").mkdir()
    best, _ = answered(tmp_path / "best", rows(public, 6_000, 1), x)
    right = float((found == labels).mean())
    assert right > (best == labels).mean() - 0.04
    assert not estimate.known or estimate.right == pytest.approx(right, abs=0.12)


def test_votes_and_public_labels_choose_together(tmp_path: Path) -> None:
    """Right about as often as the better of the two, and the estimate says so."""
    (x, labels), (few, own) = rows(EQUAL, 1_500, 2), rows(EQUAL, 60, 3)
    known = labelled_classes(few, own, unit_length(SPEC, 12), CLASSES)
    assert known is not None
    by_labels = (unit_inputs(x, unit_length(SPEC, 12)) @ known.weights).argmax(axis=1)
    right, folders = [float((by_labels == labels).mean())], (tmp_path / "cells", tmp_path / "both")
    for folder, learned in zip(folders, (None, known), strict=True):
        folder.mkdir()
        found, estimate = answered(folder, rows(EQUAL, 6_000, 1), x, learned)
        right.append(float((found == labels).mean()))
    assert right[2] > max(right[:2]) - 0.006
    assert estimate.right == pytest.approx(right[2], abs=0.06)


def test_classes_with_votes_in_their_noise_are_named(tmp_path: Path) -> None:
    _, estimate = answered(tmp_path, rows(RARE, 1_500, 1), rows(EQUAL, 1_500, 2)[0])
    assert list(estimate.few) == ["2"]
    assert estimate.few["2"] == pytest.approx(30, abs=40)


def test_factors_are_the_shares_ratio_and_spare_classes_that_public_rows_lack() -> None:
    """A class with a fortieth of the votes counts more often; one without ballots as before."""
    of_class = np.random.default_rng(0).dirichlet(np.full(CELLS, 0.3), CLASSES).T

    def times(private: list[float], public: list[float], noise: float) -> np.ndarray:
        rng = np.random.default_rng(1)
        votes = 6_000 * of_class * private + rng.normal(0, noise, of_class.shape)
        return compared(votes, noise, np.rint(1_500 * of_class @ public))[0]

    assert times(EQUAL, EQUAL, 3.0) == pytest.approx(1.0)
    assert times(EQUAL, TWO, 3.0)[2] == 1.0
    assert 8.0 < times(RARE, EQUAL, 3.0)[2] < 25.0
    assert times(RARE, EQUAL, 60.0)[2] < 2.0  # its votes are noise


def test_rows_of_another_source_are_seen(tmp_path: Path) -> None:
    found = [
        answered(folder, rows(EQUAL, 6_000, 1, away), rows(RARE, 1_500, 2)[0])[1].why
        for away, folder in ((0.0, tmp_path / "alike"), (4.0, tmp_path / "foreign"))
        if folder.mkdir() is None
    ]
    assert found == ["", FOREIGN]
