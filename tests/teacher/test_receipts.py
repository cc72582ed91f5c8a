"""Receipts of several processes over one ledger: each says what its own calls were charged, and no
more.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelwall.teacher.ledger.ledger import Ledger
from labelwall.teacher.mechanisms.batch import RadiusNeighbours
from labelwall.teacher.mechanisms.sums import ReverseKnn
from labelwall.teacher.noise.entropy import SystemEntropy
from labelwall.teacher.teacher import Teacher
from labelwall.wall.matrices import Cells
from labelwall.wall.messages import Queries, Receipt
from tests.teacher.service import tiny
from tests.teacher.service.tiny import CLASSES, DIMENSIONS, SPEC, rows

CELLS = ReverseKnn(centroids=5, neighbours=2, sigma=2.0, margin=3.0)
MECHANISMS = {
    "by query": tiny.MECHANISM,
    "by batch": RadiusNeighbours(radius=0.3, epsilon=1.0),
    "cells": CELLS,
}


def asks(teacher: Teacher, mechanism: object, number: int) -> Receipt:
    """The receipt of one call."""
    if mechanism is CELLS:
        centers = np.random.default_rng(number).integers(-20, 20, (5, DIMENSIONS))
        return teacher.count(Cells(centers.astype(np.int8))).receipt
    return teacher.answer(Queries(rows(10, number))).receipt


@pytest.mark.parametrize("name", MECHANISMS)
def test_what_another_process_is_charged_meanwhile_is_on_its_own_receipt(
    tmp_path: Path, name: str
) -> None:
    """The other one's whole call falls between the beginning of ours and its charge."""
    mechanism = MECHANISMS[name]
    service = tiny.make(tmp_path, mechanism=mechanism)
    first, ledger = service.service.teacher, Ledger(tmp_path / "ledger.sqlite")
    (tmp_path / "other").mkdir()
    records = first.records()
    second = Teacher(lambda: records, ledger, tmp_path / "other", CLASSES, SystemEntropy())
    for teacher in (first, second):
        teacher.use_extractor(SPEC)
    others: list[Receipt] = []
    settle: Callable[..., Any] = first._settle

    def meanwhile(*arguments: Any) -> Any:
        if not others:
            others.append(asks(second, mechanism, 1))
        return settle(*arguments)

    first._settle = meanwhile
    receipts = [asks(first, mechanism, 2), *others]
    receipts += [asks(teacher, mechanism, n) for teacher in (first, second) for n in (1, 2)]
    charged = sum((Counter(receipt.charged) for receipt in receipts), Counter())
    spent = Ledger(tmp_path / "ledger.sqlite").state.spent
    assert charged == {release: n for (_, release), n in spent.items()}
    service.custodian.close()
