"""A file of the product or of its tests has at most 500 lines, a function at most 80; a test's
noise is the same in every run (conftest.py)."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from labelwall.teacher.mechanisms import registry
from labelwall.teacher.mechanisms.base import Mechanism
from labelwall.teacher.noise import sampler

assert registry.MECHANISMS  # all are defined
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


def top_level_classes(root: Path) -> Iterator[str]:
    """The names of the product's classes."""
    for folder in FOLDERS[:-1]:
        for path in (root / folder).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    yield node.name


def twice(names: Iterator[str]) -> list[str]:
    """The names that stand there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def test_no_file_name_of_the_product_stands_twice() -> None:
    """But for a room's own tuned numbers."""
    paths = [path for name in FOLDERS[:-1] for path in (REPOSITORY / name).rglob("*.py")]
    assert set(twice(path.name for path in paths)) == {"__init__.py", "tuning.py"}


def test_no_class_name_of_the_product_stands_twice(tmp_path: Path) -> None:
    assert not twice(top_level_classes(REPOSITORY))
    for folder in FOLDERS[:2]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "made.py").write_text("class A:\n    class B: pass\n")
    assert twice(top_level_classes(tmp_path)) == ["A"]


def test_the_noise_of_a_test_is_the_same_in_every_run() -> None:
    found = [sampler.Stream().read(4).hex() for _ in range(2)]
    assert found == ["6fc630eb", "bce58a9e"]


@pytest.mark.fresh_noise
def test_unless_the_test_is_about_fresh_noise() -> None:
    assert sampler.fresh_key.__module__ == sampler.__name__


def mechanisms(known: type = Mechanism) -> set[str]:
    """The names of all classes of mechanisms, bases included."""
    names = {known.__name__}
    return names.union(*(mechanisms(each) for each in known.__subclasses__()))


def type_tests(text: str, names: set[str]) -> int:
    """How often a file asks whether something is of one of these classes."""
    found = 0
    for node in ast.walk(ast.parse(text)):
        asked: ast.AST | None = None
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked = node.args[1]
        elif isinstance(node, ast.MatchClass):
            asked = node.cls
        words = ast.walk(asked) if asked else ()
        found += any(getattr(word, "attr", getattr(word, "id", "")) in names for word in words)
    return found


def test_only_the_mechanisms_room_asks_for_a_mechanism_s_type() -> None:
    """What others need to know a mechanism declares (teacher/mechanisms/base.py)."""
    paths = [path for name in FOLDERS[:-1] for path in (REPOSITORY / name).rglob("*.py")]
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for path in paths
        if type_tests(path.read_text(), mechanisms())
    }
    assert not {name for name in found if not name.startswith("teacher/mechanisms/")}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("isinstance(m, IndKnn)", 1),
        ("isinstance(m, votes.Pate | str) or issubclass(m, (str, Score))", 2),
        ("match m:\n    case IndKnn():\n        pass", 1),
        ("isinstance(m, str) and m.screened", 0),
    ],
)
def test_the_count_of_type_tests_can_fail(text: str, found: int) -> None:
    assert type_tests(text, mechanisms()) == found
