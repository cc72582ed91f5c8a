"""Cells become numbers as the PUBLIC rows say, one row by itself, and none is lost."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.compose import make_column_transformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from labelwall.wall.datasets.columns import Column, dates, encoding_of
from labelwall.wall.errors import InvalidInput
from tests.wall.datasets.small import cells

CELLS = st.one_of(
    st.none(),
    st.integers(-9, 9),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=3),
)


def test_numbers_and_categories_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    age, job = rng.normal(40, 9, 200), rng.choice(["cook", "nurse", "judge"], 200)
    encoding = encoding_of({"age": cells(*map(str, age)), "job": cells(*job)})
    ours = encoding.inputs("public", {"age": cells(*map(str, age)), "job": cells(*job)})
    peer = make_column_transformer((StandardScaler(), [0]), (OneHotEncoder(), [1]))
    theirs = np.asarray(
        peer.fit_transform(np.column_stack([age, job]).astype(object)).astype(float)
    )
    order = np.argsort(encoding.columns[1].values)
    np.testing.assert_allclose(ours[:, 0], theirs[:, 0], rtol=1e-5)
    one_hot = ours[:, 1:] * encoding.columns[1].deviation + encoding.columns[1].mean
    np.testing.assert_allclose(one_hot[:, order], theirs[:, 1:], atol=1e-6)
    assert ours.std(axis=0)[1:] @ ours.std(axis=0)[1:] == pytest.approx(1)  # as one column


@pytest.mark.parametrize(
    ("column", "kind", "width"),
    [
        (cells(*["1.5", "2", "-3e4"] * 3), "number", 1),
        (cells(*["1.5", "2", ""] * 3), "number", 2),  # missing ones have an entry
        (cells(*["1", "2", "3", "4"] * 3, "?"), "number", 2),
        (cells(*[[1, 2], [3, 4]] * 5), "number", 2),
        (np.array([1.0, np.nan, 3.0]), "number", 2),
        (cells(*["2024-01-31", "2024-02-01T12:00:00+02:00"] * 4), "date", 1),
        (cells(*["2024-01-31", None] * 4), "date", 2),
        (cells("2024-01-01", "2024-01-15"), "date", 4),  # the cycle of a week
        (cells("2024-01-01", "2024-01-03T12:00"), "date", 3),  # of a day
        (cells("2024-01-01", "2026-01-03"), "date", 6),  # of a week and a year
        (cells("2024-01-01T01:00", "2026-01-03", None), "date", 9),  # of all, and one is missing
        (cells("08:15", "23:30"), "date", 3),  # times without a date
        (cells(*["a", "b"] * 5, "seldom"), "category", 3),
        (cells(*["1", "b"] * 5), "category", 3),
        (cells(*map(str, "abcdefghij")), "category", 1),  # each value is seldom
        (cells(*[None] * 5), "category", 2),
        (cells("True", "False", *["True"] * 9), "category", 2),
    ],
)
def test_a_column_is_what_most_of_its_cells_are(column: np.ndarray, kind: str, width: int) -> None:
    encoding = encoding_of({"x": column})
    assert (encoding.columns[0].kind, encoding.columns[0].width) == (kind, width)
    assert np.isfinite(encoding.inputs("public", {"x": column})).all()


def test_dates_are_days() -> None:
    encoding = encoding_of({"day": cells("2024-01-31", "2024-02-02", "2024-02-04")})
    entries = encoding.entries("x", {"day": cells("2024-02-03", "2024-02-03T12:00:00Z")})
    assert entries.ravel().tolist() == [19756.0, 19756.5]


def test_cycles_of_dates_are_those_that_pandas_tells() -> None:
    hours = pd.date_range("2021-03-01", "2023-08-31", freq="7h")
    encoding = encoding_of({"at": cells(*hours.map(str))})
    assert encoding.columns[0].cycles == ("day", "week", "year")
    rows = encoding.entries("x", {"at": cells(*hours.map(str))})
    alone = [encoding.entries("x", {"at": cells(each)}) for each in hours.map(str)]
    assert np.concatenate(alone).tobytes() == rows.tobytes()  # whatever rows are beside
    day, week = hours.hour / 24, (hours.day_of_week + hours.hour / 24) / 7
    for share, entries in ((day, rows[:, 1:3]), (week, rows[:, 3:5])):
        turned = np.exp(2j * np.pi * share.to_numpy())
        np.testing.assert_allclose(entries[:, 1] + 1j * entries[:, 0], turned, atol=1e-6)
    np.testing.assert_array_equal(rows[:, 5], hours.day_of_week >= 5)
    year = np.arctan2(rows[:, 6], rows[:, 7])
    assert np.ptp(year[(hours.month == 5) & (hours.day == 3)]) < 2 * np.pi * 2 / 365
    assert np.ptp(year) > 6


def test_the_cycles_follow_from_the_public_rows_and_a_missing_date_is_their_mean() -> None:
    encoding = encoding_of({"day": cells("2024-01-01", "2024-01-07", "2024-01-20", "2024-02-03")})
    assert encoding.columns[0].cycles == ("week",)
    assert encoding.columns[0].how == "date (ISO 8601) with day of the week"
    rows = encoding.inputs("x", {"day": cells(None, "3 words", "2050-01-01T13:00Z")})
    assert (rows[:2] == 0).all()
    assert rows.shape == (3, 4)
    assert rows[2, 3] > 0  # a Saturday


def test_public_rows_without_a_weekend_say_nothing_against_one() -> None:
    (column,) = encoding_of({"day": cells("2024-01-01", "2024-01-10", "2024-01-19")}).columns
    assert column.cycles == ("week",)
    weekend = cells("2024-01-06", "2024-01-07")
    assert column.entries(weekend)[:, 3].tolist() == [1, 1]
    assert column.unlike(weekend) == ""


def test_a_number_counts_as_at_most_the_range_away() -> None:
    public = {"x": cells("0", "10", "4"), "day": cells("2024-01-01", "2024-01-05", None)}
    encoding = encoding_of(public)
    far = {"x": cells("1e9", "-1e9", "15"), "day": cells("1900-01-01", "2024-01-08", "2090-01-01")}
    rows = encoding.entries("x", far)
    first = rows[:, encoding.columns[0].width]
    assert rows[:, 0].tolist() == [20, -10, 15]
    assert (first - dates(cells("2024-01-01"))[0, 0]).tolist() == [-4, 7, 8]
    np.testing.assert_array_equal(encoding.within_reach(rows), rows)
    beyond = rows + np.eye(1, rows.shape[1]) * 100
    assert (encoding.within_reach(beyond)[:, 0] == 20).all()
    for name, column in zip(public, encoding.columns, strict=True):
        assert column.unlike(public[name]) == ""
    assert (
        encoding.columns[0].unlike(far["x"]) == "2 of 3 cells lie far beyond the public rows' range"
    )
    other = encoding.columns[1].unlike(cells("01/31/2024", "2024-01-02", None))
    assert other.startswith("1 of 2 cells are no date (ISO 8601)")
    assert "'01/31/2024': they are missing" in other
    with pytest.raises(InvalidInput):
        Column("a", "number", (0.0,), (1.0,), reach=((2.0, 1.0),))


def test_an_unknown_category_is_another_one_and_a_missing_number_the_mean() -> None:
    encoding = encoding_of({"job": cells(*["cook", "nurse"] * 5), "age": cells(*["30", "50"] * 5)})
    new = {"job": cells("pilot", "seldom", "nurse"), "age": cells("many", None, "50")}
    assert encoding.entries("x", new).tolist() == [[0, 0, 1, 40], [0, 0, 1, 40], [0, 1, 0, 50]]


@example(["1", "2"], [1e300, float("inf"), 10**400], None)
@example([1e29, -1e29, 1e-300], [1e30, 5e-324], 0)
@given(st.lists(CELLS, min_size=1, max_size=12), st.lists(CELLS, min_size=1, max_size=5), CELLS)
def test_every_cell_is_finite_numbers_by_itself(public, private, other) -> None:
    encoding = encoding_of({"x": cells(*public)})
    rows = encoding.inputs("private", {"x": cells(*private)})
    assert np.isfinite(rows).all()
    beside = encoding.inputs("private", {"x": cells(other, *private)})
    np.testing.assert_array_equal(beside[1:], rows)


def test_a_missing_column_and_damaged_parts_are_refused() -> None:
    encoding = encoding_of({"a": cells("1", "2"), "b": cells("1", "2")})
    with pytest.raises(InvalidInput, match="a table with the column b"):
        encoding.inputs("vectors", {"a": cells("1")})
    for cycles in (("day",), ("month",), ("day", "day")):
        with pytest.raises(InvalidInput):
            Column("a", "date", (0.0,), (1.0,), cycles=cycles)
    with pytest.raises(InvalidInput):
        Column("a", "number", (0.0,) * 3, (1.0,) * 3, cycles=("day",))
    for parts in (((), ()), ((1.0,), (0.0,)), ((1.0,), (1.0, 1.0)), ((float("nan"),), (1.0,))):
        with pytest.raises(InvalidInput):
            Column("a", "number", *parts)


def test_words_in_another_form_are_said():
    public = np.array(["m"] * 6 + ["f"] * 5 + ["x"], dtype=object)  # one word is in few rows
    (column,) = encoding_of({"sex": public}).columns
    assert column.unlike(public) == ""
    assert column.unlike(np.array(["M", "f", ""] * 9 + ["y"], dtype=object)) == ""  # of 19, 1
    coded = np.array(["1", "2", "m", ""] * 9, dtype=object)
    line = column.unlike(coded)
    assert line == "18 of 27 cells have values that public rows seldom have, as '1'"
    assert column.unlike(coded[:4]) == ""


def test_many_columns_that_differ_are_counted():
    table = {f"c{n}": np.array([f"{k}.5" for k in range(9)], dtype=object) for n in range(13)}
    comma = {name: np.array([f"{k},5" for k in range(9)], dtype=object) for name in table}
    lines = encoding_of(table).unlike(comma)
    assert lines[0] == "c0: 9 of 9 cells are no number, as '0,5': they are missing"
    assert lines[10:] == ["and 3 more columns like these"]


def test_a_column_without_a_reach_is_compared_by_its_form_alone():
    (column,) = encoding_of({"a": np.array(["1.5", "2.5", "3.5"], dtype=object)}).columns
    cells = np.array(["900.5", "1.5"], dtype=object)
    assert "far beyond" in column.unlike(cells[:1])
    assert replace(column, reach=()).unlike(cells) == ""
