"""A guarantee for persons: rows that come, persons who go, budgets, and what refuses it."""

from functools import partial

import numpy as np
import pytest

from labelwall.teacher.custodian import open_custodian
from labelwall.teacher.ledger.auditor.auditor import audit
from labelwall.teacher.mechanisms.ind_knn import IndKnn
from labelwall.teacher.records.persons import code_of, codes_of
from labelwall.teacher.records.private_records import Records
from labelwall.teacher.shards.scale_config import ScaleConfig
from labelwall.wall.errors import InvalidInput, LedgerMismatch
from labelwall.wall.messages import Queries
from tests import ledgers
from tests.make import plan_of
from tests.teacher.shards import tiny

SHARDS = pytest.mark.parametrize("shards", [0, 3])
PERSON = code_of("7")
ready = partial(tiny.ready, unit="person")


def answers(teacher, seed=1):
    answer = teacher.answer(Queries(tiny.queries(30, seed)))
    return answer.labels.tolist(), answer.outcomes.tolist()


def split(records):
    own = np.flatnonzero(records.persons == PERSON)
    late = own[len(own) // 2 :]
    return records.take(late), records.take(np.setdiff1d(np.arange(len(records.ids)), late))


@SHARDS
@pytest.mark.parametrize("name", ["private_knn", "gnmax", "ind_knn"])
def test_rows_added_to_a_person_vote_as_if_they_had_been_there(tmp_path, name, shards):
    records = tiny.records(unit="person")
    late, early = split(records)
    assert 0 < len(late.ids) < (records.owners == PERSON).sum()
    expected = answers(ready(tmp_path / "whole", name, records, shards))
    teacher = ready(tmp_path / "grown", name, early, shards)
    teacher.add(late)
    teacher.add(late)  # again: nothing is added
    assert answers(teacher) == expected
    again = ready(tmp_path / "grown", name, early, shards)  # after a restart
    assert answers(again) == expected
    assert again.present(late.ids).all()


@SHARDS
@pytest.mark.parametrize("name", ["private_knn", "gnmax"])
def test_a_person_who_is_removed_leaves_no_row(tmp_path, name, shards):
    records = tiny.records(unit="person")
    others = records.take(records.owners != PERSON)
    expected = answers(ready(tmp_path / "others", name, others, shards))
    late, early = split(records)
    teacher = ready(tmp_path / "d", name, early, shards)
    teacher.add(late)
    both = np.array([PERSON, code_of("nobody")])
    assert teacher.present(both, owners=True).tolist() == [True, False]
    teacher.remove(both)
    assert not teacher.present(np.array([PERSON]), owners=True).any()
    assert answers(teacher) == expected
    assert answers(ready(tmp_path / "d", name, early, shards)) == expected


@SHARDS
def test_rows_that_a_source_shows_of_a_removed_person_do_not_vote(tmp_path, shards):
    """Of one that had no row, too; a row that is added again does."""
    records = tiny.records(unit="person")
    others = records.take(records.owners != PERSON)
    expected = answers(ready(tmp_path / "others", "private_knn", others, shards))
    for name, before in (("late", split(records)[1]), ("none", others)):
        ready(tmp_path / name, "private_knn", before, shards).remove(np.array([PERSON]))
        teacher = ready(tmp_path / name, "private_knn", records, shards)
        assert answers(teacher) == expected
        assert not teacher.present(np.array([PERSON]), owners=True).any()
        teacher.add(split(records)[0])
        assert teacher.present(np.array([PERSON]), owners=True).all()


@SHARDS
def test_a_person_has_one_budget_whatever_its_rows(tmp_path, shards):
    """Spent to the last query: rows that come later, under whatever ids, add nothing."""
    x = np.array([[1, 0, 0]] * 4, dtype=np.float32)
    labels = np.zeros(4, dtype=np.int64)
    everything = Records(x, labels, np.arange(4, dtype=np.int64))
    records = tiny.of_persons(everything, np.array([0, 0, 0, 1]))
    own = records.take(records.persons == code_of("0"))
    teacher = ready(tmp_path, "ind_knn", own.take(slice(0, 1)), shards)
    rng = np.random.default_rng(0)

    def remaining():
        accounts = teacher._ledger.individual_budgets
        return accounts.remaining(0, teacher._serials).tolist()

    def ask(n):
        near = np.ones((n, 3), dtype=np.float32) * [1, 0, 0]
        teacher.answer(Queries((near + rng.normal(0, 0.01, (n, 3))).astype(np.float32)))

    ask(3)
    after = remaining()
    assert 0 < after[0] < 1 << 40
    teacher.add(own.take(slice(1, 3)))  # two rows more
    assert remaining() == after
    teacher.remove(codes_of(["0"]))
    assert remaining() == []
    teacher.add(own.take(slice(2, 3)))  # another row alone
    assert remaining() == after
    teacher.add(records.take(records.persons == code_of("1")))
    assert sorted(remaining()) == sorted([after[0], 1 << 40])


def test_the_ledger_names_the_unit_and_so_does_its_audit(tmp_path):
    teacher = ready(tmp_path, "private_knn", tiny.records(unit="person"), 0)
    receipt = teacher.answer(Queries(tiny.queries(3))).receipt
    assert receipt.unit == teacher.unit == "person"
    teacher.export(tmp_path / "copy.sqlite")
    assert audit(tmp_path / "copy.sqlite").unit == "person"
    assert '"unit":"person"' in ledgers.entries(tmp_path / "copy.sqlite")[0][1]


def test_records_without_persons_are_refused_before_anything_is_charged(tmp_path):
    with pytest.raises(InvalidInput, match=r"records.persons"):
        ready(tmp_path, "private_knn", tiny.records(), 0)
    for records, unit in ((tiny.records(unit="person"), "row"), (tiny.records(), "person")):
        base = tiny.records(unit="row" if unit == "row" else "person")
        teacher = tiny.teacher(tmp_path / unit, "private_knn", base, ScaleConfig(), unit=unit)
        with pytest.raises(InvalidInput, match=r"records.persons"):
            teacher.add(records.take(slice(3, 6)))


def test_a_ledger_for_one_unit_is_refused_for_the_other(tmp_path):
    mechanism = tiny.MECHANISMS["private_knn"]
    for number, units in enumerate((("row", "person"), ("person", "row"))):
        place = tmp_path / str(number)
        plans = [plan_of(mechanism, 10, unit=unit) for unit in units]
        open_custodian(place, data={}, plan=plans[0], unsafe=True).close()
        with pytest.raises(LedgerMismatch, match=f"privacy.unit: {units[0]}. Found '{units[1]}'"):
            open_custodian(place, data={}, plan=plans[1], unsafe=True)


def test_a_mechanism_that_is_not_for_persons_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(IndKnn, "persons", False)
    with pytest.raises(InvalidInput, match=r"`privacy.unit` must be row for ind_knn"):
        ready(tmp_path, "ind_knn", tiny.records(unit="person"), 0)
