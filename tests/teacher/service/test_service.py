"""Several callers over a real socket; records and persons that come and go."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.records.persons import codes_of, row_ids
from labelwall.wall.errors import Refused
from labelwall.wall.guarantee import EACH, POOLED
from labelwall.wall.messages import Queries
from labelwall.wall.wire import encode
from tests.postgres import audited
from tests.teacher.service import tiny
from tests.teacher.service.tiny import client, clients, rows, served


def test_concurrent_callers_share_batches_and_never_overspend(tmp_path, place):
    """Eight callers ask 8 x 60 queries, a third of them the same, against a cap of 200."""
    made = tiny.make(tmp_path, asked=200, answered=50, place=place)
    together, barrier = Mock(wraps=made.service.teacher.answer_together), threading.Barrier(8)
    made.service.teacher.answer_together = together

    def analyst(number):
        asked = np.concatenate([rows(40, 10 + number), rows(20, 9)])
        with client(made.url, made.tokens["ann" if number % 2 else "bob"]) as remote:
            barrier.wait()
            answers = [remote.answer(Queries(batch)) for batch in np.split(asked, 12)]
        charged = np.array([[*each.receipt.charged.values()] for each in answers])
        return [label for each in answers[8:] for label in each.labels], charged.sum(axis=0)

    with served(made), ThreadPoolExecutor(8) as pool:
        labels, charged = zip(*pool.map(analyst, range(8)), strict=True)
    assert all(each == labels[0] for each in labels)  # one answer for each query, whoever asks
    spent = Ledger(place).state.spent
    assert spent[0, "screen"] == 200
    assert spent[0, "aggregate"] <= 50
    assert sum(charged).tolist() == [spent[0, "screen"], spent[0, "aggregate"]]
    assert audited(place, tmp_path).problems == []
    assert max(len(each.args[0]) for each in together.call_args_list) > 1


def test_records_come_and_go(tmp_path, place):
    made = tiny.make(tmp_path, place=place)
    new, labels, ids = rows(4, 50), np.array([0, 1, 2, 0]), np.array([500, 501, 502, -3])
    with clients(made, "carol") as carol:
        for _ in range(2):  # a repeated request changes nothing
            carol.add(new, labels, ids)
        with pytest.raises(Refused, match="of no present record"):
            carol.add(new, labels[::-1].copy(), ids)
        for _ in range(2):
            carol.remove(np.array([500, 3, 12345]))
        assert {*made.service.teacher.records().ids} == {*range(80), *ids} - {500, 3}
        carol.add(new, labels, ids)  # once more after a removal is no repetition
        assert made.browse().status_code == 200  # on either ledger
    again = tiny.make(tmp_path, place=place)
    assert {*again.service.teacher.records().ids} == {*range(80), *ids} - {3}
    again.custodian.close()


PEOPLE = [str(number % 20) for number in range(tiny.RECORDS)]
ROWS = {"inputs": rows(3, 7), "labels": np.array([0, 1, 2]), "ids": np.arange(3)}


def rows_of_persons():
    plain, persons = tiny.records_of(), codes_of(PEOPLE)
    return replace(plain, ids=row_ids(persons, plain.ids), persons=persons)


@pytest.mark.parametrize("adversary", [POOLED, EACH])
def test_rows_come_with_persons_and_persons_go(tmp_path, adversary):
    made = tiny.make(tmp_path, records=rows_of_persons, unit="person", adversary=adversary)
    teacher = made.service.teacher

    def present(*people):
        return teacher.present(codes_of([*people]), owners=True).tolist()

    def post(path, *content):
        return made.call("carol", f"{path}?wait=30", "POST", *content)

    with clients(made, "ann") as client:
        budget = made.call("ann").json()
        assert budget["unit"] == budget["plan"]["unit"] == "person"
        assert present("77", "3") == [False, True]
        added = post("records", encode({**ROWS, "persons": np.array([77, 77, 3])}))
        assert added.status_code == 200
        assert present("77", "3") == [True, True]
        for wrong in ({}, {"persons": np.array([1, 2])}, {"persons": np.array([1.5, 2.5, 3.5])}):
            reply = post("records", encode({**ROWS, **wrong}))
            assert (reply.status_code, "persons" in reply.text) == (422, True)
        removal = b'{"ids": [77, "3", "nobody"]}'
        assert post("records/removals", removal, "application/json").status_code == 200
        assert present("77", "3", "4") == [False, False, True]
        assert client.answer(Queries(rows(4, 9))).receipt.unit == "person"
    assert str(codes_of(["77"])[0]) not in str(made.lines)
