"""A file of the product or of its tests has at most 500 lines, a function at most 80; a test's
noise is the same in every run (conftest.py)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from labelwall.teacher.noise import sampler

REPOSITORY = Path(__file__).parents[1]
FOLDERS = ("teacher", "student", "wall", "experiment", "tests")
FILE, FUNCTION = 500, 80  # lines


def too_long(root: Path) -> Iterator[str]:
    """The files, and the functions by name, of ``root`` that are longer than that."""
    folders = [path for name in FOLDERS for path in (root / name).rglob("*.py")]
    for path in [*root.glob("*.py"), *folders]:
        name, text = path.relative_to(root).as_posix(), path.read_text()
        if len(text.splitlines()) > FILE:
            yield name
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION:
                    yield f"{name} {node.name}"


def test_no_file_and_no_function_is_too_long() -> None:
    assert not list(too_long(REPOSITORY))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\n" * 500, []),
        ("x = 1\n" * 501, ["teacher/made.py"]),
        ("def f():\n" + "    x = 1\n" * 79, []),
        ("class A:\n    async def f():\n" + "        x = 1\n" * 80, ["teacher/made.py f"]),
    ],
)
def test_the_measure_can_fail(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "made.py").write_text(text)
    assert list(too_long(tmp_path)) == found


def test_a_room_s_init_holds_no_program_text() -> None:
    rooms = [path for name in FOLDERS[:-1] for path in (REPOSITORY / name).rglob("__init__.py")]
    assert not [path for path in rooms if len(ast.parse(path.read_text()).body) > 1]


def test_the_noise_of_a_test_is_the_same_in_every_run() -> None:
    found = [sampler.Stream().read(4).hex() for _ in range(2)]
    assert found == ["6fc630eb", "bce58a9e"]


@pytest.mark.fresh_noise
def test_unless_the_test_is_about_fresh_noise() -> None:
    assert sampler.fresh_key.__module__ == sampler.__name__
