"""A file of the product or of its tests has at most 500 lines, a function at most 80 and few
parameters; no name stands twice; a test's noise is the same in every run (conftest.py)."""

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


def product(root: Path) -> list[Path]:
    """The product's files in rooms."""
    return [path for folder in FOLDERS[:-1] for path in (root / folder).rglob("*.py")]


def test_a_room_s_init_holds_no_program_text() -> None:
    rooms = [path for path in product(REPOSITORY) if path.name == "__init__.py"]
    assert not [path for path in rooms if len(ast.parse(path.read_text()).body) > 1]


def top_level_classes(root: Path) -> Iterator[str]:
    """The names of the product's classes."""
    for path in product(root):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield node.name


def twice(names: Iterator[str]) -> list[str]:
    """The names that stand there more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def test_no_file_name_of_the_product_stands_twice() -> None:
    """But for a room's own tuned numbers."""
    assert set(twice(path.name for path in product(REPOSITORY))) == {"__init__.py", "tuning.py"}


def test_no_class_name_of_the_product_stands_twice(tmp_path: Path) -> None:
    assert not twice(top_level_classes(REPOSITORY))
    for folder in FOLDERS[:2]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "made.py").write_text("class A:\n    class B: pass\n")
    assert twice(top_level_classes(tmp_path)) == ["A"]


PARAMETERS = 6  # without self
MORE = {  # and why
    "experiment/api.py compare": "Python's surface: settings by keyword",
    "experiment/api.py fit": "Python's surface: settings by keyword",
    "experiment/api.py plan": "Python's surface: settings by keyword",
    "experiment/run/teachers.py teacher_of": "a run's entry to any kind of teacher",
    "experiment/sklearn.py __init__": "scikit-learn's surface: settings by keyword",
    "experiment/whole_run.py run": "a run's entry, which splits the configuration",
    "student/fine_tuning.py keep_views": "progress and threads beside what decides the views",
    "student/losses.py virtual_adversarial_loss": "a paper's function of its parameters",
    "student/train.py train": "who hears of it, beside what decides the weights",
    "teacher/audits/conversations.py converse": "an attack's numbers",
    "teacher/audits/harness.py drawn_case": "an attack's parts, most of them by keyword",
    "teacher/baselines/noisy_sgd.py train_privately": "a baseline's rows and its budget",
    "teacher/charging.py answer_prepaid": "the audits call it without a teacher",
    "teacher/classifiers/cnn_ensemble.py __init__": "records, their shards and where to work",
    "teacher/classifiers/linear_ensemble.py train_ensemble": "arrays of records, their shards",
    "teacher/custodian.py open_custodian": "the custodian's surface: settings by keyword",
    "teacher/custody/serving.py app_of": "an opened directory, its service, and what both tell",
    "teacher/mechanisms/gradient.py gradient_sums": "a count: public numbers, then records",
    "teacher/mechanisms/ind_knn.py answer": "what is private, what is public, and the noise",
    "teacher/private_rows.py __init__": "the teacher's settings, passed on by keyword",
    "teacher/search/poisson_sampling.py first_hits": "compiled, which takes arrays alone",
    "teacher/shards/shards.py __init__": "the teacher's settings, passed on by keyword",
    "teacher/teacher.py __init__": "the teacher's surface: settings by keyword",
}


def many_parameters(root: Path) -> Iterator[str]:
    """The functions of the product that take more than PARAMETERS, by name."""
    for path in product(root):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if len([each for each in taken if each.arg not in ("self", "cls")]) > PARAMETERS:
                    yield f"{path.relative_to(root).as_posix()} {node.name}"


def test_a_function_takes_few_parameters_or_says_why(tmp_path: Path) -> None:
    assert set(many_parameters(REPOSITORY)) == set(MORE)
    (tmp_path / "teacher").mkdir()
    made = "class A:\n    def f(self, a, b, /, c, d, *e, g, h{more}): pass\n"
    for more, found in (("", []), (", i", ["teacher/made.py f"])):
        (tmp_path / "teacher" / "made.py").write_text(made.format(more=more))
        assert list(many_parameters(tmp_path)) == found


MASKS = {  # arrays times arrays of bools
    "teacher/audits/conversations.py",
    "teacher/audits/draws.py",
    "teacher/mechanisms/votes_in_cells.py",
    "wall/layers.py",
    "experiment/run/custodians.py",
}


def said_to_be_true(node: ast.expr) -> bool:
    """Whether an expression is a bool: a comparison, ``not``, or one of these beside ``or``."""
    if isinstance(node, ast.BoolOp):
        return any(said_to_be_true(value) for value in node.values)
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated or isinstance(node, ast.Compare)


def counts_bools(text: str) -> bool:
    """Whether a file adds, subtracts or multiplies by a bool."""
    sums = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.BinOp)]
    sums = [node for node in sums if isinstance(node.op, ast.Add | ast.Sub | ast.Mult)]
    return any(said_to_be_true(side) for node in sums for side in (node.left, node.right))


def test_no_bool_is_added_or_multiplied() -> None:
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for path in product(REPOSITORY)
        if counts_bools(path.read_text())
    }
    assert found == MASKS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n = count + (not added)", True),
        ("s = text * (kind == 'class')", True),
        ("n = last + (begun or n > 1)", True),
        ("n = 100 * (right or 0.0)", False),
        ("n = sum(each > 1 for each in counts)", False),
    ],
)
def test_the_search_for_counted_bools_can_fail(text: str, found: bool) -> None:
    assert counts_bools(text) == found


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
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for path in product(REPOSITORY)
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
