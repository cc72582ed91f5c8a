"""Rounds that ask by cells: the same ones again after a kill, and counts within their noise."""

import numpy as np
import pytest

from labelwall.student.asking import ask_cells
from labelwall.student.asking.estimates import UNKNOWN, Estimate
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import Matrix, NoisyCounts, nearest_cells
from labelwall.wall.messages import Outcome
from tests.experiment import tiny
from tests.student.asking.rounds import RECEIPT, asked

FORM = ReverseKnn(centroids=6, sigma=50.0).query_form


@pytest.mark.parametrize("records", [0, 10_000])
def test_counts_within_their_noise_tell_nothing_of_the_labels(tmp_path, records) -> None:
    """Whether there are any records is private: no count says so but by its own noise."""
    rng = np.random.default_rng(0)

    def count(matrix: Matrix) -> NoisyCounts:
        counts = rng.normal(records / (6 * tiny.CLASSES), 50.0, (6, tiny.CLASSES))
        return NoisyCounts(counts.astype(np.int64), RECEIPT)

    _, estimate = asked(tmp_path, count, FORM)
    assert isinstance(estimate, Estimate)
    assert (estimate.by == UNKNOWN) == (records == 0)
    assert (estimate.text() == "unknown") == (records == 0)


def test_a_resumed_round_sends_the_cells_that_it_sent(tmp_path, monkeypatch) -> None:
    sent: list[bytes] = []

    def count(matrix: Matrix) -> NoisyCounts:
        sent.append(matrix.entries.tobytes())
        return NoisyCounts(None, RECEIPT)

    answers, estimate = asked(tmp_path, count, FORM)
    monkeypatch.setattr(ask_cells, "cluster", lambda *_: pytest.fail("made again"))
    asked(tmp_path, count, FORM)
    assert sent[0] == sent[1]
    assert (set(answers.labels), estimate) == ({-1}, None)  # a cap refused the counts
    assert set(answers.outcomes) == {Outcome.CAP_REACHED}


def test_other_rows_get_the_labels_of_their_cells() -> None:
    """Cells are of the features that ask; each row has the class with the most votes in its own."""
    rows, centers = tiny.integers(tiny.rows(9, 7)[0]), []
    counts = np.random.default_rng(1).integers(10**5, 10**6, (6, tiny.CLASSES))

    def count(matrix: Matrix) -> NoisyCounts:
        centers.append(matrix.entries)
        return NoisyCounts(counts, RECEIPT)

    answers, _ = asked(None, count, ReverseKnn(centroids=6, sigma=0.001).query_form, rows=rows)
    # One factor for all classes does not change the best; these counts tell of no shift
    expected = counts.argmax(axis=1)[nearest_cells(rows, centers[0], 1)[:, 0]]
    np.testing.assert_array_equal(answers.labels, expected)


def test_more_cells_than_rows_are_refused(tmp_path) -> None:
    with pytest.raises(InvalidInput, match="at most 60"):
        asked(tmp_path, lambda _: pytest.fail("asked"), ReverseKnn(centroids=61).query_form)
