"""Records added and removed: tombstones keep what was spent, and deleted data is erased."""

import numpy as np
import pytest

from labelwall.teacher.ledger.individual_budgets import FULL
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.mechanisms.votes import PrivateKnn
from labelwall.teacher.records import record_updates
from labelwall.teacher.records.private_records import Records
from labelwall.wall.messages import ExtractorSpec, Queries
from tests.make import plan_of, rows, teach
from tests.seeded_noise import SeededNoise

D, CLASSES = 24, 3
SPEC = ExtractorSpec("raw", (D,), CLASSES)
IND = IndKnn(threshold=0.2, sigma_label=0.3, sigma_count=4.0, rho=0.3)
KNN = PrivateKnn(k=9, threshold=0, sigma_screen=1.0, sigma_vote=1.0, sample_rate=0.5)


def records(ids, seed=0):
    """The record of an id is the same in every call."""
    wanted = np.array(list(ids), dtype=np.int64)
    return Records(rows(1000, seed, D)[wanted], wanted % CLASSES, wanted)


def teacher(folder, ids, mechanism=IND, entropy=None, place=None):
    return teach(folder, plan_of(mechanism, 500), records(ids), SPEC, entropy, place=place)


def left(made, ids):
    budgets = made._ledger.individual_budgets
    return budgets.remaining(0, budgets.serials(np.array(ids))).tolist()


@pytest.mark.parametrize("mechanism", [IND, KNN], ids=["ind_knn", "private_knn"])
def test_updated_is_as_if_it_had_been_so_from_the_start(tmp_path, place, mechanism):
    """On a tape, also after a restart."""
    whole = teacher(tmp_path / "plain", range(5, 80), mechanism, SeededNoise(1))
    plain = whole.answer(Queries(rows(30, 1, D)))
    updated = teacher(tmp_path / "updated", range(0, 60), mechanism, SeededNoise(1), place)
    updated.remove(np.arange(0, 5))
    updated.add(records(range(60, 90)))
    updated.remove(np.arange(80, 95))  # some of the added, some that never were
    first = updated.answer(Queries(rows(30, 1, D)[:15])).labels.tolist()
    restarted = teacher(tmp_path / "updated", range(0, 60), mechanism, SeededNoise(1), place)
    second = restarted.answer(Queries(rows(30, 1, D)[15:])).labels.tolist()
    assert first + second == plain.labels.tolist()


def test_after_removal_answers_are_those_of_the_others_with_what_they_have_left(tmp_path):
    """Exact unlearning, on a tape: the same answers as without the record's later selections."""
    before, after = Queries(rows(20, 1, D)), Queries(rows(20, 2, D))
    removed = teacher(tmp_path / "removed", range(0, 60), entropy=SeededNoise(2))
    removed.answer(before)
    budgets = left(removed, list(range(60)))
    removed.remove(np.array([7]))
    labels = removed.answer(after).labels.tolist()
    # a data set that never had the record, whose others have spent the same
    never = teacher(tmp_path / "never", [i for i in range(60) if i != 7], entropy=SeededNoise(2))
    never._ledger.individual_budgets.spent[0] = FULL - np.delete(budgets, 7)
    assert never.answer(after).labels.tolist() == labels
    assert left(removed, [7]) == [budgets[7]]  # a tombstone spends nothing


def test_removed_and_added_again_does_not_refill(tmp_path, place):
    made = teacher(tmp_path, range(0, 40), place=place)
    made.answer(Queries(rows(60, 1, D)))
    spent = left(made, list(range(40)))
    assert min(spent) < FULL
    made.remove(np.arange(40))
    made.answer(Queries(rows(5, 2, D)))
    made = teacher(tmp_path, range(0, 40), place=place)
    made.add(records(range(0, 40)))
    assert left(made, list(range(40))) == spent
    made.answer(Queries(rows(60, 3, D)))
    assert (np.array(left(made, list(range(40)))) <= spent).all()


def files_with(folder, content):
    return [p for p in folder.iterdir() if p.is_file() and content in p.read_bytes()]


@pytest.mark.parametrize("source", ["added", "of the data source"])
def test_the_data_of_a_removed_record_is_in_no_file(tmp_path, source):
    made = teacher(tmp_path, range(0, 40))
    made.use_extractor(ExtractorSpec("raw", (D,), CLASSES, scale=0.5))  # a second cache
    made.use_extractor(SPEC)
    victim = 50 if source == "added" else 20
    if source == "added":
        made.add(records(range(50, 51)))
    raw = records(range(victim, victim + 1)).inputs
    features = [made._embedder.embed(raw)[0].tobytes(), raw.tobytes()]
    made.answer(Queries(rows(20, 1, D)))
    assert files_with(tmp_path, features[0])
    assert bool(files_with(tmp_path, features[1])) == (source == "added")
    made.remove(np.array([victim]))
    for content in features:
        assert files_with(tmp_path, content) == []
    assert len(list(tmp_path.glob("embeddings-*.npz"))) == 2  # the other one's other rows stay
    made.answer(Queries(rows(20, 2, D)))
    teacher(tmp_path, range(0, 40)).use_extractor(ExtractorSpec("raw", (D,), CLASSES, scale=0.5))
    for content in features:
        assert files_with(tmp_path, content) == []


def test_a_cache_that_a_crash_left_behind_is_cleaned_when_it_is_opened(tmp_path):
    made = teacher(tmp_path, range(0, 40))
    cache = next(tmp_path.glob("embeddings-*.npz"))
    stale = cache.read_bytes()
    victim = made._embedder.embed(records(range(20, 21)).inputs)[0].tobytes()
    made.remove(np.array([20]))
    cache.write_bytes(stale)  # as if the process had died after the tombstone
    (tmp_path / "embeddings-0.part").write_bytes(stale)
    teacher(tmp_path, range(0, 40))
    assert files_with(tmp_path, victim) == []


def test_on_a_server_the_data_of_a_removed_record_is_in_no_file_of_a_table(tmp_path, postgres):
    """What WAL and backups still hold is in the guide."""
    made = teacher(tmp_path, range(0, 40), place=postgres.schema())
    made.add(records(range(50, 53)))
    victim, other = (records(range(i, i + 1)).inputs.tobytes() for i in (50, 51))
    assert postgres.tables_hold(victim)
    made.remove(np.array([50]))
    assert not postgres.tables_hold(victim)
    assert postgres.tables_hold(other)
    made.remove(np.array([50]))  # again: no error, as after an interrupted removal


def test_added_records_that_public_rows_fit_no_longer_are_dropped(tmp_path):
    """As a row of the data source is: the answers are those without it, and no call fails."""
    expected = teacher(tmp_path / "never", range(60), KNN, SeededNoise(3)).answer(
        Queries(rows(30, 1, D))
    )
    made = teacher(tmp_path / "added", range(60), KNN, SeededNoise(3))
    late = records([70, 71])
    made.add(Records(late.inputs, np.array([CLASSES - 1] * 2), late.ids))
    table = record_updates.updates
    for identity, other in ((70, {"label": CLASSES}), (71, {"input": b"1234"})):
        change = table.update().where(table.c.id == identity).values(other)
        made._ledger.in_custody(lambda connection, change=change: connection.execute(change))
    again = teacher(tmp_path / "added", range(60), KNN, SeededNoise(3))
    assert len(again.records().ids) == 60
    assert again.answer(Queries(rows(30, 1, D))).labels.tolist() == expected.labels.tolist()
