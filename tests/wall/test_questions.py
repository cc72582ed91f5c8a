"""Three kinds of question, each with its own fields."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest

from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.wall.errors import InvalidInput
from labelwall.wall.messages import ExtractorSpec
from labelwall.wall.questions import Basis, CellsForm, MatrixForm, RowForm, SumsForm


def test_a_mechanism_asks_by_the_kind_of_its_matrix() -> None:
    kinds = {None: RowForm, "cells": CellsForm, "weights": SumsForm}
    for name, mechanism in MECHANISMS.items():
        form = mechanism().query_form
        assert type(form) is kinds[form.matrix], name
        null = {field.name for field in fields(form) if getattr(form, field.name) is None}
        assert null <= {"noise", "axes"}  # that the budget decides, or all features


@pytest.mark.parametrize(
    ("form", "basis", "rows"),
    [
        (RowForm(), None, 1),
        (RowForm(landmarks=5), Basis(kind="landmarks", count=5), 1),
        (CellsForm(centroids=7), None, 7),
        (CellsForm(centroids=0), None, 1),
        (SumsForm(steps=3), None, 1),
        (SumsForm(steps=3, axes=4), Basis(kind="axes", count=4), 1),
        (SumsForm(steps=3, labels="value"), Basis(kind="axes", count=0, lengths=True), 1),
    ],
)
def test_features_and_rows_of_a_question(form, basis, rows) -> None:
    assert (form.basis, form.rows) == (basis, rows)


def test_the_noise_of_several_custodians_adds_up_by_squares() -> None:
    for form in (CellsForm(centroids=2, noise=3.0), SumsForm(steps=2, noise=3.0)):
        assert form.summed(4).deviation == 3.0 * math.sqrt(4)
        assert replace(form.summed(4), noise=3.0) == form
    assert MatrixForm(noise=None).summed(4).noise is None
    assert RowForm(landmarks=2).summed(4) == RowForm(landmarks=2)


def test_landmarks_are_as_many_as_are_allowed() -> None:
    spec = ExtractorSpec("raw", (2,), 2, landmarks=np.zeros((3, 2), dtype=np.int8).tobytes())
    RowForm(landmarks=3).require(spec, 2)
    with pytest.raises(InvalidInput, match=r"at most 2 rows. Found '3 rows'"):
        RowForm(landmarks=2).require(spec, 2)
