"""A service for persons: what it says, rows that are added with persons, persons who go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labelwall.teacher.records.persons import codes_of, row_ids
from labelwall.teacher.records.sources import Records
from labelwall.wall.adversary import EACH, POOLED
from labelwall.wall.messages import Queries
from labelwall.wall.wire import SAFETENSORS, encode
from tests.teacher.service import tiny

PEOPLE = [str(number % 20) for number in range(tiny.RECORDS)]


def records() -> Records:
    ids, persons = np.arange(tiny.RECORDS), codes_of(PEOPLE)
    labels = ids % tiny.CLASSES
    return Records(tiny.rows(tiny.RECORDS, 0), labels, row_ids(persons, ids), persons)


def body(persons: object, **more: np.ndarray) -> bytes:
    arrays = {"inputs": tiny.rows(3, 7), "labels": np.array([0, 1, 2]), "ids": np.arange(3)}
    return encode({**arrays, **({} if persons is None else {"persons": np.array(persons)}), **more})


@pytest.mark.parametrize("adversary", [POOLED, EACH])
def test_rows_come_with_persons_and_persons_go(tmp_path: Path, adversary: str) -> None:
    made = tiny.make(tmp_path, records=records, unit="person", adversary=adversary)
    teacher = made.service.teacher

    def own(person: str) -> bool:
        return bool(teacher.owning(codes_of([person]))[0])

    def post(path: str, content: bytes, media: str = SAFETENSORS) -> tuple[int, str]:
        reply = made.call("carol", f"{path}?wait=30", "POST", content, media)
        return reply.status_code, reply.text

    with tiny.clients(made, "ann") as client:
        budget = made.call("ann").json()
        assert budget["unit"] == budget["plan"]["unit"] == "person"
        assert not own("77")
        assert post("records", body([77, 77, 3]))[0] == 200
        assert own("77")
        for wrong in (body(None), body([1, 2]), body([1.5, 2.5, 3.5])):
            status, text = post("records", wrong)
            assert status in (400, 422)
            assert "persons" in text
        removal = b'{"ids": [77, "3", "nobody"]}'
        assert post("records/removals", removal, "application/json")[0] == 200
        assert not own("77")
        assert not own("3")
        assert own("4")
        assert client.answer(Queries(tiny.rows(4, 9))).receipt.unit == "person"
    shown = "\n".join(map(str, made.lines))
    assert str(codes_of(["77"])[0]) not in shown


def test_rows_have_no_persons_where_a_row_is_the_unit(tmp_path: Path) -> None:
    made = tiny.make(tmp_path)
    with tiny.served(made):
        reply = made.call("ann").json()
        assert reply["unit"] == reply["plan"]["unit"] == "row"
