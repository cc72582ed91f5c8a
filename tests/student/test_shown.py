"""Columns and words that a model's answers depend on."""

import csv
from pathlib import Path

import numpy as np
import pytest

from labelwall.student.shown import MOST_ENTRIES, columns_that_matter, words_by_class
from labelwall.wall.datasets.data_config import DataConfig
from labelwall.wall.datasets.tables import encoding
from tests.student.public import NAMES, linear_model, public_rows


def test_a_column_matters_as_much_as_the_probability_that_it_moves() -> None:
    x = np.random.default_rng(3).normal(size=(80, 5)).astype(np.float32)
    weights = np.zeros((3, 5))
    weights[0, 3], weights[1, 1] = 4.0, 1.0
    found = columns_that_matter(public_rows(x, None), linear_model(weights), x)
    assert [*found] == ["number 4", "number 2"]  # no other one

    def chances(rows: np.ndarray) -> np.ndarray:
        odds = np.exp(rows.astype(float) @ weights.T)
        return odds / odds.sum(axis=1, keepdims=True)

    order, moved = np.random.default_rng(0).permutation(len(x)), dict.fromkeys(NAMES, 0.0)
    shuffled = x.copy()
    shuffled[:, 3] = x[order, 3]
    for before, after in zip(chances(x), chances(shuffled), strict=True):
        moved[NAMES[before.argmax()]] += float(np.maximum(before - after, 0).sum()) / len(x)
    assert found["number 4"] == pytest.approx({n: m for n, m in moved.items() if m}, abs=1e-5)


def test_rows_of_many_numbers_have_no_columns() -> None:
    x = np.zeros((4, MOST_ENTRIES + 1), dtype=np.float32)
    assert not columns_that_matter(public_rows(x, None), linear_model(np.zeros((3, x.shape[1]))), x)


def test_words_speak_for_the_class_whose_weights_they_have(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "public.csv"
    words = ["ball", "oven", "train", "with", "from", "this"]
    with path.open("w") as file:
        lines = csv.writer(file)
        lines.writerow(["body", "label"])
        for number in range(60):
            rare = "zebra" if number < 4 else "this"
            lines.writerow([" ".join([*rng.choice(words, 9), rare]), NAMES[number % 3]])
    data = DataConfig(source="table", public=str(path), text=["body"])
    table = encoding(data)
    spoken = table.inputs("words", {"body": np.array(["ball", "oven", "train"], dtype=object)})
    x = np.zeros((2, spoken.shape[1]), dtype=np.float32)
    found = words_by_class(public_rows(x, None, data), linear_model(spoken))
    assert [said[0] for said in found.values()] == ["ball", "oven", "train"]
    assert {*sum(found.values(), ())} == {*words}  # and none that few texts have
