"""Several custodians as one teacher: sums, labels, ledgers, and those that drop out."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.experiment.run.custodians import Custodians, agreed
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.wall.errors import LedgerMismatch, Refused, TeacherFailed
from labelwall.wall.matrices import Cells, NoisyCounts
from labelwall.wall.messages import Answers, Queries, Receipt
from tests.make import plan_of
from tests.teacher.shards import tiny

SUMS, NOBODY = ReverseKnn(centroids=2, sigma=1.0), dict[str, str]()
[STAGE] = SUMS.stages
CELLS = Cells(np.zeros((2, 3), dtype=np.int8))


class Fake:
    """Answers with ``number``, or fails from the call ``until`` on."""

    def __init__(self, number: int | None, until: int = 99, error: Exception | None = None) -> None:
        self.number, self.left, self.error = number, until, error or Refused("unreachable", "down")
        self.receipt = dict[str, Any]()

    def _receipt(self) -> Receipt:
        self.left -= 1
        if self.left < 0:
            raise self.error
        receipt = Receipt(1, 0, {STAGE: 1}, {STAGE: self.left}, 1, "head")
        return replace(receipt, **self.receipt)

    def count(self, matrix: Cells) -> NoisyCounts:
        receipt, number = self._receipt(), self.number
        return NoisyCounts(None if number is None else np.full((2, 2), number), receipt)

    def answer(self, queries: Queries) -> Answers:
        receipt, number = self._receipt(), self.number
        label, outcome = (-1, 2) if number is None else (number, 0)
        rows = len(queries.inputs)
        return Answers(np.full(rows, label), np.full(rows, outcome, np.uint8), receipt)

    def export(self, path: Path) -> None:
        self._receipt()
        path.write_text(f"{self.number} at {self.left}")


def asked(
    *fakes: Any, mechanism: Any = SUMS, gone: Mapping[str, str] = NOBODY
) -> tuple[Custodians, list[str]]:
    heard = list[str]()
    named: Any = {f"https://c{number}.example": fake for number, fake in enumerate(fakes)}
    plan, place = plan_of(mechanism, 9), Path("left_out.json")
    return Custodians(named, plan, "class", heard.append, gone, place), heard


def test_counts_add_up_and_one_without_budget_adds_nothing() -> None:
    several, _ = asked(Fake(3), Fake(4), Fake(None))
    reply = several.count(CELLS)
    assert reply.counts is not None
    assert (reply.counts == 7).all()
    assert reply.receipt.charged == {STAGE: 1}  # each one's own
    assert asked(Fake(None), Fake(None))[0].count(CELLS).counts is None


@pytest.mark.parametrize("charged", [{}, {"screen": 1}, {STAGE: 1, "more": 1}])
def test_one_with_other_receipts_is_left_out(charged: dict[str, int]) -> None:
    odd = Fake(1)
    odd.receipt = {"charged": charged}
    several, heard = asked(Fake(3), odd)
    for _ in range(2):
        counts = several.count(CELLS).counts
        assert counts is not None
        assert (counts == 3).all()
    assert len(heard) == 1
    assert "another form" in heard[0]


@pytest.mark.parametrize(
    "error", [Refused("unreachable", "down"), TeacherFailed(), LedgerMismatch("it is damaged")]
)
def test_one_that_drops_out_is_named_once_and_asked_no_more(error: Exception) -> None:
    several, heard = asked(Fake(3), Fake(4, until=1, error=error))
    totals = [several.count(CELLS).counts for _ in range(3)]
    assert [int(total[0, 0]) for total in totals if total is not None] == [7, 3, 3]
    assert len(heard) == 1
    assert "c1.example is left out" in heard[0]
    with pytest.raises(type(error)):
        asked(Fake(1, until=0, error=error))[0].count(CELLS)
    known = json.loads(Path("left_out.json").read_text())  # what a resumed run begins with
    assert known == {"https://c1.example": str(error)}
    again, heard = asked(Fake(3), Fake(4), gone=known)
    total = again.count(CELLS).counts
    assert total is not None
    assert total[0, 0] == 3
    assert len(heard) == 1


def test_labels_are_the_most_frequent_and_values_the_mean() -> None:
    rows = Queries(np.zeros((4, 3), dtype=np.float32))
    reply = asked(Fake(2), Fake(1), Fake(2), Fake(None))[0].answer(rows)
    assert (reply.labels.tolist(), reply.outcomes.tolist()) == ([2] * 4, [0] * 4)
    none = asked(Fake(None))[0].answer(rows)
    assert (none.labels.tolist(), none.outcomes.tolist()) == ([-1] * 4, [2] * 4)
    given = [np.array([2, 1, -1, -1]), np.array([1, 1, 3, -1])]
    even = [np.ones(4, dtype=np.int64)] * 2
    assert agreed(given, "class", even).tolist() == [1, 1, 3, -1]  # the lowest of equal ones
    assert agreed(given, "value", even).tolist() == [2, 1, 3, -1]
    bits = [np.array([[1, 0, -1]]), np.array([[1, 1, -1]])]
    assert agreed(bits, "attributes", [np.ones(1, dtype=np.int64)] * 2).tolist() == [[1, 0, -1]]


def test_labels_of_ind_knn_weigh_as_many_neighbours_as_were_released() -> None:
    mechanism, sizes = tiny.MECHANISMS["ind_knn"], (60, 300)
    teachers = [
        tiny.ready(Path(f"c{n}"), "ind_knn", tiny.records(size, seed=n))
        for n, size in enumerate(sizes)
    ]
    several, rows = asked(*teachers, mechanism=mechanism)[0], tiny.queries(30)
    several.use_extractor(tiny.RAW)
    told = several.answer(Queries(rows)).labels
    identities = Queries(rows).identities(tiny.RAW.sha256(), mechanism.fields())
    differ = 0
    for place, identity in enumerate(identities):
        released = [t._ledger.state.results[identity]["individual_budgets"] for t in teachers]
        votes = Counter[int]()
        for count, label in released:
            votes[label] += max(1, count)
        assert votes[int(told[place])] == max(votes.values())
        differ += len(votes) > 1
    assert differ


@pytest.fixture
def any_ledger(monkeypatch) -> None:
    """What the fakes export is no ledger."""
    monkeypatch.setattr("labelwall.experiment.run.custodians.read_state", lambda path: None)


@pytest.mark.usefixtures("any_ledger")
def test_ledgers_lie_beside_one_another(tmp_path: Path) -> None:
    fakes, path = [Fake(1, until=1), Fake(2)], tmp_path / "ledger.sqlite"
    several, heard = asked(*fakes)
    several.export(path)
    assert _ledgers(tmp_path) == {"ledger": "1 at 0", "ledger_1": "1 at 0", "ledger_2": "2 at 98"}
    several.export(path)  # the first one's is as last seen, and the run's is another one's
    assert _ledgers(tmp_path) == {"ledger": "2 at 97", "ledger_1": "1 at 0", "ledger_2": "2 at 97"}
    assert len(heard) == 1


def test_what_is_no_ledger_is_not_kept(tmp_path: Path) -> None:
    several, _ = asked(Fake(1), Fake(2))
    with pytest.raises(LedgerMismatch):
        several.export(tmp_path / "ledger.sqlite")
    assert _ledgers(tmp_path) == {}


@pytest.mark.usefixtures("any_ledger")
def test_one_that_fails_at_its_first_export_leaves_no_ledger(tmp_path: Path) -> None:
    several, heard = asked(Fake(1, until=0), Fake(2))
    several.export(tmp_path / "ledger.sqlite")
    assert _ledgers(tmp_path) == {"ledger": "2 at 98", "ledger_2": "2 at 98"}
    assert len(heard) == 1
    (tmp_path / "ledger_2.sqlite").unlink()
    first, second = several.described(tmp_path / "ledger.sqlite")
    assert (first.left_out, first.ledger_head) == ("down", None)
    assert second.left_out is None


def _ledgers(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in folder.glob("*.sqlite")}
