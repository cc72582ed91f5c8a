"""Individual budgets through the teacher: one order of payments, whatever the batches, the
extractors and the restarts.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import ANSWER, IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.sources import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.teacher.teacher import Teacher
from labelwall.wall.errors import TeacherFailed
from labelwall.wall.messages import ExtractorSpec, Outcome, Queries
from tests.make import plan_of, teach
from tests.seeded_noise import SeededNoise

DIMENSIONS, CLASSES, N = 6, 3, 60
SPEC = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
MECHANISM = IndKnn(threshold=0.3, sigma_label=0.3, sigma_count=4.0, rho=0.3)


def rows(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, DIMENSIONS)).astype(np.float32)


def records() -> Records:
    """With ids that descend."""
    return Records(rows(N, 0), np.arange(N) % CLASSES, np.arange(N)[::-1] * 7 + 5)


def with_first(row: np.ndarray) -> Records:
    """The records and one more, float32 [1, d], whose id comes before all others."""
    return Records(row, np.array([1]), np.array([0])).joined(records())


def teacher(
    folder: Path,
    entropy: object,
    batch_size: int = 16,
    private: Records | None = None,
    slots: int = 1,
) -> Teacher:
    plan = plan_of(MECHANISM, 1, slots=slots)
    return teach(folder, plan, private or records(), SPEC, entropy, batch_size)


def left(folder: Path, ids: np.ndarray, slot: int = 0) -> np.ndarray:
    budgets = Ledger(folder / "ledger.sqlite").individual_budgets
    return budgets.remaining(slot, budgets.serials(ids))


def test_answers_and_payments_are_the_mechanisms_own(tmp_path: Path) -> None:
    tape, asked, private = SeededNoise(3), rows(30, 1), records()
    answering = teacher(tmp_path, tape)
    answers = answering.answer(Queries(asked))
    private = private.take(np.argsort(private.ids))
    features, embedded = (answering._embedder.embed(x)[0] for x in (private.inputs, asked))
    index = ExactIndex(features, private.ids, threads=1)
    similar = index.similar(embedded, MECHANISM.select(1.0))
    keys = Queries(asked).identities(SPEC.sha256(), MECHANISM.fields())
    values, paid = MECHANISM.answer(similar, np.full(N, FULL), private.labels, CLASSES, keys, tape)
    np.testing.assert_array_equal(answers.labels, values[:, 1])
    assert (answers.outcomes == Outcome.ANSWERED).all()
    np.testing.assert_array_equal(FULL - left(tmp_path, private.ids), paid)
    stored = Ledger(tmp_path / "ledger.sqlite").state.results
    assert [stored[key][ANSWER] for key in keys] == values.tolist()
    assert answers.receipt.charged == {ANSWER: 1}
    assert audit(tmp_path / "ledger.sqlite").charged == {f"0/{ANSWER}": 1}


def test_the_size_of_a_batch_changes_nothing(tmp_path: Path) -> None:
    outcomes = []
    for size in (1, 7, 64):
        folder = tmp_path / str(size)
        answers = teacher(folder, SeededNoise(1), batch_size=size).answer(Queries(rows(40, 1)))
        outcomes.append((answers.labels.tolist(), left(folder, records().ids).tolist()))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_extractors_and_restarts_refill_nothing_and_exhausted_records_are_never_counted(
    tmp_path: Path,
) -> None:
    """Under a new extractor every query is new; each goes on with the budgets that the last one
    left, down to nothing.
    """
    entropy, before = SeededNoise(2), np.full(N, FULL)
    for number in range(12):
        answering = teacher(tmp_path, entropy)
        answering.use_extractor(ExtractorSpec("raw", (DIMENSIONS,), CLASSES, scale=1 + number / 50))
        answering.answer(Queries(rows(40, 10 + number)))
        after = left(tmp_path, records().ids)
        assert (after >= 0).all()
        assert (after <= before).all()
        silent = before < MECHANISM._count_units()
        np.testing.assert_array_equal(after[silent], before[silent])
        before = after
    assert silent.all()  # everyone has said what it may ever say
    answers = answering.answer(Queries(rows(20, 99)))
    assert (answers.outcomes == Outcome.ANSWERED).all()  # noise answers, in the same shape
    counts = np.array(
        [value[ANSWER][0] for value in answering._ledger.state.results.values()][-20:]
    )
    assert (np.abs(counts) < 6 * 4.0).all()


def test_slots_have_budgets_of_their_own(tmp_path: Path) -> None:
    answering = teacher(tmp_path, SystemEntropy(), slots=2)
    answering.answer(Queries(rows(20, 1), slot=0))
    assert (left(tmp_path, records().ids, 1) == FULL).all()
    answering.answer(Queries(rows(20, 2), slot=1))
    assert (left(tmp_path, records().ids, 1) < FULL).any()


class Failing(SystemEntropy):
    """Fails at the third label of a batch."""

    def __init__(self) -> None:
        self.drawn = 0

    def discrete_gaussian(
        self, sigma: float, keys: Sequence[str], release: str, width: int
    ) -> np.ndarray:
        self.drawn += release == "label"
        if release == "label" and self.drawn == 3:
            raise RuntimeError("record 17 is to blame")
        return super().discrete_gaussian(sigma, keys, release, width)


def test_a_failure_after_the_reservation_is_one_constant_and_stays_paid(tmp_path: Path) -> None:
    answering = teacher(tmp_path, Failing())
    with pytest.raises(TeacherFailed) as caught:
        answering.answer(Queries(rows(16, 1)))
    assert "17" not in str(caught.value)
    reserved = FULL - left(tmp_path, records().ids)
    assert (reserved > 0).any()
    assert Ledger(tmp_path / "ledger.sqlite").state.results == {}
    assert answering.answer(Queries(rows(16, 1))).labels.shape == (16,)  # the same teacher goes on
    assert (FULL - left(tmp_path, records().ids) >= reserved).all()


def test_a_record_that_no_query_is_near_changes_no_public_byte(tmp_path: Path) -> None:
    """Neighbouring data sets on one tape: budgets, order and company of the others stay what they
    were.
    """
    asked, ids, exported = np.abs(rows(30, 1)), records().ids, []
    far = with_first(-np.ones((1, DIMENSIONS), np.float32))
    folders = tmp_path / "without", tmp_path / "with"
    for folder, private in zip(folders, (records(), far), strict=True):
        answering = teacher(folder, SeededNoise(5), private=private)
        answers, path = answering.answer(Queries(asked)), folder / "public.sqlite"
        answering._ledger.export(path)
        exported.append((path.read_bytes(), answers.labels.tolist(), answers.receipt))
    assert exported[0] == exported[1]
    np.testing.assert_array_equal(*(left(folder, ids) for folder in folders))
    assert left(folders[1], np.array([0])).tolist() == [FULL]


def test_a_record_under_a_query_changes_only_what_it_votes_on(tmp_path: Path) -> None:
    """The same comparison can fail: a record near the queries changes counts, by one where it is
    the only difference.
    """
    asked, counts = np.abs(rows(30, 1)), []
    for name, private in (("without", records()), ("with", with_first(asked[:1]))):
        answering = teacher(tmp_path / name, SeededNoise(5), private=private)
        answering.answer(Queries(asked[:1]))
        counts.append(next(iter(answering._ledger.state.results.values()))[ANSWER][0])
    assert counts[1] - counts[0] == 1
