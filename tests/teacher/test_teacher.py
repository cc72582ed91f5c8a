"""The life of a query: charge, draw, record, answer; asked again, the same answer for nothing."""

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ABSTAINED, ExtractorSpec, Outcome, Queries
from tests.make import ZeroNoise, plan_of, teach

DIMENSIONS, CLASSES = 6, 3
SPEC = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
MECHANISM = PrivateKnn(k=9, threshold=5, sigma_screen=1.0, sigma_vote=1.0, sample_rate=0.5)


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    x = rng.normal(size=(n, DIMENSIONS)) + 1.2 * np.eye(CLASSES, DIMENSIONS)[labels]
    return x.astype(np.float32), labels.astype(np.int64)


def teacher(
    tmp_path: Path,
    entropy: object,
    *,
    asked: int = 100,
    answered: int = 100,
    n: int = 80,
    mechanism: PrivateKnn = MECHANISM,
) -> Teacher:
    records, plan = Records(*rows(n), np.arange(n)), plan_of(mechanism, asked, answered)
    return teach(tmp_path, plan, records, SPEC, entropy)


def unit(x: np.ndarray) -> np.ndarray:
    """The feature map of SPEC, written down a second time."""
    normed = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    return np.clip(np.rint(16 * np.sqrt(DIMENSIONS) * normed), -63, 63)


def test_without_noise_answers_are_the_plain_screened_vote(tmp_path: Path) -> None:
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


def test_asked_again_the_answer_is_stored_and_nothing_is_charged_or_drawn(tmp_path: Path) -> None:
    queries, _ = rows(20, seed=1)
    entropy = ZeroNoise()
    first = teacher(tmp_path, entropy)
    answers = first.answer(Queries(queries))
    drawn = list(entropy.drawn)
    again = first.answer(Queries(queries[::-1].copy()))
    np.testing.assert_array_equal(again.labels, answers.labels[::-1])
    assert again.receipt.charged == {"screen": 0, "aggregate": 0}
    assert again.receipt.served == 20
    assert entropy.drawn == drawn
    restarted = teacher(tmp_path, entropy)
    np.testing.assert_array_equal(restarted.answer(Queries(queries)).labels, answers.labels)
    assert entropy.drawn == drawn


def test_past_the_answer_cap_passers_are_refused_in_request_order(tmp_path: Path) -> None:
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


def test_past_the_screening_cap_nothing_is_drawn(tmp_path: Path) -> None:
    queries, _ = rows(40, seed=1)
    entropy = ZeroNoise()
    answers = teacher(tmp_path, entropy, asked=10).answer(Queries(queries))
    assert (answers.outcomes[10:] == Outcome.CAP_REACHED).all()
    assert (answers.outcomes[:10] != Outcome.CAP_REACHED).all()
    assert sum(draw.queries for draw in entropy.drawn if draw.release == "screen") == 10


def test_a_new_extractor_makes_new_queries(tmp_path: Path) -> None:
    queries, _ = rows(6, seed=1)
    answering = teacher(tmp_path, ZeroNoise())
    answering.answer(Queries(queries))
    answering.use_extractor(ExtractorSpec("raw", (DIMENSIONS,), CLASSES, scale=0.5))
    assert answering.answer(Queries(queries)).receipt.charged["screen"] == 6


@pytest.mark.parametrize(
    "bad",
    [
        Queries(np.zeros((2, DIMENSIONS + 1), np.float32)),
        Queries(np.zeros((2, 4, 4, 1), np.uint8)),
        Queries(rows(2)[0], slot=1),
    ],
)
def test_bad_input_charges_nothing(tmp_path: Path, bad: Queries) -> None:
    answering = teacher(tmp_path, ZeroNoise())
    with pytest.raises(InvalidInput):
        answering.answer(bad)
    assert Ledger(tmp_path / "ledger.sqlite").state.spent == {}


def test_queries_are_validated() -> None:
    flat, infinite = np.zeros(3, np.float32), np.full((1, 3), np.nan, np.float32)
    for inputs in (np.zeros((2, 3)), flat, infinite, np.zeros((1, 3, 3, 1))):
        with pytest.raises(InvalidInput):
            Queries(inputs)


def test_the_tape_is_refused_by_a_ledger_that_certifies(tmp_path: Path) -> None:
    teacher(tmp_path, SystemEntropy())
    with pytest.raises(InvalidInput, match="test tape"):
        teacher(tmp_path, ZeroNoise())
