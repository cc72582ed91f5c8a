"""What the documentation promises is there: commands, settings, files, links; notebooks run."""

import argparse
import contextlib
import fnmatch
import io
import json
import re
import shlex
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import labelwall as lw
from labelwall import pipeline
from labelwall.docs import hooks
from labelwall.experiment.commands.configured import options_of, parse_cells
from labelwall.experiment.config.config import Config
from labelwall.experiment.config.options import parse
from labelwall.experiment.config.settings import settings_of
from labelwall.experiment.run.lines import result_line
from labelwall.experiment.run.summary import Baselines
from labelwall.teacher.mechanisms.registry import MECHANISMS
from labelwall.wall.guarantee import POOLED
from tests import notebooks
from tests.experiment.results import made_summary

REPOSITORY = Path(__file__).parents[1]
README = REPOSITORY / "README.md"
CONTRIBUTING = REPOSITORY / "CONTRIBUTING.md"
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"
GUIDE = REPOSITORY / "docs" / "guide.md"
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
COMMAND = re.compile(r"^    (labelwall|make|python pipeline\.py) (.*?)(?:\s+#.*)?$", re.MULTILINE)
SETTINGS = ("run", "plan", "compare", "predict", "records", "data", "serve")  # take all settings
OWN = str(REPOSITORY / "configs" / "own_folder.yaml")
EXAMPLES_OF = {
    "own.yaml": OWN,
    "chosen.yaml": OWN,
    "runs/a/config.yaml": OWN,
    "FILE": OWN,
    "SEED": "0",
}  # what stands for the reader's own


class Finished(Exception):
    """A program has read its options."""


def code_lines(page: Path, program: str) -> list[str]:
    """Arguments of every example of a program in a page's indented code."""
    text = re.sub(r" \\\n +", " ", page.read_text())  # one line, where a backslash continues it
    return [arguments for name, arguments in COMMAND.findall(text) if name == program]


RESULTS = REPOSITORY / "benchmarks" / "results"
MEASURED = {  # the commands that a result's file has
    run["command"].removeprefix("OMP_NUM_THREADS=1 ")
    for path in RESULTS.glob("*.json")
    for run in json.loads(path.read_text())["runs"]
}
EXAMPLES = sorted(
    {line for page in PAGES for line in code_lines(page, "labelwall")}
    | {line.removeprefix("labelwall ") for line in MEASURED if line.startswith("labelwall ")}
)
PYTHON = re.compile(r"\bpython ((?:-m (?:tests|labelwall)\.|benchmarks/|docs/|tests/)[^`#|\n]*)")
PROGRAMS = sorted(
    {line.strip() for page in PAGES for line in PYTHON.findall(page.read_text())}
    | {line.removeprefix("python ") for line in MEASURED if line.startswith("python ")}
)


def test_the_examples_are_found() -> None:
    assert {shlex.split(line)[0] for line in EXAMPLES} == set(pipeline.COMMANDS)
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    asked = [target for line in code_lines(README, "make") for target in shlex.split(line)]
    assert {"demo", "test"} <= set(asked) <= targets


@cache
def options(command: str) -> set[str]:
    """All that a command's help names. Asked once: a help takes a part of a second."""
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        pipeline.main([command, "--help-all" if command in SETTINGS else "--help"])
    return set(re.findall(r"--[\w.]+", out.getvalue()))


@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_is_valid(line: str) -> None:
    command, *words = shlex.split(line.partition(" | ")[0])
    assert {word for word in words if word.startswith("--")} <= options(command)
    words = [str(REPOSITORY / w) if w.startswith("configs/") else w for w in words]
    words = [EXAMPLES_OF.get(word, word) for word in words]
    if "--config" in words and command == "compare":
        assert parse_cells(words)[0]
    elif "--config" in words:
        assert parse(words, command, options=options_of(command))[0].rounds


@pytest.mark.parametrize("line", PROGRAMS)
def test_a_program_of_ours_has_these_options(line: str, monkeypatch) -> None:
    """Benchmarks read what a page gives them, placeholders too; any program is there."""
    program, *words = shlex.split(line.removeprefix("-m "))
    name = program.removesuffix(".py").replace("/", ".").removeprefix("labelwall.")
    path = REPOSITORY / f"{name.replace('.', '/')}.py"
    assert path.exists()
    if not name.startswith("benchmarks."):
        return
    if "parse" not in path.read_text():
        assert not words
        return
    read = argparse.ArgumentParser.parse_args

    def only_read(parser: argparse.ArgumentParser, *_: object) -> None:
        read(parser, words)
        raise Finished

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_read)
    with pytest.raises(Finished):
        import_module(f"labelwall.{name}").main()


def test_the_methods_page_names_every_kind() -> None:
    named = set(re.findall(r"`(\w+)`", (REPOSITORY / "docs" / "methods.md").read_text()))
    assert {kind for kind in MECHANISMS if not kind.startswith("score")} - named == set()


def test_the_result_stands_by_line_25() -> None:
    assert len(README.read_text().splitlines()) <= 120
    top = "\n".join(README.read_text().splitlines()[:25])
    assert "make demo" in top
    assert "make test" in top
    beside = Baselines(frequent=("9", 0.126), public=None, no_privacy=0.95)  # of these test rows
    summary = made_summary(test_accuracy=0.5, epsilon=1.25, adversary=POOLED, baselines=beside)
    line = result_line(summary, Path("runs/demo"))
    assert "50.00%" in line  # what varies; the rest is what the program prints
    assert re.search(re.escape(line).replace(r"50\.00%", r"\S+").replace(r"1\.25", r"\S+"), top)


def slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    """Commands, settings, files of ours, and what links lead to."""
    text = page.read_text()
    assert set(re.findall(r"`labelwall (\w+)", text)) <= set(pipeline.COMMANDS)
    kinds = {"": Config} | {f"mechanism.{kind}": cls for kind, cls in MECHANISMS.items()}
    known = {name for group, kind in kinds.items() for name in names_of(kind, group)}
    groups = r"(?:`|--)((?:data|budget|mechanism|caps|student)\.(?!safetensors)[a-z_]+)"
    assert set(re.findall(groups, text)) <= known
    rooms = "configs|docs|teacher|student|wall|experiment|tests|benchmarks"
    files = re.findall(rf"`((?:{rooms})/[\w./]*)`", text)
    assert [name for name in files if not (REPOSITORY / name).exists()] == []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), target
        headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in map(slug, headings), target


def names_of(kind: type, group: str) -> list[str]:
    return [name for name, _, _ in settings_of(kind, "mechanism." if group else "")]


def test_the_site_has_the_public_names_and_warnings_fail() -> None:
    page = (REPOSITORY / "docs" / "generate.py").read_text()
    shown = set(re.findall(r'^    "([\w.]+)": \(', page, re.MULTILINE))
    assert {f"{name}" for name in lw.__all__ if name[0].islower() and name != "sklearn"} <= shown
    assert {"Data", "Model", "sklearn.LabelwallClassifier"} <= shown
    target = (REPOSITORY / "Makefile").read_text().split("\ndocs:", 1)[1].split("\n\n")[0]
    assert "--strict" in target
    assert "--quiet" not in target  # which hides warnings from --strict


@pytest.mark.parametrize(
    ("tag", "found"),
    [
        ('<script src="https://a.example/b.js"></script>', 1),
        ("<link rel=stylesheet href=//fonts.example/a.css>", 1),
        ('<img alt="" src="http://a.example/b.png">', 1),
        ('<link rel="canonical" href="https://a.example/">', 0),
        ('<a href="https://a.example"><img src="../b.png"></a>', 0),
    ],
)
def test_a_page_that_loads_from_elsewhere_fails_the_build(tag: str, found: int, caplog) -> None:
    hooks.on_post_page(tag, SimpleNamespace(url="a/"))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * found


def tree() -> list[Path]:
    """Every path of the page's tree: names before a double space, below their folder."""
    block = CONTRIBUTING.read_text().split("## The tree\n", 1)[1]
    found: list[Path] = []
    folders: list[tuple[int, Path]] = []
    for line in re.findall(r"^    ( *)(\S.*)$", block, re.MULTILINE):
        depth, names = len(line[0]), re.split(r"\s{2,}", line[1])[0].split()
        folders = [(at, folder) for at, folder in folders if at < depth]
        parent = folders[-1][1] if folders else Path()
        found += [parent / name for name in names]
        if names[-1].endswith("/"):
            folders.append((depth, parent / names[-1]))
    return found


def test_every_path_of_the_tree_exists() -> None:
    found = tree()
    assert len(found) > 30
    assert [path for path in found if not (REPOSITORY / path).exists()] == []


def test_the_tree_shows_everything_at_the_top() -> None:
    ignored = [
        line.strip("/ \n") for line in (REPOSITORY / ".gitignore").read_text().splitlines() if line
    ]
    there = {
        path.name
        for path in REPOSITORY.iterdir()
        if not path.name.startswith(".")
        and not any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored)
    }
    assert there == {str(path) for path in tree() if len(path.parts) == 1}


NOTEBOOKS = sorted((REPOSITORY / "docs").rglob("*.ipynb"))
BY_NAME = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
VARIES = re.compile(r"[\d.]+|(?<=network=)[\w/]+")  # between machines
PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")


def test_the_site_has_a_page_of_each_notebook() -> None:
    shown = (REPOSITORY / "mkdocs.yml").read_text()
    pages = [path.relative_to(REPOSITORY / "docs").with_suffix(".md") for path in NOTEBOOKS]
    assert len(pages) >= 7
    assert [page for page in pages if f": {page}\n" not in shown] == []


@BY_NAME
def test_it_was_executed_and_shows_what_came_out(notebook: Path) -> None:
    cells = notebooks.code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert len(outputs) >= 3
    assert not [o for o in outputs if o["output_type"] == "error"]


@pytest.mark.slow
@BY_NAME
def test_every_cell_runs_and_says_the_same(notebook: Path, tmp_path: Path, monkeypatch) -> None:
    """The words are the same, and each share is within 12 points, also on another machine."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell, outputs in notebooks.run(notebook, names):
        then, now = ("\n".join(notebooks.texts(said)) for said in (cell["outputs"], outputs))
        assert VARIES.sub("#", now) == VARIES.sub("#", then)
        shares = [list(map(float, PERCENT.findall(text))) for text in (now, then)]
        assert shares[0] == pytest.approx(shares[1], abs=12)
    assert names["model"].epsilon_ <= 4.0
