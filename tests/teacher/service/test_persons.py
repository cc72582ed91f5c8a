"""A service for persons: what it says, rows that are added with persons, persons who go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.records.persons import codes_of, row_ids
from labelwall.teacher.records.sources import Records
from labelwall.wall.guarantee import EACH, POOLED
from labelwall.wall.messages import Queries
from labelwall.wall.wire import SAFETENSORS, encode
from tests.teacher.service import tiny

PEOPLE = [str(number % 20) for number in range(tiny.RECORDS)]
ROWS = {"inputs": tiny.rows(3, 7), "labels": np.array([0, 1, 2]), "ids": np.arange(3)}


def records() -> Records:
    ids, persons = np.arange(tiny.RECORDS), codes_of(PEOPLE)
    labels = ids % tiny.CLASSES
    return Records(tiny.rows(tiny.RECORDS, 0), labels, row_ids(persons, ids), persons)


@pytest.mark.parametrize("adversary", [POOLED, EACH])
def test_rows_come_with_persons_and_persons_go(tmp_path: Path, adversary: str) -> None:
    made = tiny.make(tmp_path, records=records, unit="person", adversary=adversary)
    teacher = made.service.teacher

    def present(*people: str) -> list[bool]:
        return teacher.owning(codes_of([*people])).tolist()

    def post(path: str, content: bytes, media: str = SAFETENSORS) -> tuple[int, str]:
        reply = made.call("carol", f"{path}?wait=30", "POST", content, media)
        return reply.status_code, reply.text

    with tiny.clients(made, "ann") as client:
        budget = made.call("ann").json()
        assert budget["unit"] == budget["plan"]["unit"] == "person"
        assert present("77", "3") == [False, True]
        assert post("records", encode({**ROWS, "persons": np.array([77, 77, 3])}))[0] == 200
        assert present("77", "3") == [True, True]
        for wrong in ({}, {"persons": np.array([1, 2])}, {"persons": np.array([1.5, 2.5, 3.5])}):
            status, text = post("records", encode({**ROWS, **wrong}))
            assert status == 422
            assert "persons" in text
        removal = b'{"ids": [77, "3", "nobody"]}'
        assert post("records/removals", removal, "application/json")[0] == 200
        assert present("77", "3", "4") == [False, False, True]
        assert client.answer(Queries(tiny.rows(4, 9))).receipt.unit == "person"
    assert str(codes_of(["77"])[0]) not in str(made.lines)
