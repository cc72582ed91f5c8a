"""Private rows that are named as public ones, too, are refused before anything is read."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import labelwall as lw
from labelwall import pipeline
from labelwall.wall.datasets import data_config as facts
from labelwall.wall.errors import InvalidInput
from tests.experiment import tiny
from tests.experiment.checks import check_one_error, named

pytestmark = pytest.mark.usefixtures("folder")
CUSTODY = ["--custodian_dir", "custody"]
COMMANDS = {
    "run": [*CUSTODY, "--run_dir", "out"],
    "run --isolate": [*CUSTODY, "--run_dir", "out", "--isolate"],
    "plan": [],
    "init": ["--out", "own.yaml"],
    "compare": ["--out", "out", "--methods", "auto"],
    "predict": [*CUSTODY, "--queries", "q.npz", "--out", "a.npz"],
    "serve": CUSTODY,
    "data": [],
}


@pytest.fixture
def tables() -> dict[str, str]:
    """A CSV file for each split, and the same rows under other names."""
    for n, split in enumerate(facts.SPLITS):
        Path(split).mkdir()
        tiny.write_table(Path(split, "rows.csv"), 200, n)
    return {split: f"{split}/rows.csv" for split in facts.SPLITS}


def linked(tables: dict[str, str], how: str) -> str:
    """Another name of the private table."""
    if how == "link":
        Path("other.csv").symlink_to(Path(tables["private"]).absolute())
    elif how == "hard link":
        os.link(tables["private"], "other.csv")
    elif how == "linked folder":
        Path("other").symlink_to("private")
    names = {"same": "private/rows.csv", "dots": "public/../private/rows.csv", "folder": "private"}
    names |= {"linked folder": "other/rows.csv", "above": "."}
    return names.get(how, "other.csv")


HOW = ("same", "dots", "link", "hard link", "linked folder", "folder", "above")


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("split", ["public", "test"])
def test_one_place_for_two_splits(how: str, split: str, tables, monkeypatch, capsys) -> None:
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("a file was read"))
    monkeypatch.setattr(Path, "read_bytes", lambda *_: pytest.fail("a file was read"))
    given = tables | {split: linked(tables, how)}
    command = ["plan", *named(given), "--label", "kind"]
    check_one_error(command, f"`data.{split}` must be apart from `data.private`", capsys)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("by_file", [False, True])
def test_every_command(command: str, by_file: bool, tables, capsys) -> None:
    given = {**tables, "public": tables["private"]}
    options = [*named(given), "--label", "kind"]
    if by_file:
        settings = {"source": "table", "label": "kind", **given}
        tiny.configure(data=settings, mechanism={"kind": "private_linear"}, caps={}, rounds=[{}])
        options = ["--config", "config.yaml"]
    if command == "compare" and by_file:
        options += ["--epsilon", "1"]
    check_one_error([*command.split(), *options, *COMMANDS[command]], "apart from", capsys)
    assert not any(Path(place).exists() for place in ("out", "custody", "own.yaml", "a.npz"))


def test_places_side_by_side_are_apart(tables) -> None:
    shutil.copy(tables["public"], "private/rows.csv.old")  # a copy is another file
    shutil.copytree("private", "private_2")
    facts.require_apart(a="private", b="private_2", c="privat", d=None, e="public\0")
    with pytest.raises(InvalidInput, match="`b` must be apart from `a`"):
        facts.require_apart(a="nowhere/rows", b="public/../nowhere")


def test_a_link_in_a_public_folder(tables, capsys) -> None:
    for split in facts.SPLITS:
        for name in ("cat", "dog"):
            Path(split, name).mkdir()
            Path(split, name, "a.txt").write_text(f"one {name} among many words of {split}")
    options = ["plan", *named({split: split for split in facts.SPLITS})]
    Path("test", "cat", "b.txt").symlink_to(Path("private", "cat", "a.txt").absolute())
    check_one_error(options, "`a link in data.test` must be apart from `data.private`", capsys)
    Path("test", "cat", "b.txt").unlink()
    Path("public", "bird").symlink_to(Path("private", "dog").absolute())
    check_one_error(options, "`a link in data.public` must be apart", capsys)


def test_arrays_of_a_folder_that_are_one_file(capsys) -> None:
    x, y = tiny.rows(200, 1)
    Path("rows").mkdir()
    for name, array in {"private_x": x, "private_y": y, "public_y": y}.items():
        np.save(f"rows/{name}.npy", array)
    Path("rows/public_x.npy").symlink_to("private_x.npy")
    check_one_error(["plan", "--data", "rows"], "`public_x` must be apart from `private_x`", capsys)


def test_one_array_for_two_splits() -> None:
    (x, y), (u, _) = tiny.rows(200, 1), tiny.rows(90, 2)
    texts = ["a text"]
    for wrong in (x, x[50:], x[::2]):
        with pytest.raises(InvalidInput, match="`public` must be other rows than private"):
            lw.Data(private=(x, y), public=wrong)
        with pytest.raises(InvalidInput, match="`test` must be other rows than private"):
            lw.Data(private=(x, y), public=u, test=(wrong, y))
    with pytest.raises(InvalidInput, match="`public` must be other rows than private"):
        lw.Data(private=(texts, [1]), public=texts)
    tiny.write_table(Path("rows.csv"), 200, 1)
    with pytest.raises(InvalidInput, match="apart"):
        lw.plan(lw.Data(private="rows.csv", public="rows.csv", label="kind"))
    lw.Data(private=(x[::2], y[::2]), public=x[1::2], test=(u, y[:90]))  # parts of one array


def test_queries_and_later_records(tables, capsys) -> None:
    data = {"source": "table", "label": "kind", **tables}
    tiny.configure(data=data, mechanism={"kind": "private_linear"}, caps={}, rounds=[{}])
    predict = ["predict", "--config", "config.yaml", *COMMANDS["predict"]]
    wrong = [*predict, "--queries", "public/../private/rows.csv"]
    check_one_error(wrong, "`queries` must be apart from `data.private`", capsys)
    header, *rows = Path(tables["private"]).read_text().splitlines()
    parts = [f"{row},{('private', 'public', 'test')[at % 3]}" for at, row in enumerate(rows)]
    Path("all.csv").write_text("\n".join([f"{header},part", *parts]))
    one = {"source": "table", "label": "kind", "path": "all.csv", "split": "part"}
    tiny.configure(data=one, mechanism={"kind": "private_linear"}, caps={}, rounds=[{}])
    wrong[-1] = "all.csv"
    check_one_error(wrong, "`queries` must be apart from `data.path`", capsys)
    tiny.configure(data=data, mechanism={"kind": "private_linear"}, caps={}, rounds=[{}])
    records = ["records", "add", "--config", "config.yaml", *CUSTODY, "--rows", tables["public"]]
    check_one_error(records, "`rows` must be apart from `data.public`", capsys)
    assert pipeline.main(["plan", "--config", "config.yaml"]) == 0
