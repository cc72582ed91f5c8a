"""Which package loads which; the release path has no seeds, pickles and received names."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import setuptools

REPOSITORY = Path(__file__).parents[1]
PACKAGES = ("teacher", "student", "wall", "experiment")
MAY_LOAD = {
    "wall": {"wall"},
    "teacher": {"teacher", "wall"},
    "student": {"student", "wall"},
    "experiment": set(PACKAGES),
}

# Imports every module of a package in a process of its own, and tells which packages were loaded.
PROBE = """
import importlib, json, pkgutil, sys

def modules(name):
    yield name
    for found in pkgutil.walk_packages(importlib.import_module(name).__path__, name + "."):
        yield found.name

names = sorted(set(modules("labelwall." + sys.argv[1])))
for name in names:
    importlib.import_module(name)
ours = [name for name in sys.modules if name.startswith("labelwall.")]
print(json.dumps({"modules": names, "loaded": sorted({name.split(".")[1] for name in ours})}))
"""


def python(code: str, *arguments: str, **options: object) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probe(package: str, root: Path) -> dict:
    """What importing all of ``package``, as it lies in ``root``, loads in a fresh process."""
    changed = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    printed = python(PROBE, package, cwd=root, env=os.environ | changed)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_loads_only_what_its_arrows_point_to(package, tmp_path):
    (tmp_path / "labelwall").symlink_to(REPOSITORY)
    found = probe(package, tmp_path)
    files = {p for p in (REPOSITORY / package).rglob("*.py") if "__pycache__" not in p.parts}
    assert len(found["modules"]) == len(files)  # all of them were loaded
    assert set(found["loaded"]) & set(PACKAGES) <= MAY_LOAD[package]
    assert "pipeline" not in found["loaded"]


def test_the_wheel_has_every_package(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    given: dict = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: given.update(keywords))
    runpy.run_path("setup.py")
    folders = [p.parent for name in PACKAGES for p in (REPOSITORY / name).rglob("*.py")]
    expected = {".".join(("labelwall", *f.relative_to(REPOSITORY).parts)) for f in folders}
    assert {"labelwall", *expected} <= set(given["packages"])
    assert not any("tests" in name or "__pycache__" in name for name in given["packages"])


def room(path: Path, root: Path) -> str:
    """`teacher/ledger`, `teacher/charging.py`."""
    return "/".join(path.relative_to(root).parts[:2])


def arrows(root: Path) -> dict[str, set[str]]:
    """From each room of ``root`` to the rooms that it imports, also for annotations alone."""
    found: dict[str, set[str]] = {}
    for path in (path for name in PACKAGES for path in (root / name).rglob("*.py")):
        here, nodes = room(path, root), list[ast.AST](ast.parse(path.read_text()).body)
        for node in nodes:  # which grow
            if isinstance(node, ast.If | ast.Try):
                nodes += ast.iter_child_nodes(node)
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            place = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            files = [place.with_suffix(".py"), place / "__init__.py"] if node.module else []
            files += [place / f"{entry.name}.py" for entry in node.names]
            rooms = {room(file, root) for file in files if file.is_file()}
            found.setdefault(here, set()).update(rooms - {here})
    return found


def test_rooms_have_no_circle():
    """Neither between the packages nor inside one: TopologicalSorter raises CycleError."""
    found = arrows(REPOSITORY)
    assert {"teacher/ledger", "teacher/charging.py"} <= found["teacher/audits"]
    order = list(TopologicalSorter(found).static_order())
    assert order.index("wall/errors.py") < order.index("teacher/ledger")
    assert order.index("teacher/ledger") < order.index("teacher/teacher.py")


def test_the_check_of_rooms_can_fail(tmp_path):
    """A circle that only annotations close counts, too."""
    for name, other in (("a", "b"), ("b", "a")):
        folder = tmp_path / "teacher" / name
        folder.mkdir(parents=True)
        text = f"if TYPE_CHECKING:\n    from ..{other}.{other} import X\n"
        (folder / f"{name}.py").write_text(text)
    with pytest.raises(CycleError):
        list(TopologicalSorter(arrows(tmp_path)).static_order())


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        ("", []),
        ("from labelwall.teacher import deep", ["teacher"]),
        ("import labelwall.wall.deep", ["teacher", "wall"]),  # a detour to the teacher counts, too
    ],
)
def test_the_check_of_imports_can_fail(tmp_path, text, loaded):
    package = tmp_path / "labelwall"
    for name, content in ("teacher", ""), ("wall", "import labelwall.teacher"), ("student", text):
        (package / name).mkdir(parents=True)
        for file, lines in ("__init__.py", ""), ("deep.py", content):
            (package / name / file).write_text(lines)
    (package / "__init__.py").touch()
    assert probe("student", tmp_path)["loaded"] == sorted({*loaded, "student"})


def test_help_and_prices_do_not_wait_for_torch():
    """Also what `plan` prints before its seconds, and `run`'s first line; a help without what
    searches and certificates load.
    """
    code = """
import contextlib, io, json, sys
from labelwall import pipeline
from labelwall.experiment import api
from labelwall.wall.console import Console
api.lasting = lambda *_: sys.exit()
# The first line of run ends it
Console.say = lambda _, text: sys.exit(print(text.ljust(200)))  # of run, whose first line ends it
loaded, slow = {}, {"torch", "scipy", "numba", "sklearn", "joblib", "matplotlib"}
for args in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        pipeline.main(args)
    assert len(out.getvalue()) > 100, args
    unwanted = slow if args[-1] == "--help" else {"torch"}
    loaded[" ".join(args)] = sorted(unwanted & {*sys.modules})
import torch, sklearn.linear_model, matplotlib, numba
assert not slow - {*sys.modules}  # what is looked for is there to be found
print(json.dumps(loaded))
"""
    from labelwall.pipeline import COMMANDS

    asked = [
        ["--help"],
        *([command, "--help"] for command in COMMANDS),
        *([command, "--config", "configs/quickstart.yaml"] for command in ("plan", "run")),
    ]
    loaded = json.loads(python(code, json.dumps(asked), cwd=REPOSITORY))
    assert loaded == {" ".join(args): [] for args in asked}


def test_no_teacher_reaches_the_baselines():
    """What is allowed to them is not on the way to an answer."""
    reaching = re.compile(r"^\s*(from|import) .*\bbaselines\b", re.MULTILINE)
    files = list((REPOSITORY / "teacher").rglob("*.py"))
    assert len(files) > 30
    assert not [path.name for path in files if reaching.search(path.read_text())]
    assert reaching.search("def f():\n    from ..baselines.noisy_sgd import train")


def ruff(*arguments: str, text: str | None = None) -> str:
    """What pyproject.toml's ban finds; exceptions stand with their reason where they are made."""
    command = [sys.executable, "-m", "ruff", "check", "-q", "--select", "TID251", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, input=text, capture_output=True, text=True)
    assert not done.stderr
    return done.stdout


def received(source: str) -> list[str]:
    """What runs or loads text that was received: names of builtins, of attributes, and pickles."""
    found, constants, nodes = list[str](), set[str](), list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
            literal = all(isinstance(entry, ast.Constant) for entry in node.iter.elts)
            constants |= {ast.unparse(node.target)} if literal else set()
    for node in nodes:
        if isinstance(node, ast.Name):
            found += [node.id] * (node.id in ("eval", "exec", "compile", "__import__"))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("getattr", "setattr") and not isinstance(node.args[1], ast.Constant):
                found += [name] * (ast.unparse(node.args[1]) not in constants)
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            found += ["allow_pickle"] * (getattr(node.value, "value", True) is not False)
    return found


def test_no_seed_pickle_or_received_name_on_the_release_path():
    assert ruff("teacher", "wall") == ""
    paths = [path for room in ("teacher", "wall") for path in (REPOSITORY / room).rglob("*.py")]
    assert len(paths) > 100
    assert [path for path in paths if received(path.read_text())] == []


def test_no_source_of_noise_in_the_package_can_be_seeded():
    """The tests have one (tests/seeded_noise.py), and nothing in the package imports the tests."""
    packages = ("teacher", "student", "wall", "experiment")
    paths = [path for package in packages for path in (REPOSITORY / package).rglob("*.py")]
    assert len(paths) > 100
    for path in [*paths, REPOSITORY / "pipeline.py", REPOSITORY / "__init__.py"]:
        assert not re.search(r"^\s*(from|import) (\.*)tests\b|SeededNoise", path.read_text(), re.M)


FORBIDDEN_CODE = [
    "import random",
    "import opendp.prelude as dp",
    "from random import Random",
    "import numpy as np\nx = np.random.default_rng(0)",
    "from numpy import random",
    "from numpy.random import default_rng",
    "import numpy.random",
    "import torch\ntorch.manual_seed(0)",
    "from torch import Generator as G",
    "def f():\n    import torch as t\n    return t.rand(3)",
    "import pickle",
    "import torch\ntorch.load('x')",
    "from joblib import load",
    "import numpy as np\nnp.load('x', allow_pickle=True)",
    "import numpy as np\nnp.load('x', allow_pickle=flag)",
    "eval('1')",
    "exec(text)",
    "import importlib\nimportlib.import_module(name)",
    "__import__(name)",
    "getattr(module, body['kind'])",
    "for name in body:\n    getattr(self, name)",
]
ALLOWED_CODE = [
    "import safetensors.torch\nsafetensors.torch.load(weights)",
    "import numpy as np\nnp.load('x', allow_pickle=False)",
    "for name in ('k', 'threshold'):\n    getattr(self, name)",
    "network.eval()",
    "import torch\nwith torch.random.fork_rng(devices=[]): pass",
    "import secrets\nsecrets.randbits(8)",
]


@pytest.mark.parametrize("text", FORBIDDEN_CODE + ALLOWED_CODE)
def test_the_check_of_the_release_path_can_fail_and_pass(text):
    found = ruff("--stdin-filename", "teacher/x.py", "-", text=text) or received(text)
    assert bool(found) == (text in FORBIDDEN_CODE)
