"""Whole runs without public rows: a table by box, images by shapes, and what they say of it."""

import json
import os
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image

import labelwall as lw
from labelwall import pipeline
from labelwall.experiment.config.options import parse
from labelwall.teacher.records.private_records import open_records
from labelwall.wall.datasets.sources import describe, read_public
from labelwall.wall.errors import InvalidInput
from tests.experiment import tiny
from tests.experiment.checks import check_one_error, named, summary
from tests.experiment.test_own_data import QUICK

DECLARED = ["--public", "box", "--data.drawn", "200", "--label", "kind"]
COLUMNS = [f"x{number}" for number in range(tiny.DIMENSIONS)]
RANGES = ["--data.ranges", json.dumps(dict.fromkeys(COLUMNS, (-4, 6)))]
CLASSES = ["--data.classes", "[c0, c1, c2]"]
NONSENSE = ("differ", "few records", "NaN", "nan")


@pytest.fixture
def tables(folder: Path) -> dict[str, str]:
    """A private and a test table of three clusters."""
    return tiny.write_tables(private=300, test=60)


def check_told(said: str, text: str) -> None:
    """The run, its report and its card say how the rows were drawn, and nothing that is not so."""
    assert text in said
    for file in ("report.html", "MODEL_CARD.md"):
        assert text in Path("out", file).read_text().replace("\\_", "_")
    assert not [word for word in NONSENSE if word in said]


def run(*args: str) -> int:
    command = ["run", *args, "--epsilon", "8", "--run_dir", "out", *QUICK]
    command.remove("--quiet")
    return pipeline.main(command)


def test_a_table_by_its_test_rows(tables: dict[str, str], capsys) -> None:
    assert run(*named(tables), *DECLARED) == 0
    said = "".join(capsys.readouterr())
    check_told(said, "200 public rows are drawn from the test rows, each column by itself")
    assert "its released classifier is taken for the student" in said
    assert "labels unknown (public rows are drawn, so that none has a right label)" in said
    told = summary()
    assert told["test_accuracy"] > 0.7
    assert told["public_rows"] == 200
    command = ["classify", "--student", "out", "--vectors", "test.csv", "--out", "labels.csv"]
    assert pipeline.main(command) == 0
    # The same run, from another place, goes on; other test rows would be other public ones
    places = {name: str(Path(place).absolute()) for name, place in tables.items()}
    Path("box").mkdir()
    os.chdir("box")
    again = ["--run_dir", "../out", "--epsilon", "8", *QUICK]
    assert pipeline.main(["run", *named(places), *DECLARED, *again]) == 0
    tiny.write_table(Path("../test.csv"), 60, 2)
    check_one_error(["run", *named(places), *DECLARED, *again], "`public` must be the rows", capsys)


def test_a_table_by_its_declaration_alone(tables: dict[str, str], capsys) -> None:
    del tables["test"]
    assert run(*named(tables), *DECLARED, *RANGES, *CLASSES) == 0
    said = "".join(capsys.readouterr())
    check_told(said, "200 public rows are drawn from data.ranges (x0, x1")
    assert summary()["private_score"]["right"] > 0.7


def test_one_file_without_public_rows(tables: dict[str, str]) -> None:
    frames = [pandas.read_csv(place).assign(split=name) for name, place in tables.items()]
    pandas.concat(frames).to_csv("all.csv", index=False)
    one, two = (
        parse([*given, *DECLARED])[0].data for given in (["--data", "all.csv"], named(tables))
    )
    public, apart = read_public(one), read_public(two)
    np.testing.assert_array_equal(public.inputs, apart.inputs)
    np.testing.assert_array_equal(public.test_inputs, apart.test_inputs)
    records, own = (open_records(data, describe(data)) for data in (one, two))
    np.testing.assert_array_equal(records.inputs, own.inputs)
    with pytest.raises(InvalidInput, match=r"`data\.public` must be a place of public rows"):
        parse(["--data", "data.npz", "--public", "box"])


@pytest.mark.slow
def test_a_method_is_rehearsed_on_drawn_rows(folder: Path) -> None:
    tiny.write_tables(private=300, test=120)
    data = lw.Data(private="private.csv", public="box", test="test.csv", label="kind")
    price = lw.plan(data, epsilon=8.0, data={"drawn": 300}, features="raw", quiet=True)
    assert price.fields["candidates"][0]["mechanism"]["kind"] == "private_linear"


@pytest.mark.slow
def test_images_by_shapes(folder: Path, capsys) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("private", 60), ("test", 20)):
        for name, row in (("above", 3), ("below", 10)):
            Path(split, name).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 90, (16, 16)).astype(np.uint8)
                pixels[row : row + 3] = 255
                Image.fromarray(pixels).save(Path(split, name, f"{number}.png"))
    places = {"private": "private", "test": "test", "public": "shapes"}
    assert run(*named(places), "--data.drawn", "200") == 0
    said = "".join(capsys.readouterr())
    check_told(said, "200 public images are drawn: shapes that cover one another")
    assert summary()["test_accuracy"] > 0.8
    check_one_error(["run", *named(places), "--refine"], "Leave out `refine`: drawn images", capsys)


def test_what_can_not_be_drawn_is_one_line(tables: dict[str, str], capsys) -> None:
    one = ["run", *named(tables), *DECLARED]
    check_one_error([*one, "--data.ranges", "{x: [1, 2]}"], "columns of the test rows", capsys)
    check_one_error([*one, "--data.categories", "{x0: 3}"], "`data.categories`", capsys)
    check_one_error([*one, "--data.categories", "{x0: [[1]]}"], "`data.categories`", capsys)
    check_one_error([*one, "--data.ranges", "[x0]"], "`data.ranges`", capsys)
    del tables["test"]
    check_one_error(
        ["run", *named(tables), *DECLARED], "Give `data.ranges`: without test rows", capsys
    )
    one = ["run", "--data", "data.npz", "--public", "box"]
    check_one_error(one, "`data.public` must be a place of public rows", capsys)
