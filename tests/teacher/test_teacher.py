"""The life of a query: charge, draw, record, answer; asked again, the same answer for nothing."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from labelwall.teacher.mechanisms.votes import LANDMARKS, PrivateKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ABSTAINED, ExtractorSpec, Outcome, Queries
from tests.make import ZeroNoise, plan_of, teach
from tests.teacher.shards import tiny

DIMENSIONS, CLASSES = 6, 3
SPEC = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
MECHANISM = PrivateKnn(k=9, threshold=5, sigma_screen=1.0, sigma_vote=1.0, sample_rate=0.5)


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    x = rng.normal(size=(n, DIMENSIONS)) + 1.2 * np.eye(CLASSES, DIMENSIONS)[labels]
    return x.astype(np.float32), labels.astype(np.int64)


def teacher(tmp_path, entropy, *, asked=100, answered=100, n=80, mechanism=MECHANISM):
    records, plan = Records(*rows(n), np.arange(n)), plan_of(mechanism, asked, answered)
    return teach(tmp_path, plan, records, SPEC, entropy)


def unit(x):
    """The feature map of SPEC, written down a second time."""
    normed = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    return np.clip(np.rint(16 * np.sqrt(DIMENSIONS) * normed), -63, 63)


def test_without_noise_answers_are_the_plain_screened_vote(tmp_path):
    queries, _ = rows(50, seed=1)
    (x, y), k = rows(80), MECHANISM.k
    distance = ((unit(queries)[:, None, :] - unit(x)[None, :, :]) ** 2).sum(axis=2)
    nearest = np.lexsort((np.broadcast_to(np.arange(80), distance.shape), distance), axis=1)[:, :k]
    votes = np.stack([(y[nearest] == c).sum(axis=1) for c in range(CLASSES)], axis=1)
    expected = np.where(votes.max(axis=1) > MECHANISM.threshold, votes.argmax(axis=1), ABSTAINED)
    answers = teacher(tmp_path, ZeroNoise()).answer(Queries(queries))
    np.testing.assert_array_equal(answers.labels, expected)
    assert 5 < (expected == ABSTAINED).sum() < 45  # both outcomes are exercised
    assert answers.labels.dtype == np.int64


def test_past_the_answer_cap_passers_are_refused_in_request_order(tmp_path):
    queries, _ = rows(40, seed=1)
    free = teacher(tmp_path / "free", ZeroNoise()).answer(Queries(queries))
    capped = teacher(tmp_path / "capped", ZeroNoise(), answered=7)
    answers = capped.answer(Queries(queries))
    passed = np.flatnonzero(free.outcomes == Outcome.ANSWERED)
    for outcome, places in ((Outcome.ANSWERED, passed[:7]), (Outcome.CAP_REACHED, passed[7:])):
        np.testing.assert_array_equal(np.flatnonzero(answers.outcomes == outcome), places)
    assert (answers.labels[passed[7:]] == ABSTAINED).all()
    again = capped.answer(Queries(queries))
    np.testing.assert_array_equal(again.outcomes, answers.outcomes)  # the refusal is stored
    assert again.receipt.left["aggregate"] == 0


def test_the_tape_is_refused_by_a_ledger_that_certifies(tmp_path):
    teacher(tmp_path, SystemEntropy())
    with pytest.raises(InvalidInput, match="test tape"):
        teacher(tmp_path, ZeroNoise())


@pytest.mark.parametrize(
    "landmarks",
    [
        b"",
        b"\x01" * (tiny.DIMENSIONS + 1),
        b"\x7f" * 3,
        b"\x01" * (tiny.DIMENSIONS * (LANDMARKS + 1)),
    ],
)
def test_without_public_rows_or_with_many_nothing_is_charged(tmp_path, landmarks):
    made = tiny.ready(tmp_path, "private_radius", tiny.records())
    made.use_extractor(replace(tiny.RAW, landmarks=landmarks))
    before = made._ledger.state.head
    with pytest.raises(InvalidInput, match=r"`extractor.landmarks` must be "):
        made.answer(Queries(tiny.queries()))
    assert made._ledger.state.head == before


@pytest.mark.parametrize("backbone", ["raw", "box"])
def test_an_extractor_that_does_not_fit_is_refused_before_a_record_is_read(tmp_path, backbone):
    """What it says depends on no record, and can not tell how many there are."""
    wide = 4001
    ends = {"mean": (0.0,) * wide, "std": (1.0,) * wide} if backbone == "box" else {}
    unread = Mock(side_effect=AssertionError("a record was read"))
    ledger = tiny.ledger_in(tmp_path, MECHANISM, 100)
    answering = Teacher(unread, ledger, tmp_path, CLASSES, ZeroNoise())
    with pytest.raises(InvalidInput, match=r"of 1\.\.4000 dimensions. Found 4001"):
        answering.use_extractor(ExtractorSpec(backbone, (wide,), CLASSES, **ends))
