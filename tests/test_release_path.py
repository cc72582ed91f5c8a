"""The release path, teacher/ and wall/ as files, has no seeds, pickles and received names.

For each check a test shows that it can fail.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
REASONS = {
    "a seedable generator": "random numpy.random",
    "a seed": "torch.manual_seed torch.seed torch.random.manual_seed torch.Generator",
    "a seedable draw": "torch.rand torch.randn torch.randint torch.randperm torch.normal "
    "torch.bernoulli torch.multinomial torch.poisson",
    "a pickle": "pickle cloudpickle dill marshal shelve joblib.load joblib.dump torch.load "
    "torch.save",
    "an oracle of the tests, whose generator keeps its state in the process": "opendp",
    "received code": "eval exec compile __import__ importlib runpy",
}
FORBIDDEN = {name: why for why, names in REASONS.items() for name in names.split()}
ALLOWED = {
    # Fixed noise on which an accelerator's kernels are tried; no release has to do with it.
    ("teacher/features/network.py", "numpy.random.default_rng"),
    # Tensors alone (weights_only), from an installed package: nothing that anybody sent.
    ("wall/networks.py", "torch.load"),
    # A baseline for comparisons, which no teacher calls: its noise is idealised and its models are
    # not for release.
    ("teacher/baselines/noisy_sgd.py", "torch.manual_seed"),
    ("teacher/baselines/noisy_sgd.py", "torch.rand"),
    # Another baseline: random splits from fresh entropy (no argument), which no public seed
    # foretells; then the state of before.
    *(
        ("teacher/baselines/private_classifiers.py", f"numpy.random.{name}")
        for name in ("get_state", "seed", "set_state")
    ),
}


def test_no_teacher_reaches_the_baselines():
    """What is allowed to them is not on the way to an answer."""
    reaching = re.compile(r"^\s*(from|import) .*\bbaselines\b", re.MULTILINE)
    files = list((REPOSITORY / "teacher").rglob("*.py"))
    assert len(files) > 30
    assert not [path.name for path in files if reaching.search(path.read_text())]
    assert reaching.search("def f():\n    from ..baselines.noisy_sgd import train")


def violations(source: str) -> Iterator[tuple[str, str]]:
    """(dotted name, why) of what the release path must not contain, in a module's text."""
    aliases, named = dict[str, str](), list[str]()
    constants: set[str] = set()  # loop variables over literal names
    nodes = list(ast.walk(ast.parse(source)))
    for node in nodes:
        if isinstance(node, ast.Import):
            aliases |= {entry.asname: entry.name for entry in node.names if entry.asname}
            named += [entry.name for entry in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
            aliases |= names
            named += names.values()
        elif isinstance(node, ast.For) and isinstance(node.target, ast.Name) and literal(node.iter):
            constants.add(node.target.id)
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name):
            named.append(dotted(node, aliases))
        elif isinstance(node, ast.Call) and dotted(node.func, aliases) in ("getattr", "setattr"):
            key = node.args[1]
            known = isinstance(key, ast.Name) and key.id in constants
            if not known and not isinstance(key, ast.Constant):
                yield "getattr", "a received name"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            may = getattr(node.value, "value", True) is not False
            yield from [("allow_pickle", "a pickle")] * may
    yield from ((name, why) for name in named if (why := forbidden(name)))


def literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple) and all(
        isinstance(entry, ast.Constant) for entry in node.elts
    )


def dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """`np.random.rand` as `numpy.random.rand`; empty for what is no chain of names."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    base = dotted(node.value, aliases) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base else ""


def forbidden(name: str) -> str:
    """Why a dotted name may not stand on the release path; empty when it may."""
    parts = name.split(".")
    begun = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return next((FORBIDDEN[each] for each in begun if each in FORBIDDEN), "")


def test_no_seed_pickle_or_received_name_on_the_release_path():
    found = {
        (path.relative_to(REPOSITORY).as_posix(), name)
        for package in ("teacher", "wall")
        for path in (REPOSITORY / package).rglob("*.py")
        for name, _ in violations(path.read_text())
    }
    longest = {
        (path, name)
        for path, name in found
        if not any(path == other and more.startswith(f"{name}.") for other, more in found)
    }
    assert longest == ALLOWED  # an exception nobody needs any more is taken back


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
    assert bool(list(violations(text))) == (text in FORBIDDEN_CODE)
