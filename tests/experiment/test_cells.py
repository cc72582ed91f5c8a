"""Cells of frames, lists and arrays in memory: each private row is what it is when read alone."""

import contextlib
import datetime
import decimal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import labelwall as lw
from labelwall.experiment.api import _configured
from labelwall.teacher.records.private_records import open_records
from labelwall.wall.console import Console
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.errors import InvalidInput
from tests.wall.datasets.small import PUBLIC_TEXTS, text_of


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("secret")


ODD: list[Any] = [None, float("nan"), pd.NA, pd.NaT, "?", "7", "", "a\ud800b", "a\0b", "x" * 9_999]
ODD += [[1, 2], (1.5, 2), {"a": 1}, {1}, b"\xff\xfe", np.arange(3), np.arange(1), Unprintable()]
ODD += [decimal.Decimal("1.5"), decimal.Decimal("sNaN"), datetime.date(2001, 1, 1), 1j, 10**400]
ODD += [float("inf"), -0.0, 2**60 + 1, 2**64 - 1, True, np.float32(0.1), pd.Timedelta("1D"), 3.0]
ODD += [pd.Timestamp("2262-01-01"), datetime.datetime(1, 1, 1), pd.Interval(0, 1), np.bool_(0)]


def some(count: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    born = pd.Timestamp("2000-01-01")
    return [
        {
            "age": int(rng.integers(18, 90)),
            "income": float(rng.normal(100, 30)),
            "height": np.float32(rng.normal(1.7, 0.1)),
            "city": str(rng.choice(["rome", "oslo", "bern"])),
            "married": bool(rng.random() < 0.5),
            "born": born + pd.Timedelta(days=int(rng.integers(3000))),
            "code": int(rng.integers(2**53, 2**60)),
            "point": rng.normal(size=2).tolist(),
            "who": int(rng.integers(2**53, 2**60)),
            "label": "ab"[number % 2],
        }
        for number in range(count)
    ]


PUBLIC, TEST = pd.DataFrame(some(60, 1)).drop(columns="who"), pd.DataFrame(some(60, 2))


def read(data: lw.Data, place: Path) -> Counter[Any]:
    """Person, label and inputs of each private row that is used."""
    place.mkdir(exist_ok=True)
    for file in place.glob("private*"):
        file.unlink()
    config = _configured(data, place, {}, True, None, Console(), epsilon=1.0)
    records = open_records(config.data, describe(config.data), unit=config.privacy.unit)
    persons = [None] * len(records.ids) if records.persons is None else records.persons.tolist()
    inputs = [row.tobytes() for row in records.inputs]
    return Counter(zip(persons, records.labels.tolist(), inputs, strict=True))


def alone_and_together(make: Any, rows: list[Any], place: Path) -> int:
    """``make`` gives Data of private rows. How many of them are used."""
    alone = sum((read(make([row]), place) for row in rows), Counter[Any]())
    assert read(make(rows), place) == alone
    assert read(make(rows[::-1][: len(rows) // 2]), place) <= alone
    return alone.total()


@pytest.mark.parametrize("column", list(some(1, 0)[0]))
def test_a_row_of_a_frame(tmp_path: Path, column: str) -> None:
    rows = some(4, 3) + [row | {column: cell} for row, cell in zip(some(99, 4), ODD, strict=False)]

    def make(chosen: list[Any]) -> lw.Data:
        frame = pd.DataFrame(columns=list(rows[0]), index=range(len(chosen)), dtype=object)
        for name in rows[0]:
            cells = np.fromiter((row[name] for row in chosen), dtype=object, count=len(chosen))
            frame[name] = column = pd.Series(cells, dtype=object)
            with contextlib.suppress(UnicodeEncodeError):  # which pandas raises
                frame[name] = column.infer_objects()
        return lw.Data(frame, PUBLIC, TEST, person="who")

    lost = {"label": len(ODD), "who": 12}.get(column, 0)  # rows without either are dropped
    assert alone_and_together(make, rows, tmp_path / "rows") >= len(rows) - lost


@pytest.mark.parametrize("names", [["0", "1"], ["a", "b"]])
@pytest.mark.parametrize("rows", ["arrays", "texts", "frames"])
def test_labels_and_persons_beside_rows(tmp_path: Path, rows: str, names: list[str]) -> None:
    test = np.array(names * 30) if names[0] == "a" else np.arange(60) % 2
    pairs = [(test[n % 2], cell) for n, cell in enumerate(ODD)]
    pairs += [(cell, "someone") for cell in ODD] + [(test[0], "p1"), (test[1], "p2")]
    x = np.random.default_rng(5).normal(size=(200, 3))

    def of(part: np.ndarray) -> Any:
        if rows == "texts":
            return [text_of("cat", int(100 * abs(row[0]))) for row in part]
        return pd.DataFrame(part, columns=list("uvw")) if rows == "frames" else part

    def make(chosen: list[tuple[int, Any]]) -> lw.Data:
        labels, persons = zip(*(pair for _, pair in chosen), strict=True)
        inputs = of(x[[at for at, _ in chosen]])
        public = list(PUBLIC_TEXTS) if rows == "texts" else of(x[100:])
        return lw.Data((inputs, list(labels)), public, (of(x[:60]), test), person=list(persons))

    assert alone_and_together(make, list(enumerate(pairs)), tmp_path / "rows") >= 20


def test_public_rows_say_by_their_cells_what_a_column_is_of(tmp_path: Path) -> None:
    """Not by a type that follows from private rows in the same frame."""
    private = pd.DataFrame(some(5, 3))
    for place, public in (("typed", PUBLIC), ("mixed", PUBLIC.astype(object))):
        (tmp_path / place).mkdir()
        lw.Data(private, public, TEST).options(tmp_path / place)
    files = [(tmp_path / place / "public.parquet").read_bytes() for place in ("typed", "mixed")]
    assert files[0] == files[1]
    known = pd.read_parquet(tmp_path / "typed" / "public.parquet").dtypes
    assert [known[name].kind for name in ("age", "code", "height")] == ["f"] * 3


def test_tables_of_arrow_are_read_as_frames(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)

    def frame(n: int) -> pd.DataFrame:
        kind = rng.integers(0, 2, n)
        words = np.array(["a", "b"])[rng.integers(0, 2, n)]
        return pd.DataFrame({"u": kind + rng.normal(size=n) / 2, "w": words, "label": kind})

    def table(given: pd.DataFrame) -> Any:
        return arrow.Table.from_pandas(given, preserve_index=False)

    frames = [frame(n) for n in (300, 120, 200)]
    tables = [table(each) for each in frames]
    pairs = [(each.drop_columns(["label"]), each["label"]) for each in tables]
    kept, types = [], []
    for number, rows in enumerate((frames, tables, pairs)):
        place = tmp_path / str(number)
        place.mkdir()
        lw.Data(*rows).options(place)
        kept.append({path.name: path.read_bytes() for path in place.iterdir()})
        types.append(lw.Data(*rows).label_type())
    assert kept[0] == kept[1] == kept[2]
    assert len(kept[0]) == 3
    assert types == ["int"] * 3
    more = {"mechanism": {"kind": "private_linear", "steps": 10}, "rounds": [{}]}
    more |= {"custody": tmp_path / "custody", "threads": 1, "quiet": True}
    more |= {"student": {"steps": 20}}
    model = lw.fit(lw.Data(*tables), 5.0, run_dir=tmp_path / "run", **more)
    assert model.score(pairs[2][0], pairs[2][1]) > 0.7
    found = model.evaluate(pairs[2][0], tables[2]["label"], groups=tables[2]["w"])
    assert {*found.groups} == {"a", "b"}
    with pytest.warns(UserWarning, match="w: 200 of 200 cells have values that public rows seldom"):
        model.predict(frames[2].assign(w="c"))


def test_updated_rows_are_read_as_the_first_ones(tmp_path: Path) -> None:
    rows, before = some(6, 3), some(6, 3)
    lw.Data(pd.DataFrame(before), PUBLIC, TEST).options(tmp_path)
    rows[0]["age"] = "?"
    lw.Data(pd.DataFrame(rows)).replace_private(tmp_path)
    stored = pd.read_parquet(tmp_path / "private.parquet")["age"]
    assert stored.tolist()[1:] == [row["age"] for row in before[1:]]
    assert np.isnan(stored[0])


# --- what a caller may give


def test_intervals_truth_values_floats_and_tensors(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3))
    y, frame = np.arange(60) % 2, pd.DataFrame(x, columns=list("uvw")).assign(label="a")
    frame.loc[::2, "label"] = "b"
    parts = frame.assign(part=pd.cut(frame["u"], [-9, 0, 9]))
    expected = read(lw.Data((x, y), x.copy(), (x.copy(), y)), tmp_path / "plain")
    for name, labels in {"bool": y > 0, "float": y * 1.0, "object": (y > 0).astype(object)}.items():
        assert read(lw.Data((x, labels), x.copy(), (x.copy(), labels)), tmp_path / name) == expected
    tensors = torch.tensor(x, requires_grad=True), torch.tensor(y)
    assert read(lw.Data(tensors, x.copy(), (x.copy(), y)), tmp_path / "tensors") == expected
    by_columns = np.asfortranarray(x)
    assert (
        read(lw.Data((by_columns, y), by_columns.copy("F"), (x, y)), tmp_path / "columns")
        == expected
    )
    (tmp_path / "cut").mkdir()
    data = lw.Data(parts, parts.drop(columns="label"), parts.copy())
    config = _configured(data, tmp_path / "cut", {}, True, None, Console())
    assert read_public(config.data).inputs.shape == (60, 3 + 2 + 1)


X, FRAME = np.zeros((6, 2)), pd.DataFrame({"u": range(6), "v": range(6), "label": list("ababab")})
OTHERS = X.copy(), (X.copy(), [0, 1] * 3)  # public and test rows beside X
MISTAKES: dict[str, tuple[lw.Data, str]] = {
    "a repeated name": (
        lw.Data(pd.concat([FRAME, FRAME[["u"]]], axis=1), FRAME.copy(), FRAME.copy()),
        "`private` must be a frame of columns with different names. Found 'u'.",
    ),
    "too few labels": (
        lw.Data((X, [0, 1]), X.copy(), (X.copy(), [0, 1] * 3)),
        "one label for each row. Found 'another count, which is private'",
    ),
    "labels of a frame": (
        lw.Data((FRAME[["u"]], [0]), FRAME.copy(), FRAME.copy()),
        "one label for each row",
    ),
    "too few labels of test rows": (
        lw.Data((X, [0, 1] * 3), X.copy(), (X.copy(), [0, 1])),
        "`test` must be one label for each row. Found '2 for 6 rows'.",
    ),
    "one label": (lw.Data((X, 1), *OTHERS), "one label for each row"),
    "labels twice": (
        lw.Data((FRAME, list("ababab")), FRAME.copy(), FRAME.copy()),
        "with different names. Found 'label'",
    ),
    "persons": (
        lw.Data(FRAME, FRAME.copy(), FRAME.copy(), person=[1, 2]),
        "one person for each row",
    ),
    "a column of arrays": (
        lw.Data((X, [0, 1] * 3), X.copy(), (X.copy(), [0, 1] * 3), person="u"),
        "an id for",
    ),
    "ids of paths": (
        lw.Data("a.csv", "b.csv", person=[1, 2]),
        "`person` must be the name of a column",
    ),
    "one array": (lw.Data((FRAME, None), X, FRAME.copy()), "`public` must be a data frame"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name: str, tmp_path: Path) -> None:
    data, text = MISTAKES[name]
    with pytest.raises(InvalidInput) as refused:
        _configured(data, tmp_path, {}, True, None, Console())
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("budget", [{"epsilon": "1"}, {"delta": "x"}, {"expected_records": [1]}])
def test_a_budget_is_a_number(budget: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"`{next(iter(budget))}` must be a number"):
        lw.plan(lw.Data((X, [0, 1] * 3), *OTHERS), **budget)


def test_persons_of_files_and_frames_are_named_in_one_way(tmp_path: Path) -> None:
    ids = ["p1", "p2", None, "p1", "", "p3"]
    (tmp_path / "files").mkdir()
    for name in ("private", "public", "test"):
        FRAME.assign(who=ids).to_csv(tmp_path / "files" / f"{name}.csv", index=False)
    paths = [str(tmp_path / "files" / f"{name}.csv") for name in ("private", "public", "test")]
    own = {
        "column": lw.Data(FRAME.assign(who=ids), FRAME.copy(), FRAME.copy(), person="who"),
        "ids": lw.Data(FRAME, FRAME.copy(), FRAME.copy(), person=ids),
        "files": lw.Data(*paths, person="who"),
    }
    known = [read(data, tmp_path / f"rows of {name}") for name, data in own.items()]
    assert known[0] == known[1] == known[2]
    assert known[0].total() == 4
    assert len({person for person, _, _ in known[0]}) == 3
