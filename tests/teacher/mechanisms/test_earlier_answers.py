"""Answers that vote on later queries: only recorded ones, by public numbers, free, also later."""

from dataclasses import replace

import numpy as np
import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.ind_knn import ANSWER, EarlierAnswers, IndKnn, Reused
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.search.kernels import GRID, Similar, cosine
from labelwall.wall.errors import TeacherFailed
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import plan_of, teach
from tests.seeded_noise import SeededNoise
from tests.teacher.mechanisms import algorithm3

D, CLASSES = 24, 3
SPEC = ExtractorSpec("raw", (D,), CLASSES)
MECHANISM = IndKnn(threshold=0.6, sigma_label=0.3, sigma_count=4.0, rho=0.3, reuse=True)


def vectors(n, seed):
    """float32 [n, D] around three axes, so that many are near each other."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, D)) / 6 + np.eye(CLASSES, D)[np.arange(n) % CLASSES]).astype(
        np.float32
    )


def teacher(folder, mechanism=MECHANISM):
    records = Records(vectors(30, 0), np.arange(30) % CLASSES, np.arange(30))
    return teach(folder, plan_of(mechanism, 1), records, SPEC, SeededNoise(1), 8)


def test_released_pairs_add_their_weights_and_count_for_the_scale_but_pay_nothing():
    """One query against Algorithm 3 in fractions; the pairs have endless budgets."""
    left, labels, tape = np.array([FULL, FULL // 9]), np.array([0, 1]), SeededNoise(4)
    similar = [Similar(np.array([0, 1], dtype=np.int32), np.array([GRID, 100], dtype=np.uint8))]
    reused = Reused(np.array([[0, 50, 90 * GRID]]), np.array([91]))
    values, paid = MECHANISM.answer(similar, left, labels, CLASSES, ["k"], tape, reused)
    count = 2 + int(tape.discrete_gaussian(4.0, ["k"], "count", 1)[0, 0])
    sigma = algorithm3.Fraction(MECHANISM.sigma_label)
    scale = int(algorithm3.noise_scale(sigma, count + 91) / algorithm3.STEP)
    each, price = MECHANISM._count_units(), MECHANISM._prices(scale)
    weight = min(100, int(np.searchsorted(price, left[1] - each, side="right")) - 1)
    noise = tape.discrete_gaussian(float(scale), ["k"], "label", CLASSES)[0]
    sums = np.array([GRID, weight + 50, 90 * GRID]) + noise
    assert values.tolist() == [[count, int(sums.argmax())]]
    assert paid.tolist() == [each + price[w] for w in (GRID, weight)]
    assert (paid <= MECHANISM.reserve(similar, left)).all()


def test_answers_go_on_where_all_records_are_silent_and_the_receipt_counts_them(tmp_path):
    """Forty released labels of a class then decide, by 15 deviations of the noise."""
    right, asked = {}, Queries(vectors(30, 99))
    for reuse in (True, False):
        made = teacher(tmp_path / str(reuse), replace(MECHANISM, reuse=reuse))
        first = [made.answer(Queries(vectors(60, seed))) for seed in range(1, 12)]
        left = made._ledger.individual_budgets.remaining(0, made._serials)
        assert (left < MECHANISM._count_units()).all()
        assert first[0].receipt.reused < 60  # nothing was there to begin with
        last = made.answer(asked)
        assert (last.receipt.reused, last.receipt.charged) == (30 * reuse, {ANSWER: 0})
        right[reuse] = (last.labels == np.arange(30) % CLASSES).mean()
        again = made.answer(asked)
        assert again.labels.tolist() == last.labels.tolist()
        assert (again.receipt.served, again.receipt.reused) == (30, 0)
    assert right[True] > 0.9 > right[False]
    assert audit(tmp_path / "True" / "ledger.sqlite").charged == {f"0/{ANSWER}": 1}


def test_a_restart_goes_on_with_the_same_votes(tmp_path):
    batches = [Queries(vectors(40, seed)) for seed in (1, 2, 3)]
    through, again = teacher(tmp_path / "through"), tmp_path / "restarted"
    expected = [through.answer(batch).labels.tolist() for batch in batches]
    assert [teacher(again).answer(batch).labels.tolist() for batch in batches] == expected
    (path,) = again.glob("answered-*.bin")
    path.unlink()  # public, and no answer depends on it once it is given
    assert [teacher(again).answer(batch).labels.tolist() for batch in batches] == expected


def test_only_answers_that_stand_in_the_ledger_vote_and_a_torn_row_is_cut_off(tmp_path):
    path, x = tmp_path / "answered.bin", (60 * np.eye(3, D)).astype(np.int8)
    released, keys = EarlierAnswers(path, D), ["aa" * 32, "bb" * 32, "cc" * 32]
    assert released.votes({}, cosine(0.5), x, CLASSES).counts.tolist() == [0, 0, 0]
    released.add(keys, x)
    # the second was never recorded, the third is another mechanism's
    results = {keys[0]: {ANSWER: [5, 2]}, keys[2]: {"aggregate": 1}}
    with path.open("ab") as file:
        file.write(b"torn")
    for kept in (released, EarlierAnswers(path, D)):
        votes = kept.votes(results, cosine(0.5), x, CLASSES)
        assert votes.counts.tolist() == [1, 0, 0]
        assert votes.sums.tolist() == [[0, 0, GRID], [0, 0, 0], [0, 0, 0]]
    assert path.stat().st_size == 3 * (32 + D)


def test_a_batch_that_failed_leaves_nothing_to_reuse(tmp_path, monkeypatch):
    monkeypatch.setattr(SeededNoise, "discrete_gaussian", lambda *_: 1 / 0)
    with pytest.raises(TeacherFailed):
        teacher(tmp_path).answer(Queries(vectors(8, 1)))
    assert not list(tmp_path.glob("answered-*.bin"))
