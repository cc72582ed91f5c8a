"""Rounds that ask by matrices: the same ones again after a kill, and counts within their noise."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.student.asking.ask_matrices import ask_matrices, axes_by_count
from labelwall.student.asking.estimates import UNKNOWN, Estimate
from labelwall.student.linear import measure
from labelwall.teacher.mechanisms.sums import PrivateLinear, ReverseKnn
from labelwall.wall.matrices import COUNT, SENSITIVITY, Matrix, NoisyCounts
from labelwall.wall.messages import Answers, ExtractorSpec, Receipt
from labelwall.wall.questions import QueryForm, Round
from tests.experiment import tiny

LINEAR = PrivateLinear(steps=3, noise_multiplier=0.5).query_form


class Killed(BaseException):
    """As if the process ended here."""


def of(form: QueryForm) -> Round:
    return Round(1, 0, None, True, form, seed=0)


def asked(
    folder: Path, count: Callable[[Matrix], NoisyCounts], form: QueryForm = LINEAR
) -> tuple[Answers, Estimate | None]:
    features = tiny.integers(tiny.rows(60, 3)[0])
    spec = ExtractorSpec("raw", (tiny.DIMENSIONS,), tiny.CLASSES)
    return ask_matrices(count, of(form), spec, folder, features)


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
        return NoisyCounts(sums, Receipt(1, 0, {"sum": 1}, {"sum": 9}, 1, ""))

    with pytest.raises(Killed):
        asked(tmp_path, count)
    inner = measure.to_integers
    monkeypatch.setattr(measure, "to_integers", lambda weights: inner(weights) // 2 + 1)
    receipt = asked(tmp_path, count)[0].receipt
    assert (receipt.asked, receipt.charged) == (3, {"sum": 3})
    assert len(set(sent)) == 3
    assert len(sent) == 2 + step + answered


@pytest.mark.parametrize(
    ("records", "noise", "axes"),
    [
        (1_000, 20.0, None),  # as the guess says
        (1_900, 20.0, None),  # not twice as many
        (200, 20.0, 11),  # 0.75 times a class's records in deviations of one step's noise
        (100_000, 20.0, 192),  # three quarters of the public rows
        (200, 500.0, None),  # hidden by the noise
        (0, 20.0, None),  # two a class are hardly more than there are
    ],
)
def test_axes_follow_from_the_count_of_a_first_sum(records, noise, axes) -> None:
    sent = []

    def count(matrix: Matrix) -> NoisyCounts:
        sent.append(matrix.entries)
        sums = np.zeros((1, 6 * tiny.CLASSES + 1), dtype=np.int64)
        sums[0, -1] = records * COUNT
        return NoisyCounts(sums, Receipt(1, 0, {"sum": 1}, {"sum": 9}, 1, ""))

    form = PrivateLinear(steps=20, noise_multiplier=noise, axes=5).query_form
    spec = ExtractorSpec("raw", (500,), tiny.CLASSES, center=(0.0,) * 500, axes=bytes(2 * 500 * 5))
    plain = np.zeros((256, 500))
    assert axes_by_count(count, of(form), spec, 1_000, plain) == axes
    assert not np.any(sent)
    few = replace(form, steps=9)
    assert axes_by_count(count, of(few), spec, 1_000, plain) is None  # too few to spare one
    assert len(sent) == 1


@pytest.mark.parametrize("records", [0, 10_000])
@pytest.mark.parametrize(
    "asks",
    [
        PrivateLinear(steps=3, noise_multiplier=50.0).query_form,
        ReverseKnn(centroids=6, sigma=50.0).query_form,
    ],
    ids=["sums", "histogram"],
)
def test_counts_within_their_noise_tell_nothing_of_the_labels(tmp_path, asks, records) -> None:
    """Whether there are any records is private: no count says so but by its own noise."""
    rng = np.random.default_rng(0)

    def count(matrix: Matrix) -> NoisyCounts:
        if asks.centroids:
            counts = rng.normal(records / (6 * tiny.CLASSES), 50.0, (6, tiny.CLASSES))
        else:
            counts = rng.normal(0, 50.0 * SENSITIVITY, (1, 28))
            counts[0, -1] += records * COUNT
        return NoisyCounts(counts.astype(np.int64), Receipt(1, 0, {"sum": 1}, {"sum": 9}, 1, ""))

    _, estimate = asked(tmp_path, count, asks)
    assert isinstance(estimate, Estimate)
    assert (estimate.by == UNKNOWN) == (records == 0)
    assert (estimate.text() == "unknown") == (records == 0)
