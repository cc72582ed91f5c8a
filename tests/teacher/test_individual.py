"""Individual budgets through the teacher, whatever the batches, extractors and restarts."""

import numpy as np

from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.ind_knn import ANSWER, IndKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.search.cpu import ExactIndex
from labelwall.wall.messages import ExtractorSpec, Outcome, Queries
from tests.make import plan_of, rows, teach
from tests.seeded_noise import SeededNoise

DIMENSIONS, CLASSES, N = 6, 3, 60
SPEC = ExtractorSpec("raw", (DIMENSIONS,), CLASSES)
MECHANISM = IndKnn(threshold=0.3, sigma_label=0.3, sigma_count=4.0, rho=0.3)


def records():
    """With ids that descend."""
    return Records(rows(N, 0), np.arange(N) % CLASSES, np.arange(N)[::-1] * 7 + 5)


def teacher(folder, entropy, batch_size=16, private=None, slots=1):
    plan = plan_of(MECHANISM, 1, slots=slots)
    return teach(folder, plan, private or records(), SPEC, entropy, batch_size)


def left(folder, ids, slot=0):
    budgets = Ledger(folder / "ledger.sqlite").individual_budgets
    return budgets.remaining(slot, budgets.serials(ids))


def test_answers_and_payments_are_the_mechanisms_own(tmp_path):
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


def test_the_size_of_a_batch_changes_nothing(tmp_path):
    outcomes = []
    for size in (1, 7, 64):
        folder = tmp_path / str(size)
        answers = teacher(folder, SeededNoise(1), batch_size=size).answer(Queries(rows(40, 1)))
        outcomes.append((answers.labels.tolist(), left(folder, records().ids).tolist()))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_extractors_and_restarts_refill_nothing_and_exhausted_records_are_never_counted(tmp_path):
    """Under a new extractor every query is new."""
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


def test_slots_have_budgets_of_their_own(tmp_path):
    answering = teacher(tmp_path, SystemEntropy(), slots=2)
    answering.answer(Queries(rows(20, 1), slot=0))
    assert (left(tmp_path, records().ids, 1) == FULL).all()
    answering.answer(Queries(rows(20, 2), slot=1))
    assert (left(tmp_path, records().ids, 1) < FULL).any()


def test_a_record_that_no_query_is_near_changes_no_public_byte(tmp_path):
    """On one tape. Others' budgets, order and company stay what they were."""
    asked, ids, exported = np.abs(rows(30, 1)), records().ids, []
    far = -np.ones((1, DIMENSIONS), np.float32)
    first = Records(far, np.array([1]), np.array([0]))  # whose id comes before all others
    folders = tmp_path / "without", tmp_path / "with"
    for folder, private in zip(folders, (records(), first.joined(records())), strict=True):
        answering = teacher(folder, SeededNoise(5), private=private)
        answers, path = answering.answer(Queries(asked)), folder / "public.sqlite"
        answering._ledger.export(path)
        exported.append((path.read_bytes(), answers.labels.tolist(), answers.receipt))
    assert exported[0] == exported[1]
    np.testing.assert_array_equal(*(left(folder, ids) for folder in folders))
    assert left(folders[1], np.array([0])).tolist() == [FULL]
