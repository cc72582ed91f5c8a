"""Answers that vote on later queries: only recorded ones, by public numbers, free, also later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.earlier_answers import EarlierAnswers, Reused
from labelwall.teacher.mechanisms.ind_knn import ANSWER, IndKnn
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.kernels import GRID, Similar, cosine
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import TeacherFailed
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import plan_of, teach
from tests.seeded_noise import SeededNoise
from tests.teacher.mechanisms import algorithm3

D, CLASSES = 24, 3
SPEC = ExtractorSpec("raw", (D,), CLASSES)
MECHANISM = IndKnn(threshold=0.6, sigma_label=0.3, sigma_count=4.0, rho=0.3, reuse=True)


def vectors(n: int, seed: int) -> np.ndarray:
    """float32 [n, D] around three axes, so that many are near each other."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, D)) / 6 + np.eye(CLASSES, D)[np.arange(n) % CLASSES]).astype(
        np.float32
    )


def teacher(
    folder: Path, mechanism: IndKnn = MECHANISM, n: int = 30, entropy: SeededNoise | None = None
) -> Teacher:
    records = Records(vectors(n, 0), np.arange(n) % CLASSES, np.arange(n))
    return teach(folder, plan_of(mechanism, 1), records, SPEC, entropy or SeededNoise(1), 8)


def test_released_pairs_add_their_weights_and_count_for_the_scale_but_pay_nothing() -> None:
    """One query against Algorithm 3 in fractions; the pairs have endless budgets."""
    left, labels, tape = np.array([FULL, FULL // 9]), np.array([0, 1]), SeededNoise(4)
    similar = [Similar(np.array([0, 1], dtype=np.int32), np.array([GRID, 100], dtype=np.uint8))]
    reused = Reused(np.array([[0, 50, 90 * GRID]]), np.array([91]))
    values, paid = MECHANISM.answer(similar, left, labels, CLASSES, ["k"], tape, reused)
    count = 2 + int(tape.discrete_gaussian(4.0, ["k"], "count", 1)[0, 0])
    scale = int(
        algorithm3.noise_scale(algorithm3.Fraction(MECHANISM.sigma_label), count + 91)
        / algorithm3.STEP
    )
    price = MECHANISM._prices(scale)
    weights = [
        GRID,
        min(100, int(np.searchsorted(price, left[1] - MECHANISM._count_units(), side="right")) - 1),
    ]
    noise = tape.discrete_gaussian(float(scale), ["k"], "label", CLASSES)[0]
    sums = np.array([weights[0], weights[1] + 50, 90 * GRID]) + noise
    assert values.tolist() == [[count, int(sums.argmax())]]
    assert paid.tolist() == [MECHANISM._count_units() + price[w] for w in weights]
    assert (paid <= MECHANISM.reserve(similar, left)).all()


@pytest.mark.parametrize("seed", range(5))
def test_with_equal_releases_the_others_pay_alike_whether_a_record_is_there_or_not(
    seed: int,
) -> None:
    """The proof's step (b): reused votes are a function of the history, equal on both data sets."""
    rng = np.random.default_rng(seed)
    released, reused = 40, Reused(rng.integers(0, 900, (1, CLASSES)), np.array([17]))
    left = rng.integers(0, FULL, 12)
    labels = rng.integers(0, CLASSES, 12)
    weights = rng.integers(1, GRID + 1, 12).astype(np.uint8)

    class Exactly:
        unsafe = True

        def discrete_gaussian(
            self, sigma: float, keys: Sequence[str], release: str, width: int
        ) -> np.ndarray:
            able = int((left[:n] >= MECHANISM._count_units()).sum())
            return np.full((1, width), released - able if release == "count" else 0)

    paid = []
    for n in (12, 11):
        similar = [Similar(np.arange(n, dtype=np.int32), weights[:n])]
        values, cost = MECHANISM.answer(
            similar, left[:n], labels[:n], CLASSES, ["k"], Exactly(), reused
        )
        assert values[0, 0] == released
        paid.append(cost)
    np.testing.assert_array_equal(paid[0][:11], paid[1])


def test_answers_go_on_where_all_records_are_silent_and_the_receipt_counts_them(
    tmp_path: Path,
) -> None:
    """All budgets are spent on the first queries.

    Then forty released labels of a class decide, by 15 deviations of the noise.
    """
    made = teacher(tmp_path / "reuse")
    first = [made.answer(Queries(vectors(60, seed))) for seed in range(1, 12)]
    assert (
        made._ledger.individual_budgets.remaining(0, made._serials) < MECHANISM._count_units()
    ).all()
    assert first[0].receipt.reused < 60  # nothing was there to begin with
    asked = Queries(vectors(30, 99))
    last = made.answer(asked)
    assert last.receipt.reused == 30
    assert last.receipt.charged == {ANSWER: 0}
    right = (last.labels == np.arange(30) % CLASSES).mean()
    plain = teacher(tmp_path / "plain", replace(MECHANISM, reuse=False))
    for seed in range(1, 12):
        plain.answer(Queries(vectors(60, seed)))
    assert right > 0.9 > (plain.answer(asked).labels == np.arange(30) % CLASSES).mean()
    again = made.answer(asked)
    assert again.labels.tolist() == last.labels.tolist()
    assert (again.receipt.served, again.receipt.reused) == (30, 0)
    assert audit(tmp_path / "reuse" / "ledger.sqlite").charged == {f"0/{ANSWER}": 1}


def test_a_restart_goes_on_with_the_same_votes(tmp_path: Path) -> None:
    batches = [Queries(vectors(40, seed)) for seed in (1, 2, 3)]
    through = teacher(tmp_path / "through")
    expected = [through.answer(batch).labels.tolist() for batch in batches]
    found = [teacher(tmp_path / "restarted").answer(batch).labels.tolist() for batch in batches]
    assert found == expected
    (path,) = (tmp_path / "restarted").glob("answered-*.bin")
    path.unlink()  # public, and no answer depends on it once it is given
    assert [
        teacher(tmp_path / "restarted").answer(batch).labels.tolist() for batch in batches
    ] == expected


def test_only_answers_that_stand_in_the_ledger_vote_and_a_torn_row_is_cut_off(
    tmp_path: Path,
) -> None:
    path, x = tmp_path / "answered.bin", (60 * np.eye(3, D)).astype(np.int8)
    released = EarlierAnswers(path, D)
    released.add(["aa" * 32, "bb" * 32, "cc" * 32], x)
    # one never recorded, one of another mechanism
    results = {
        "aa" * 32: {ANSWER: [5, 2]},
        "cc" * 32: {"aggregate": 1},
    }
    with path.open("ab") as file:
        file.write(b"torn")
    for kept in (released, EarlierAnswers(path, D)):
        votes = kept.votes(results, cosine(0.5), x, CLASSES)
        assert votes.counts.tolist() == [1, 0, 0]
        assert votes.sums.tolist() == [[0, 0, GRID], [0, 0, 0], [0, 0, 0]]
    assert path.stat().st_size == 3 * (32 + D)
    assert EarlierAnswers(tmp_path / "none.bin", D).votes(
        {}, cosine(0.5), x, CLASSES
    ).counts.tolist() == [0, 0, 0]


class Failing(SeededNoise):
    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        if release == "label":
            raise RuntimeError
        return super().discrete_gaussian(sigma, keys, release, width)


def test_a_batch_that_failed_leaves_nothing_to_reuse(tmp_path: Path) -> None:
    with pytest.raises(TeacherFailed):
        teacher(tmp_path, entropy=Failing(1)).answer(Queries(vectors(8, 1)))
    assert not list(tmp_path.glob("answered-*.bin"))
