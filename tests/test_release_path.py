"""The release path, teacher/ and wall/ as files, has no seeds, pickles and received names.

For each check a test shows that it can fail.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


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
