"""Rounds by cells and by weights: the same ones again after a kill, and counts within noise."""

import numpy as np
import pytest

from labelwall.student.asking import matrix_round
from labelwall.student.asking.estimates import UNKNOWN, Estimate
from labelwall.student.linear import measure
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.wall.errors import InvalidInput
from labelwall.wall.matrices import COUNT, SENSITIVITY, Matrix, NoisyCounts, nearest_cells
from labelwall.wall.messages import Outcome
from tests.experiment import tiny
from tests.student.asking.rounds import RECEIPT, asked

FORM = ReverseKnn(centroids=6, sigma=50.0).query_form
LINEAR = PrivateLinear(steps=3, noise_multiplier=0.5).query_form


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
    monkeypatch.setattr(matrix_round, "cluster", lambda *_: pytest.fail("made again"))
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


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_a_round_that_is_killed_at_any_step_sends_the_same_weights_again(
    tmp_path, monkeypatch, step, answered
) -> None:
    """Killed before the teacher is asked, and between its answer and its use."""
    sent: list[bytes] = []
    killed = False

    def count(matrix: Matrix) -> NoisyCounts:
        nonlocal killed
        at = len(set(sent)) + 1
        if at == step and not killed and not answered:
            killed = True
            raise Killed
        sent.append(matrix.entries.tobytes())
        if at == step and not killed:
            killed = True
            raise Killed
        sums = np.random.default_rng(list(sent[-1])).integers(-(10**8), 10**8, (1, 28))
        return NoisyCounts(sums, RECEIPT)

    with pytest.raises(Killed):
        asked(tmp_path, count, LINEAR)
    inner = measure.to_integers
    monkeypatch.setattr(measure, "to_integers", lambda weights: inner(weights) // 2 + 1)
    receipt = asked(tmp_path, count, LINEAR)[0].receipt
    assert (receipt.asked, receipt.charged) == (3, {"sum": 3})
    assert len(set(sent)) == 3
    assert len(sent) == 2 + step + answered


@pytest.mark.parametrize("records", [0, 10_000])
def test_sums_within_their_noise_tell_nothing_of_the_labels(tmp_path, records) -> None:
    """Whether there are any records is private: no sum says so but by its own noise."""
    rng = np.random.default_rng(0)

    def count(matrix: Matrix) -> NoisyCounts:
        sums = rng.normal(0, 50.0 * SENSITIVITY, (1, 28))
        sums[0, -1] += records * COUNT
        return NoisyCounts(sums.astype(np.int64), RECEIPT)

    _, estimate = asked(tmp_path, count, PrivateLinear(steps=3, noise_multiplier=50.0).query_form)
    assert isinstance(estimate, Estimate)
    assert (estimate.by == UNKNOWN) == (records == 0)
    assert (estimate.text() == "unknown") == (records == 0)


def test_refused_sums_leave_no_label_and_no_classifier(tmp_path) -> None:
    answers, estimate = asked(tmp_path, lambda _: NoisyCounts(None, RECEIPT), LINEAR)
    assert estimate is None
    assert set(answers.labels) == {-1}
    assert set(answers.outcomes) == {Outcome.CAP_REACHED}
    assert [path.name for path in tmp_path.iterdir()] == ["weights_1.npz"]


def test_a_rehearsal_stores_and_estimates_nothing() -> None:
    def count(matrix: Matrix) -> NoisyCounts:
        return NoisyCounts(np.full((1, 28), COUNT), RECEIPT)

    rows = tiny.integers(tiny.rows(5, 4)[0])
    answers, estimate = asked(None, count, LINEAR, rows=rows)
    assert (len(answers.labels), estimate) == (5, None)
