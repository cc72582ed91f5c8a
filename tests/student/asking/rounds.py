"""Rounds that ask by matrices, of tiny's vectors."""

from pathlib import Path
from typing import Any

from labelwall.student.asking.matrix_round import Count, MatrixRound, ask_matrices
from labelwall.student.results import Estimate
from labelwall.wall.messages import Answers, ExtractorSpec, Receipt
from labelwall.wall.questions import QueryForm, Round
from tests.experiment import tiny

RECEIPT = Receipt(1, 0, {"sum": 1}, {"sum": 9}, 1, "")


def planned(form: QueryForm) -> Round:
    return Round(number=1, slot=0, queries=None, once=True, form=form, seed=0)


def asked(
    folder: Path | None, count: Count, form: QueryForm, **others: Any
) -> tuple[Answers, Estimate | None]:
    features = tiny.integers(tiny.rows(60, 3)[0])
    spec = ExtractorSpec("raw", (tiny.DIMENSIONS,), tiny.CLASSES)
    whole = MatrixRound(
        count=count,
        planned=planned(form),
        extractor=spec,
        features=features,
        folder=folder,
        **others,
    )
    return ask_matrices(whole)
